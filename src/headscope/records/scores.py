"""How much every head, or every edge, matters for a task, by one method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any

import numpy as np

from headscope.errors import InputError
from headscope.records.circuit import Circuit
from headscope.records.graph import CHOICES, Graph, head_name
from headscope.records.record import Record
from headscope.records.table import Table
from headscope.schema import checked


@dataclass(frozen=True)
class Scores(Record):
    """How much every head matters for a task, by one method; or every MLP or layer, at each position: `axes` says."""

    model: str
    task: str
    method: str
    # (L, H), or of the shape of `axes`; mean over prompts
    values: Annotated[np.ndarray, "L or L H or L H T"]
    per_prompt: Annotated[np.ndarray, "N L or N L H or N L H T"]
    settings: dict[str, Any] = field(default_factory=dict)
    # "layer", then "head" or "component" where a layer has several (the last component is its MLP), then "position".
    axes: list[str] = field(default_factory=lambda: ["layer", "head"])
    tokens: list[str] = field(default_factory=list)  # of the positions: the first prompt's

    @classmethod
    def of(
        cls, model: str, task: Any, method: str, per_prompt: np.ndarray, *, axes: Sequence[str] = ("layer", "head"),
        tokens: Sequence[str] = (), **settings: Any,
    ) -> Scores:  # fmt: skip
        """Scores from one array per prompt, (N, L, H) or as the axes say."""
        values = per_prompt.mean(axis=0, dtype=np.float64).astype(np.float32)
        about = {**_asked(task), **settings}
        made = cls(model, task.name, method, values, per_prompt, about, list(axes), list(tokens))
        made.refuse_odd(f"The scores of {model} on {task.name} by {method}")
        return made

    @cached_property
    def whole(self) -> np.ndarray:
        """(L, H), or (L, 1) where a layer has one: the scores; of those of its positions, the one of largest size."""
        values = self.values
        if "position" in self.axes:
            largest = np.abs(values).argmax(axis=-1, keepdims=True)
            values = np.take_along_axis(values, largest, axis=-1)[..., 0]
        return values.reshape(len(values), -1)

    def name(self, layer: int, place: int) -> str:
        """What a component is called.

        Args:
            layer: counted from 0.
            place: in its layer: the head, or one behind the last head for the MLP.

        Returns:
            L9.H6 for a head, M9 for an MLP, L9 for a layer.
        """
        if "head" in self.axes or ("component" in self.axes and place < self.whole.shape[1] - 1):
            return head_name(layer, place)
        return f"M{layer}" if "component" in self.axes or self.settings.get("site") == "mlp_out" else f"L{layer}"

    def ranked(self, *, signed: bool = False) -> list[tuple[int, int]]:
        """All heads, the one that matters most first.

        Args:
            signed: from most positive to most negative, instead of by absolute value.

        Returns:
            (layer, head) of each.
        """
        key = self.whole if signed else np.abs(self.whole)
        order = np.argsort(-key, axis=None, kind="stable")
        return [(int(i) // key.shape[1], int(i) % key.shape[1]) for i in order]

    def circuit(self, k: int, *, signed: bool = False) -> Circuit:
        """The k heads that matter most.

        Args:
            k: how many.
            signed: as in `ranked`.

        Returns:
            A circuit, which stands wherever a mask does.
        """
        if "head" not in self.axes:
            raise InputError(f"A circuit is of heads; these scores are by {' and '.join(self.axes)}.")
        keep = np.zeros(self.whole.shape, bool)
        for layer, head in self.ranked(signed=signed)[:k]:
            keep[layer, head] = True
        settings = {"k": k, "signed": signed}
        return Circuit(
            self.model, self.task, keep, self.method, settings=settings, values=np.where(keep, self.whole, 0)
        )

    def top(self, k: int, *, signed: bool = False) -> list[tuple[str, float]]:
        """The k heads that matter most.

        Args:
            k: how many.
            signed: as in `ranked`.

        Returns:
            Name and score of each, the first first.
        """
        return [(self.name(l, h), float(self.whole[l, h])) for l, h in self.ranked(signed=signed)[:k]]

    COLUMNS = "model task method rank head layer index score"

    def table(self) -> Table:
        """What the scores say, the largest first.

        Returns:
            A table; where there is more than heads, with a column per axis.
        """
        if self.axes == ["layer", "head"]:
            return Table.of(self.COLUMNS, self.rows())
        return Table.of(
            f"model task method rank name {' '.join(self.axes)}{' token' * bool(self.tokens)} score", self.rows()
        )

    def rows(self) -> list[tuple[Any, ...]]:
        """The rows of its table.

        Returns:
            One per head (and position), the one that matters most first.
        """
        about = (self.model, self.task, self.method)
        if self.axes == ["layer", "head"]:
            ranked = enumerate(self.ranked(), 1)
            return [(*about, rank, head_name(l, h), l, h, float(self.values[l, h])) for rank, (l, h) in ranked]
        order = np.argsort(-np.abs(self.values), axis=None, kind="stable")
        places = np.stack(np.unravel_index(order, self.values.shape), axis=1).tolist()
        several = "head" in self.axes or "component" in self.axes
        return [
            (
                *about, rank, self.name(at[0], at[1] if several else 0), *at,
                *([self.tokens[at[-1]]] if self.tokens else []), float(self.values[tuple(at)]),
            )
            for rank, at in enumerate(places, 1)
        ]  # fmt: skip


@dataclass(frozen=True)
class EdgeScores(Record):
    """How much every edge matters for a task, by one method; positive where it helps."""

    model: str
    task: str
    method: str
    values: Annotated[np.ndarray, "E"]  # mean over prompts, in the order of graph.edges
    per_prompt: Annotated[np.ndarray, "N E"]  # (0, E) where it was not asked for
    shape: dict[str, Any]  # of its graph
    settings: dict[str, Any] = field(default_factory=dict)

    def refuse_odd(self, where: str) -> None:
        """Refuse numbers that are none, and scores of another graph.

        Args:
            where: names the record in the message.
        """
        super().refuse_odd(where)
        checked(self.shape, Graph, where=f"{where}: shape")
        if len(self.values) != len(self.graph):
            raise InputError(f"{where}: values must be of {len(self.graph)} edges, found {len(self.values)}.")

    @cached_property
    def graph(self) -> Graph:
        return Graph(**self.shape)

    @classmethod
    def of(
        cls, model: str, task: Any, method: str, graph: Graph, values: np.ndarray, per_prompt: np.ndarray | None,
        **settings: Any,
    ) -> EdgeScores:  # fmt: skip
        each = np.empty((0, len(graph)), np.float32) if per_prompt is None else per_prompt
        about = {**_asked(task), **settings}
        made = cls(model, task.name, method, values.astype(np.float32), each, graph.as_dict(), about)
        made.refuse_odd(f"The scores of {model} on {task.name} by {method}")
        return made

    def ranked(self, *, signed: bool = False, choice: str = "top") -> np.ndarray:
        """All edges, the one that matters most first.

        Args:
            signed: from most positive to most negative, instead of by absolute value.
            choice: "top", or "greedy": in the order in which a circuit grows from the logits.

        Returns:
            (E,): places in `graph.edges`.
        """
        if choice not in CHOICES:
            raise InputError(f"Unknown choice {choice!r}. Known: {', '.join(CHOICES)}.")
        if choice == "greedy":
            return self.graph.greedy(self.values, signed=signed)
        return np.argsort(-(self.values if signed else np.abs(self.values)), kind="stable")

    def circuit(self, k: int, *, signed: bool = False, choice: str = "top", connected: bool = False) -> Circuit:
        """The k edges that matter most, or the first k grown from the logits.

        Args:
            k: how many.
            signed, choice: as in `ranked`.
            connected: leave out those on no path from embedding to logits.

        Returns:
            A circuit, which stands wherever a mask does.
        """
        keep = np.zeros(len(self.graph), bool)
        keep[self.ranked(signed=signed, choice=choice)[:k]] = True
        how = {"k": k, "signed": signed, "choice": choice, "connected": connected}
        kept = self.graph.connected(keep) if connected else keep
        return Circuit(self.model, self.task, kept, self.method, self.shape, how, np.where(kept, self.values, 0))

    def top(self, k: int, *, signed: bool = False) -> list[tuple[str, float]]:
        """The k edges that matter most.

        Args:
            k: how many.
            signed: as in `ranked`.

        Returns:
            Name and score of each, the first first.
        """
        return [(self.graph.edges[e], float(self.values[e])) for e in self.ranked(signed=signed)[:k]]

    COLUMNS = "model task method rank edge score"

    def rows(self, k: int | None = None, *, signed: bool = False) -> list[tuple[Any, ...]]:
        """The rows of its table.

        Args:
            k: how many; all unless given.
            signed: as in `ranked`.

        Returns:
            One per edge, the one that matters most first.
        """
        best = self.top(len(self.graph) if k is None else k, signed=signed)
        return [(self.model, self.task, self.method, rank, *one) for rank, one in enumerate(best, 1)]


def _asked(task: Any) -> dict[str, Any]:
    """Which prompts were scored."""
    return {"n": len(task), "seed": task.seed, "prompts": task.digest}
