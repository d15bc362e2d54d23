"""A circuit: a set of kept heads, or of kept edges. And heads as people name them, wherever heads are meant."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Annotated, Any, Protocol

import numpy as np

from headscope.errors import InputError
from headscope.records.graph import Graph, head_name, parse_head
from headscope.records.record import Record


class Shape(Protocol):
    """What names of heads and edges need to know of a model; a loaded `Model` has it."""

    @property
    def name(self) -> str: ...
    @property
    def n_layers(self) -> int: ...
    @property
    def n_heads(self) -> int: ...
    @property
    def parallel(self) -> bool: ...


# A head: its name, L9.H6; the pair (9, 6); or its name with a score, as `scores.top(k)` gives them.
Head = str | tuple[int, int] | tuple[str, float]


@dataclass(frozen=True)
class Circuit(Record):
    """A set of kept heads, or of kept edges, and how it was chosen."""

    model: str
    task: str
    keep: Annotated[np.ndarray, "L H or E"]  # of heads, of edges; bool
    method: str = ""
    shape: dict[str, Any] = field(default_factory=dict)  # of the edge graph; empty for heads
    settings: dict[str, Any] = field(default_factory=dict)
    values: Annotated[np.ndarray, "L H or E"] | None = (
        None  # as `keep`: the scores that it was chosen by, 0 for what is not in it
    )

    @classmethod
    def named(cls, names: Head | Iterable[Head], model: Shape, *, task: str = "", **settings: Any) -> Circuit:
        """The circuit of these heads, or of these edges.

        Args:
            names: of heads (L9.H6) or of edges (L5.H5->L9.H9, or ->L9.H9.q where q, k and v read apart).
            model: the model whose heads or edges they are.
            task: what it is a circuit for, if anything.
        """
        listed = _listed(names)
        if not any(isinstance(name, str) and "->" in name for name in listed):
            keep = np.zeros((model.n_layers, model.n_heads), bool)
            for head in which_heads(listed, model):
                keep[head] = True
            return cls(model.name, task, keep, settings=settings)
        edges = [str(name) for name in listed]
        split = "qkv" if any(edge.endswith((".q", ".k", ".v")) for edge in edges) else "none"
        graph = Graph(model.n_layers, model.n_heads, split, model.parallel)
        place = {name: at for at, name in enumerate(graph.edges)}
        if unknown := [edge for edge in edges if edge not in place]:
            raise InputError(
                f"There is no edge {unknown[0]!r} in {model.name}: expected such as {graph.edges[0]} or "
                f"{graph.edges[-1]}."
            )
        keep = np.zeros(len(graph), bool)
        keep[[place[edge] for edge in edges]] = True
        return cls(model.name, task, keep, shape=graph.as_dict(), settings=settings)

    @property
    def what(self) -> str:
        """What it is a set of: "heads" or "edges"."""
        return "edges" if self.shape else "heads"

    @cached_property
    def graph(self) -> Graph:
        """The edge graph that its edges are of."""
        return Graph(**self.shape)

    @property
    def names(self) -> list[str]:
        """L9.H6 for a head, L5.H5->L9.H9.q for an edge."""
        if self.shape:
            return [self.graph.edges[at] for at in np.flatnonzero(self.keep)]
        return [head_name(int(l), int(h)) for l, h in np.argwhere(self.keep)]

    @property
    def heads(self) -> Circuit:
        """The heads that it has edges from or to; itself, if it is of heads."""
        if not self.shape:
            return self
        keep = np.zeros((self.graph.n_layers, self.graph.n_heads), bool)
        for name in {end for edge in self.names for end in edge.split("->") if end.startswith("L")}:
            keep[parse_head(".".join(name.split(".")[:2]))] = True
        return Circuit(self.model, self.task, keep, self.method, settings=self.settings)

    def __len__(self) -> int:
        return int(self.keep.sum())

    def __contains__(self, name: str) -> bool:
        return name in self.names

    def rows(self) -> list[tuple[Any, ...]]:
        """The rows of its table.

        Returns:
            One per head or edge that is kept, as COLUMNS says.
        """
        scores = [None] * len(self) if self.values is None else self.values[self.keep].tolist()
        return [(self.model, self.task, self.method, *row) for row in zip(self.names, scores, strict=True)]

    @property
    def COLUMNS(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return f"model task method {self.what[:-1]} score"

    def to_json(self) -> str:
        """The circuit for other tools; `from_json` reads it.

        Returns:
            JSON with the names that are kept and all that the circuit is known by.
        """
        rest = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("keep", "values")}
        scores = {} if self.values is None else {"scores": self.values[self.keep].tolist()}
        told = {**rest, "size": list(self.keep.shape), self.what: self.names, **scores}
        return json.dumps(told, indent=2, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Circuit:
        try:
            told = json.loads(text)
            keep = np.zeros(told.pop("size"), bool)
            if told["shape"]:
                place = {name: at for at, name in enumerate(Graph(**told["shape"]).edges)}
                keep[[place[name] for name in told.pop("edges")]] = True
            else:
                for name in told.pop("heads"):
                    keep[parse_head(name)] = True
            if scores := told.pop("scores", None):
                told["values"] = np.zeros(keep.shape, np.float32)
                told["values"][keep] = scores
            return cls(keep=keep, **told)
        except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
            raise InputError(f"This is no circuit: {error}. Expected the text that Circuit.to_json writes.") from error


def which_heads(heads: Circuit | Head | Iterable[Head], model: Shape) -> list[tuple[int, int]]:
    """Heads as (layer, head) pairs, however they are named; those that the model does not have are told."""
    if isinstance(heads, Circuit):
        if heads.shape:
            raise InputError(
                "This circuit is of edges, but heads are meant here: circuit.heads are the heads that it joins, and "
                "hs.sweep runs edges."
            )
        heads = [(int(l), int(h)) for l, h in np.argwhere(heads.keep)]
    return [_head(head, model) for head in _listed(heads)]


def is_naming(value: object) -> bool:
    """Whether this names heads (a circuit, a name, a list of names), and is not a mask of numbers."""
    if isinstance(value, (Circuit, str)):
        return True
    return isinstance(value, Sequence) and len(value) > 0 and all(_has_name(one) for one in value)


def _has_name(one: object) -> bool:
    return isinstance(one, str) or (isinstance(one, tuple) and len(one) == 2 and isinstance(one[0], str))


def _listed(heads: Any) -> list[Any]:
    """One head is a list of one."""
    single = isinstance(heads, str) or (
        isinstance(heads, tuple) and len(heads) == 2 and not isinstance(heads[1], (str, tuple, list))
    )
    return [heads] if single else list(heads)


def _head(head: Any, model: Shape) -> tuple[int, int]:
    try:
        layer, at = parse_head(head if isinstance(head, str) else head[0]) if _has_name(head) else map(int, head)
    except (TypeError, ValueError) as error:
        raise InputError(f"{head!r} does not name a head: expected L9.H6 or (9, 6).") from error
    if not (0 <= layer < model.n_layers and 0 <= at < model.n_heads):
        raise InputError(
            f"There is no head {head_name(layer, at)}: {model.name} has layers 0 to {model.n_layers - 1} "
            f"and heads 0 to {model.n_heads - 1}."
        )
    return layer, at
