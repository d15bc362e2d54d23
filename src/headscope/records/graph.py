"""Components and edges of a model shape: their names and order. Pure: no model, no torch.

Writers put something into the residual stream: the embedding, every head, every MLP. Readers take it out: every head
(as one reader, or as three with `split="qkv"`), every MLP, the logits. An edge joins a writer to a later reader: a
head reads what earlier layers wrote, an MLP also what the heads of its own layer wrote (not in parallel-block models,
where both read the same stream), the logits read everything.
"""

from __future__ import annotations

import heapq
import re
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from headscope.errors import InputError

SPLITS = ("none", "qkv")
# How a circuit is chosen: the edges with the largest scores, or grown from the logits (`Graph.greedy`).
CHOICES = ("top", "greedy")


def head_name(layer: int, head: int) -> str:
    """The name people use: L9.H6."""
    return f"L{layer}.H{head}"


def parse_head(name: str) -> tuple[int, int]:
    """(9, 6) from L9.H6; also from 9.6."""
    match = re.fullmatch(r"L?(\d+)\.H?(\d+)", name.strip(), re.IGNORECASE)
    if not match:
        raise InputError(f"{name!r} does not name a head: expected layer and head, such as L9.H6.")
    return int(match[1]), int(match[2])


@dataclass(frozen=True)
class Graph:
    """The edge graph of a model with n_layers x n_heads heads.

    Writers are ordered embedding, then per layer its heads and its MLP. Readers are ordered per layer its heads (q, k
    and v of one head together where split), its MLP, and last the logits. Edges are ordered by reader, then writer.
    """

    n_layers: Annotated[int, Field(strict=True, ge=1, le=1000)]
    n_heads: Annotated[int, Field(strict=True, ge=1, le=1000)]
    split: str = "none"
    parallel: bool = False

    def __post_init__(self) -> None:
        if self.split not in SPLITS:
            raise InputError(f"Unknown split {self.split!r}. Known: {', '.join(SPLITS)}.")

    def as_dict(self) -> dict[str, Any]:
        """What makes it again: Graph(**graph.as_dict())."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @cached_property
    def writers(self) -> list[str]:
        names = ["embedding"]
        for layer in range(self.n_layers):
            names += [head_name(layer, head) for head in range(self.n_heads)] + [f"M{layer}"]
        return names

    @cached_property
    def readers(self) -> list[str]:
        parts = [""] if self.split == "none" else [".q", ".k", ".v"]
        names = []
        for layer in range(self.n_layers):
            names += [head_name(layer, head) + part for head in range(self.n_heads) for part in parts] + [f"M{layer}"]
        return [*names, "logits"]

    @cached_property
    def heard(self) -> np.ndarray:
        """How many writers, from the first on, each reader reads."""
        per_layer = self.n_heads + 1
        parts = 1 if self.split == "none" else 3
        counts = []
        for layer in range(self.n_layers):
            before = 1 + layer * per_layer
            counts += [before] * self.n_heads * parts + [before if self.parallel else before + self.n_heads]
        return np.array([*counts, len(self.writers)])

    @cached_property
    def allowed(self) -> np.ndarray:
        """(writers, readers): whether there is an edge."""
        return np.arange(len(self.writers))[:, None] < self.heard[None]

    @cached_property
    def ends(self) -> tuple[np.ndarray, np.ndarray]:
        """Writer and reader of every edge, as indices."""
        reader, writer = np.nonzero(self.allowed.T)
        return writer, reader

    @cached_property
    def edges(self) -> list[str]:
        """Names of the edges, such as L5.H5->L9.H9.q."""
        return [f"{self.writers[w]}->{self.readers[r]}" for w, r in zip(*self.ends, strict=True)]

    def __len__(self) -> int:
        return int(self.heard.sum())

    @cached_property
    def between_heads(self) -> np.ndarray:
        """(edges,): which edges join a head to a head."""
        writes = np.array([name.startswith("L") for name in self.writers])
        reads = np.array([name.startswith("L") for name in self.readers])
        writer, reader = self.ends
        return writes[writer] & reads[reader]

    def joined(self, order: np.ndarray) -> np.ndarray:
        """When each edge of a growing circuit comes to lie on a path from the embedding to the logits.

        A path is there when its last edge is; what reaches a component, and leads on from it, is there with the first
        of its paths.

        Args:
            order: places of edges as the circuit takes them in, all of them or the first ones.

        Returns:
            (E,): how many edges the circuit has by then; infinite for an edge that never does.
        """
        writer, reader = self.ends
        size_E = np.full(len(self), np.inf)
        size_E[order] = np.arange(1, len(order) + 1)
        size_WR = np.full((len(self.writers), len(self.readers)), np.inf)
        size_WR[writer, reader] = size_E
        component = [self._component(name) for name in self.readers]
        # What nothing reaches, or leads on from, is never there; the last place is the logits'.
        reached, leads = np.full((2, len(self.writers) + 1), np.inf)
        reached[0] = leads[-1] = 0
        for at, place in enumerate(component):
            reached[place] = min(reached[place], np.maximum(size_WR[:, at], reached[:-1]).min())
        for place in reversed(range(len(self.writers))):
            leads[place] = np.maximum(size_WR[place], leads[component]).min()
        return np.maximum(size_E, np.maximum(reached[writer], leads[np.array(component)[reader]]))

    def connected(self, keep: np.ndarray) -> np.ndarray:
        """The kept edges that lie on a path from the embedding to the logits.

        Args:
            keep: (E,), which edges are kept.

        Returns:
            (E,): which of them lie on a path.
        """
        return np.isfinite(self.joined(np.flatnonzero(keep)))

    def _component(self, reader: str) -> int:
        """The writer that a reader belongs to; one past the last for the logits."""
        name = reader.removesuffix(".q").removesuffix(".k").removesuffix(".v")
        return len(self.writers) if name == "logits" else self._places[name]

    @cached_property
    def _places(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self.writers)}

    def greedy(self, values: np.ndarray, *, signed: bool = False) -> np.ndarray:
        """All edges in the order in which a circuit grows from the logits: always the largest score among edges whose
        reader is in already, so that every edge leads to the logits.

        Args:
            values: (E,), scores.
            signed: the largest of the scores, instead of their absolute values.

        Returns:
            (E,): places in `edges`.
        """
        writer, reader = self.ends
        size = values if signed else np.abs(values)
        component = np.array([self._component(name) for name in self.readers])[reader]
        into: dict[int, list[int]] = {}
        for edge, at in enumerate(component.tolist()):
            into.setdefault(at, []).append(edge)
        inside, order = {len(self.writers)}, []
        heap = [(-size[edge], edge) for edge in into[len(self.writers)]]
        heapq.heapify(heap)
        while heap:
            _, edge = heapq.heappop(heap)
            order.append(edge)
            source = int(writer[edge])
            if source not in inside:
                inside.add(source)
                for more in into.get(source, []):
                    heapq.heappush(heap, (-size[more], more))
        return np.array(order)
