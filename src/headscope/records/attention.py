"""Attention patterns kept to be looked at."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np

from headscope.records.graph import head_name
from headscope.records.record import Record


@dataclass(frozen=True)
class Attention(Record):
    """Attention weights of every head on a few prompts of one length, as they pass: behind a sparse gate, if any."""

    model: str
    task: str
    tokens: list[list[str]]  # of each prompt
    patterns: Annotated[np.ndarray, "P L H T S"]  # float16
    settings: dict[str, Any] = field(default_factory=dict)

    COLUMNS = "model task prompt head query key query_token key_token weight"

    def rows(self) -> list[tuple[Any, ...]]:
        """One per attention edge, from a token to itself or an earlier one."""
        P, L, H, T, _ = self.patterns.shape
        edges = [(t, s) for t in range(T) for s in range(t + 1)]
        return [
            (
                self.model, self.task, p, head_name(l, h), t, s, self.tokens[p][t], self.tokens[p][s],
                float(self.patterns[p, l, h, t, s]),
            )
            for p, l, h in np.ndindex(P, L, H)
            for t, s in edges
        ]  # fmt: skip
