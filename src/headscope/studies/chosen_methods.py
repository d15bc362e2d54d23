"""Methods as they are asked for on the command line: a name, and behind colons options of its own signature.

patching    eap-ig:steps=10    patching:direction=denoising
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args, get_origin, get_type_hints

from headscope.errors import InputError
from headscope.records import EdgeScores, Scores


@dataclass(frozen=True)
class Chosen:
    """A method with its options; the label tells variants of one method apart."""

    label: str
    score: Callable[..., Any]
    options: dict[str, Any]

    def __call__(self, *subject: Any, **more: Any) -> Any:
        scores: Scores | EdgeScores = self.score(*subject, **more, **self.options)
        said = "".join(f":{name}={value}" for name, value in self.options.items())
        return replace(scores, method=f"{scores.method}{said}")

    def towards(self, fill: str) -> dict[str, str]:
        """The study's fill, for a method that ranks towards a fill, knows this one, and was not given another."""
        kind = method_options(self.score).get("fill", (None, None))[0]
        return {"fill": fill} if "fill" not in self.options and fill in get_args(kind) else {}


def chosen_methods(
    texts: Sequence[str], known: Mapping[str, Callable[..., Any]], what: str = "", reserved: Sequence[str] = ()
) -> list[Chosen]:
    """The methods asked for. reserved: options that the study itself gives."""
    methods = [_chosen(text, known, what, reserved) for text in texts]
    labels = [one.label for one in methods]
    if twice := [label for label in labels if labels.count(label) > 1]:
        raise InputError(f"Method {twice[0]} is named twice. Name everything once.")
    return methods


def method_options(method: Callable[..., Any], reserved: Sequence[str] = ()) -> dict[str, tuple[Any, Any]]:
    """Options of a method that can be typed, by name: type and default."""
    hints = get_type_hints(method)
    return {
        name: (hints[name], parameter.default)
        for name, parameter in inspect.signature(method).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY and name not in reserved
        if hints[name] in (int, float, str, bool) or get_origin(hints[name]) is Literal
    }


def _chosen(text: str, known: Mapping[str, Callable[..., Any]], what: str, reserved: Sequence[str]) -> Chosen:
    name, *given = text.split(":")
    if name not in known:
        raise InputError(f"Unknown method {name!r}{what}. Known: {', '.join(known)}.")
    options = dict(_values(name, given, method_options(known[name], reserved)))
    label = ":".join([name, *(f"{option}={value}" for option, value in options.items())])
    return Chosen(label, known[name], options)


def _values(method: str, given: Sequence[str], known: Mapping[str, tuple[Any, Any]]) -> Iterator[tuple[str, Any]]:
    has = ", ".join(f"{name}={default}" for name, (_, default) in known.items()) or "none"
    for one in given:
        name, equals, text = one.partition("=")
        if name not in known or not equals:
            raise InputError(f"Unknown option {one!r} of method {method}. Its options, with their defaults: {has}.")
        kind, _ = known[name]
        values = {str(value): value for value in get_args(kind) or ((True, False) if kind is bool else ())}
        try:
            yield name, values[text] if values else kind(text)
        except (KeyError, ValueError):
            expected = " or ".join(values) or {int: "a whole number", float: "a number"}[kind]
            raise InputError(f"Option {name} of method {method}: expected {expected}, found {text!r}.") from None
