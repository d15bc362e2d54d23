"""Explained effect against the number of heads (or edges) kept.

    EE(C) = (m(C) - m(corrupt)) / (m(clean) - m(corrupt))

m is the mean metric over prompts: a ratio of means, not a mean of ratios. Intervals are bootstrap intervals over
prompts.

Shape letters: P points of the curve, N prompts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from headscope.records.record import Record
from headscope.records.scores import EdgeScores, Scores

# Circuit sizes, as shares of all components, at which the field compares curves (MIB).
SHARES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


@dataclass(frozen=True)
class Curve(Record):
    """Explained effect against the number of heads kept, with an interval over prompts."""

    model: str
    task: str
    method: str
    k: np.ndarray  # (P,)
    explained: np.ndarray  # (P,)
    low: np.ndarray  # (P,)
    high: np.ndarray  # (P,)
    metrics: np.ndarray  # (P, N): the metric of every prompt at every k
    clean: np.ndarray  # (N,)
    corrupt: np.ndarray  # (N,)
    settings: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls, scores: Scores | EdgeScores, k: np.ndarray, metrics: np.ndarray, clean: np.ndarray, corrupt: np.ndarray, *,
        resamples: int, seed: int, **settings: Any,
    ) -> Curve:  # fmt: skip
        """The curve of a sweep, with 95 % bootstrap intervals over prompts."""
        n = len(clean)
        explained = _effect(metrics, clean, corrupt, slice(None))
        again = np.stack(
            [_effect(metrics, clean, corrupt, rows) for rows in resampled(n, resamples, seed)] or [explained]
        )
        low, high = np.percentile(again, [2.5, 97.5], axis=0)
        about = {"total": int(scores.values.size), "n": n, **settings}
        return cls(scores.model, scores.task, scores.method, k, explained, low, high, metrics, clean, corrupt, about)

    def effect(self, rows: np.ndarray) -> np.ndarray:
        """Explained effect at every k over the given prompts only."""
        return _effect(self.metrics, self.clean, self.corrupt, rows)

    @property
    def label(self) -> str:
        ranking = self.settings.get("ranking", "task")
        greedy = ", greedy" if self.settings.get("choice") == "greedy" else ""
        return f"{self.model}, {self.method}" + (", ranked per prompt" if ranking == "prompt" else greedy)

    @property
    def share(self) -> np.ndarray:
        """k as a share of all heads."""
        return self.k / self.settings["total"]

    @property
    def area(self) -> float:
        """Area under the curve over the share of heads kept."""
        return float(np.trapezoid(self.explained, self.share))

    @property
    def cpr(self) -> float:
        """Area under the curve at the sizes of MIB, by trapezoids over the share kept. MIB ranks by signed score for
        it: `settings["signed"]` says how this curve was ranked, and tables show CPR for such a ranking only."""
        at = np.interp(SHARES, self.share, self.explained)
        return float(np.trapezoid(at, SHARES))

    @property
    def cmd(self) -> float:
        """Area between the curve and 1 at the sizes of MIB, which ranks by absolute score for it; so do the tables."""
        at = np.interp(SHARES, self.share, self.explained)
        return float(np.trapezoid(np.abs(1 - at), SHARES))


def resampled(n: int, resamples: int, seed: int) -> list[np.ndarray]:
    """Prompts drawn with replacement, as row numbers, once per resample: the bootstrap behind every interval."""
    draw = np.random.default_rng(seed)
    return [draw.integers(n, size=n) for _ in range(resamples)]


def _effect(metrics: np.ndarray, clean: np.ndarray, corrupt: np.ndarray, rows: Any) -> np.ndarray:
    base = corrupt[rows].mean()
    # Where there is no effect to explain, the answer is NaN.
    with np.errstate(divide="ignore", invalid="ignore"):
        return (metrics[:, rows].mean(axis=1) - base) / (clean[rows].mean() - base)
