"""How much every head's attention looks like a known pattern.

Shape letters: M patterns, L layers, H heads.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import numpy as np

from headscope.errors import InputError
from headscope.records.graph import head_name
from headscope.records.record import Record
from headscope.records.scores import Scores


@dataclass(frozen=True)
class Patterns(Record):
    """Scores of known patterns for every head: shares of attention from 0 to 1, and copying from -1 to 1."""

    missing: ClassVar = {"values": "the prompts have no place for the pattern"}
    model: str
    task: str  # whose prompts; "repeated tokens" for random ones, repeated
    names: list[str]  # (M,)
    values: Annotated[np.ndarray, "M L H"]  # not a number where the prompts have no place for the pattern
    settings: dict[str, Any] = field(default_factory=dict)

    def scores(self, name: str) -> Scores:
        """Those of one pattern, for a head map, a ranking, a circuit.

        Args:
            name: one of `names`.

        Returns:
            Scores whose `values` are (L, H).
        """
        if name not in self.names:
            raise InputError(f"There is no pattern {name!r}. Known: {', '.join(self.names)}.")
        values = self.values[self.names.index(name)]
        return Scores(self.model, self.task, name, values, values[None][:0], self.settings)

    def top(self, name: str, k: int) -> list[tuple[str, float]]:
        """The k heads that have most of a pattern.

        Args:
            name: one of `names`.
            k: how many.

        Returns:
            Name and score of each, the first first.
        """
        return self.scores(name).top(k, signed=True)

    @property
    def COLUMNS(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return " ".join(["model", "task", "head", "layer", "index", *(name.replace(" ", "_") for name in self.names)])

    def rows(self) -> list[tuple[Any, ...]]:
        """One per head."""
        return [
            (self.model, self.task, head_name(l, h), l, h, *map(float, self.values[:, l, h]))
            for l, h in np.ndindex(*self.values.shape[1:])
        ]
