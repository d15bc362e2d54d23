"""Scoring methods: a file each, one signature, `(model, task, *, ...) -> Scores`."""

from __future__ import annotations

from collections.abc import Callable

from headscope.errors import InputError
from headscope.methods.patching import patching
from headscope.results import Scores

__all__ = ["METHODS", "method", "patching"]

METHODS: dict[str, Callable[..., Scores]] = {
    "patching": patching,
}


def method(name: str) -> Callable[..., Scores]:
    """The method called `name`."""
    if name not in METHODS:
        raise InputError(f"Unknown method {name!r}. Known: {', '.join(METHODS)}.")
    return METHODS[name]
