"""A sparse model measured beside its dense origin, on the same sequences of text.

Shape letters: N sequences, L layers, H heads.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np

from headscope.records.curve import no_interval, resampled
from headscope.records.graph import head_name
from headscope.records.record import Record


@dataclass(frozen=True)
class Sparsity(Record):
    """Open attention edges of a sparse model, and what it loses: in nats, by sequence, all under hard gates."""

    model: str
    dense: str
    rates: Annotated[np.ndarray, "L H"]  # share of causal attention edges that are open
    connectivity: Annotated[np.ndarray, "N"]  # the same share over all heads
    ce: Annotated[np.ndarray, "N"]  # cross-entropy
    dense_ce: Annotated[np.ndarray, "N"]  # that of the dense model
    kl: Annotated[np.ndarray, "N"]  # divergence from the dense model
    random: dict[str, float]  # connectivity, ce and kl with gates open at random, each head at its own rate
    settings: dict[str, Any] = field(default_factory=dict)

    COLUMNS = "head layer index connectivity"

    def rows(self) -> list[tuple[Any, ...]]:
        return [(head_name(l, h), l, h, float(rate)) for (l, h), rate in np.ndenumerate(self.rates)]

    def above_dense(self) -> dict[str, Any]:
        """How much its cross-entropy exceeds the dense model's, with a 95 % bootstrap interval over sequences; or why
        there is none ("note")."""
        lost = self.ce - self.dense_ce
        if why := no_interval(lost[None], "sequence"):
            return {"mean": float(lost.mean()), "low": None, "high": None, "note": why}
        again = [lost[rows].mean() for rows in resampled(len(lost), 1000, self.settings["seed"])]
        low, high = np.quantile(again, (0.025, 0.975))
        return {"mean": float(lost.mean()), "low": float(low), "high": float(high)}
