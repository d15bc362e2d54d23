"""How many heads (or edges) a curve needs, and the multiplier between two curves.

Shape letters: S resamples.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headscope.records.curve import Curve, resampled


@dataclass(frozen=True)
class Multiplier:
    """How many times more heads the dense curve needs than the sparse one to reach the threshold.

    value is None where a curve never gets there; `note` says so, and whether a curve dips below again afterwards.
    low and high bound it over resampled prompts; `reached` is the share of resamples in which both curves got there.
    """

    value: float | None
    low: float | None
    high: float | None
    threshold: float
    dense_k: float | None
    sparse_k: float | None
    reached: float
    note: str

    def __str__(self) -> str:
        if self.value is None:
            return f"not reached ({self.note})"
        interval = "" if self.low is None else f" [{self.low:.2f}, {self.high:.2f}]"
        return f"{self.value:.2f}x{interval}" + (f" ({self.note})" if self.note else "")


def multiplier(
    dense: Curve, sparse: Curve, *, threshold: float = 0.9, resamples: int = 1000, seed: int = 0
) -> Multiplier:
    """(heads the dense curve needs) / (heads the sparse curve needs), each where it first reaches the threshold.

    Crossings are interpolated linearly; below 1 the sparse one needs more. The prompts of both curves are resampled
    together if they are as many, separately otherwise.
    """
    dense_k, sparse_k = crossing(dense.k, dense.explained, threshold), crossing(sparse.k, sparse.explained, threshold)
    n, m = dense.metrics.shape[1], sparse.metrics.shape[1]
    rows = resampled(n, resamples, seed)
    dense_S = _crossings(dense, rows, threshold)
    sparse_S = _crossings(sparse, rows if n == m else resampled(m, resamples, seed + 1), threshold)
    both_S = np.isfinite(dense_S) & np.isfinite(sparse_S)
    ratios = [_ratio(a, b) for a, b in zip(dense_S[both_S], sparse_S[both_S], strict=True)]
    notes = []
    for name, curve, at in (("first", dense, dense_k), ("second", sparse, sparse_k)):
        label = f"{name} curve, {curve.label},"
        if at is None:
            notes.append(f"{label} peaks at {curve.explained.max():.2f}")
        elif (curve.explained[curve.k > at] < threshold).any():
            notes.append(f"{label} dips below {threshold:g} again")
    value = None if dense_k is None or sparse_k is None else _ratio(dense_k, sparse_k)
    low, high = np.percentile(ratios, [2.5, 97.5]) if ratios and value is not None else (None, None)
    share = len(ratios) / resamples if resamples else 0.0
    if value is not None and share < 0.975:
        notes.append(f"only {share:.0%} of resamples reach it")
    return Multiplier(value, low, high, threshold, dense_k, sparse_k, share, "; ".join(notes))


@dataclass(frozen=True)
class Needed:
    """How many heads (or edges) a curve needs to reach a threshold, and between which numbers that lies over resampled
    prompts. k is None where the curve never gets there, low or high where such a share of the resamples does not."""

    k: float | None
    low: float | None
    high: float | None

    def __str__(self) -> str:
        if self.k is None:
            return "not reached"
        low, high = ("never" if end is None else _count(end) for end in (self.low, self.high))
        return f"{_count(self.k)} ({low}-{high})"


def needed(curve: Curve, *, threshold: float = 0.9, resamples: int = 1000, seed: int = 0) -> Needed:
    """Where a curve first reaches the threshold, with a 95 % bootstrap interval over prompts."""
    k_S = _crossings(curve, resampled(curve.metrics.shape[1], resamples, seed), threshold)
    # Without interpolation, because there is none between a number and "never".
    ends = np.percentile(k_S, [2.5, 97.5], method="nearest") if resamples else [np.inf, np.inf]
    low, high = (float(end) if np.isfinite(end) else None for end in ends)
    return Needed(crossing(curve.k, curve.explained, threshold), low, high)


def _crossings(curve: Curve, rows_S: list[np.ndarray], threshold: float) -> np.ndarray:
    """Where the curve over each draw of prompts reaches the threshold, (S,); infinite where it does not."""
    found = [crossing(curve.k, curve.effect(rows), threshold) for rows in rows_S]
    return np.array([np.inf if at is None else at for at in found])


def _count(k: float) -> str:
    return f"{k:.1f}" if k < 100 else f"{k:,.0f}"


def crossing(k: np.ndarray, explained: np.ndarray, threshold: float) -> float | None:
    """The number of heads at which a curve first reaches the threshold, between points by a straight line."""
    above = np.flatnonzero(explained >= threshold)
    if len(above) == 0:
        return None
    at = above[0]
    if at == 0:
        return float(k[0])
    rise = explained[at] - explained[at - 1]
    return float(k[at - 1] + (threshold - explained[at - 1]) / rise * (k[at] - k[at - 1]))


def _ratio(dense_k: float, sparse_k: float) -> float:
    # A curve that starts above the threshold needs no head at all; counted as one, so that there is a ratio.
    return max(dense_k, 1.0) / max(sparse_k, 1.0)
