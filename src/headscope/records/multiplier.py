"""How many heads (or edges) a curve needs, and the multiplier between two curves: at one threshold, at many, and over
all of them.

Shape letters: S resamples, P points of a curve, Q thresholds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from headscope.records.curve import Curve, log_areas
from headscope.records.record import Record
from headscope.records.showing import Shown

# From half of the effect to nearly all of it.
THRESHOLDS = tuple(round(0.5 + 0.02 * step, 2) for step in range(25))


@dataclass(frozen=True)
class Multiplier(Shown):
    """How many times more heads the dense curve needs than the sparse one to reach the threshold.

    value is None where a curve never gets there; `note` says so, and whether a curve dips below again afterwards.
    low and high bound it over resampled prompts; `reached` is the share of resamples in which both curves got there.
    threshold is None where the multiplier is over all thresholds (`area_multiplier`).
    """

    value: float | None
    low: float | None
    high: float | None
    threshold: float | None
    dense_k: float | None
    sparse_k: float | None
    reached: float
    note: str

    def __str__(self) -> str:
        if self.value is None:
            return f"not reached ({self.note})"
        interval = "" if self.low is None else f" [{self.low:.2f}, {self.high:.2f}]"
        return f"{times(self.value)}{interval}" + (f" ({self.note})" if self.note else "")


def times(ratio: float) -> str:
    """A multiplier with two digits that say something, however small it is."""
    return f"{ratio:.2f}x" if ratio >= 0.1 else f"{ratio:.2g}x"


def multiplier(
    dense: Curve, sparse: Curve, *, threshold: float = 0.9, stays: bool = False, resamples: int = 1000, seed: int = 0
) -> Multiplier:
    """(heads the dense curve needs) / (heads the sparse curve needs), each where it first reaches the threshold.

    Crossings are interpolated linearly; below 1 the sparse one needs more. The prompts of both curves are resampled
    together if they are as many, separately otherwise.

    Args:
        dense: the curve of the dense model.
        sparse: the curve of the sparse one.
        threshold: explained effect to reach.
        stays: each where it reaches the threshold for good, instead.
        resamples: bootstrap draws of the prompts.
        seed: of those draws.

    Returns:
        The ratio with its interval.
    """
    dense_k, sparse_k = (crossing(curve.k, curve.explained, threshold, stays=stays) for curve in (dense, sparse))
    dense_SP, sparse_SP = _together(dense, sparse, resamples, seed)
    ratios = _ratios(_crossings(dense.k, dense_SP, threshold, stays), _crossings(sparse.k, sparse_SP, threshold, stays))
    notes = []
    for name, curve, at in (("first", dense, dense_k), ("second", sparse, sparse_k)):
        label = f"{name} curve, {curve.label},"
        if at is None and stays and curve.explained.max() >= threshold:
            notes.append(f"{label} ends at {curve.explained[-1]:.2f}")
        elif at is None:
            notes.append(f"{label} peaks at {curve.explained.max():.2f}")
        elif (curve.explained[curve.k > at] < threshold).any():
            notes.append(f"{label} dips below {threshold:g} again")
    value = None if dense_k is None or sparse_k is None else _ratio(dense_k, sparse_k)
    low, high = np.percentile(ratios, [2.5, 97.5]) if len(ratios) and value is not None else (None, None)
    share = len(ratios) / len(dense_SP) if len(dense_SP) else 0.0
    if value is not None and (why := _no_interval(dense, sparse)):
        low = high = None
        notes.append(why)
    elif value is not None and share < 0.975:
        notes.append(f"only {share:.0%} of resamples reach it")
    return Multiplier(value, low, high, threshold, dense_k, sparse_k, share, "; ".join(notes))


@dataclass(frozen=True)
class Multipliers(Record):
    """The multiplier between two curves as a function of the threshold; NaN where a curve does not get there."""

    missing: ClassVar = dict.fromkeys(("values", "low", "high"), "a curve does not reach the threshold")
    dense: str  # labels of the curves
    sparse: str
    task: str
    thresholds: Annotated[np.ndarray, "Q"]
    values: Annotated[np.ndarray, "Q"]
    low: Annotated[np.ndarray, "Q"]
    high: Annotated[np.ndarray, "Q"]
    reached: Annotated[np.ndarray, "Q"]  # share of the resamples in which both curves got there
    stays: bool = False

    COLUMNS = "task dense sparse threshold multiplier low high reached"

    def rows(self) -> list[tuple[Any, ...]]:
        """The rows of its table.

        Returns:
            One per threshold, as COLUMNS says.
        """
        numbers = zip(self.thresholds, self.values, self.low, self.high, self.reached, strict=True)
        return [(self.task, self.dense, self.sparse, *map(float, row)) for row in numbers]


def multipliers(
    dense: Curve, sparse: Curve, *, thresholds: tuple[float, ...] = THRESHOLDS, stays: bool = False,
    resamples: int = 1000, seed: int = 0,
) -> Multipliers:  # fmt: skip
    """`multiplier` at every threshold, with its interval, all from the same resamples.

    Args:
        dense: the curve of the dense model.
        sparse: the curve of the sparse one.
        thresholds: explained effects to reach.
        stays: where each is reached for good.
        resamples: bootstrap draws of the prompts.
        seed: of those draws.

    Returns:
        Values and ends of intervals by threshold, (Q,) each.
    """
    dense_SP, sparse_SP = _together(dense, sparse, resamples, seed)
    rows = []
    for threshold in thresholds:
        at = [
            _crossings(curve.k, np.concatenate([curve.explained[None], again_SP]), threshold, stays)
            for curve, again_SP in ((dense, dense_SP), (sparse, sparse_SP))
        ]
        whole, ratios = _ratios(at[0][:1], at[1][:1]), _ratios(at[0][1:], at[1][1:])
        wide = len(whole) and len(ratios) and not _no_interval(dense, sparse)
        ends = np.percentile(ratios, [2.5, 97.5]) if wide else (np.nan, np.nan)
        share = len(ratios) / len(dense_SP) if len(dense_SP) else 0.0
        rows.append((threshold, whole[0] if len(whole) else np.nan, *ends, share))
    return Multipliers(dense.label, sparse.label, dense.task, *np.array(rows).T, stays=stays)


def area_multiplier(dense: Curve, sparse: Curve, *, resamples: int = 1000, seed: int = 0) -> Multiplier:
    """How much earlier the sparse curve rises on a log axis: the geometric mean of the multiplier over all thresholds
    between 0 and 1,

        exp(area above the dense curve over ln k - area above the sparse curve over ln k).

    Dips and jumps count for as long as they last, and no crossing has to be found. dense_k and sparse_k are the
    geometric means of the heads needed. A curve that ends below 1 is counted up to its last point, and said so.

    Args:
        dense: the curve of the dense model.
        sparse: the curve of the sparse one.
        resamples: bootstrap draws of the prompts.
        seed: of those draws.

    Returns:
        The ratio with its interval; its threshold is None.
    """
    areas = [log_areas(curve.k, curve.explained[None])[0] for curve in (dense, sparse)]
    dense_SP, sparse_SP = _together(dense, sparse, resamples, seed)
    ratios = np.exp(log_areas(dense.k, dense_SP) - log_areas(sparse.k, sparse_SP))
    # (A draw of prompts without an effect has no curve.)
    ratios = ratios[np.isfinite(ratios)]
    why = _no_interval(dense, sparse)
    low, high = np.percentile(ratios, [2.5, 97.5]) if len(ratios) and not why else (None, None)
    notes = [why] if why else []
    notes += [
        f"{name} curve, {curve.label}, ends at {curve.explained[-1]:.2f}"
        for name, curve in (("first", dense), ("second", sparse))
        if curve.explained[-1] < 0.99
    ]
    dense_k, sparse_k = (float(np.exp(area)) for area in areas)
    share = len(ratios) / len(dense_SP) if len(dense_SP) else 0.0
    return Multiplier(dense_k / sparse_k, low, high, None, dense_k, sparse_k, share, "; ".join(notes))


@dataclass(frozen=True)
class Needed(Shown):
    """How many heads (or edges) a curve needs to reach a threshold, and between which numbers that lies over resampled
    prompts. k is None where the curve never gets there, low or high where such a share of the resamples does not; note
    says why there is no interval, where prompts cannot tell."""

    k: float | None
    low: float | None
    high: float | None
    note: str = ""

    def __str__(self) -> str:
        if self.k is None:
            return "not reached"
        if self.note:
            return f"{_count(self.k)} ({self.note})"
        low, high = ("never" if end is None else _count(end) for end in (self.low, self.high))
        return f"{_count(self.k)} ({low}-{high})"


def needed(
    curve: Curve, *, threshold: float = 0.9, stays: bool = False, resamples: int = 1000, seed: int = 0
) -> Needed:
    """Where a curve first reaches the threshold, with a 95 % bootstrap interval.

    Args:
        curve: of heads or edges.
        threshold: explained effect to reach.
        stays: where it is reached for good.
        resamples: bootstrap draws of the prompts.
        seed: of those draws.

    Returns:
        How many heads (or edges), and between which numbers that lies.
    """
    whole = crossing(curve.k, curve.explained, threshold, stays=stays)
    if curve.no_interval:
        return Needed(whole, None, None, curve.no_interval)
    k_S = _crossings(curve.k, curve.effects(resamples, seed), threshold, stays)
    # Without interpolation, because there is none between a number and "never".
    ends = np.percentile(k_S, [2.5, 97.5], method="nearest") if len(k_S) else [np.inf, np.inf]
    low, high = (float(end) if np.isfinite(end) else None for end in ends)
    return Needed(whole, low, high)


def _no_interval(dense: Curve, sparse: Curve) -> str:
    """Why prompts cannot tell how sure a ratio is: those of neither curve differ."""
    return dense.no_interval if sparse.no_interval else ""


def _together(dense: Curve, sparse: Curve, resamples: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Both curves over drawn prompts, (S, P) each: the same draws where they have as many prompts, halved alike."""
    paired = len(dense.clean) == len(sparse.clean) and _same(dense.half, sparse.half)
    first, second = dense.effects(resamples, seed), sparse.effects(resamples, seed if paired else seed + 1)
    # (A curve that came with its own draws has as many as it was asked for then.)
    count = min(len(first), len(second))
    return first[:count], second[:count]


def _same(one: np.ndarray | None, other: np.ndarray | None) -> bool:
    return one is other if one is None or other is None else np.array_equal(one, other)


def _crossings(k: np.ndarray, effects_SP: np.ndarray, threshold: float, stays: bool) -> np.ndarray:
    """Where the curve of each resample reaches the threshold, (S,); infinite where it does not."""
    crossings = [crossing(k, effect_P, threshold, stays=stays) for effect_P in effects_SP]
    return np.array([np.inf if at is None else at for at in crossings])


def _count(k: float) -> str:
    return f"{k:.1f}" if k < 100 else f"{k:,.0f}"


def crossing(k: np.ndarray, explained: np.ndarray, threshold: float, *, stays: bool = False) -> float | None:
    """The number of heads at which a curve first reaches the threshold, or from which on it stays there; between points
    by a straight line."""
    above = explained >= threshold
    if not (above[-1] if stays else above.any()):
        return None
    at = int(len(above) - above[::-1].argmin() if not above.all() else 0) if stays else int(above.argmax())
    if at == 0:
        return float(k[0])
    rise = explained[at] - explained[at - 1]
    return float(k[at - 1] + (threshold - explained[at - 1]) / rise * (k[at] - k[at - 1]))


def _ratio(dense_k: float, sparse_k: float) -> float:
    # A curve that starts above the threshold needs no head at all; counted as one, so that there is a ratio.
    return max(dense_k, 1.0) / max(sparse_k, 1.0)


def _ratios(dense_S: np.ndarray, sparse_S: np.ndarray) -> np.ndarray:
    """Ratios of the resamples in which both curves got there."""
    both_S = np.isfinite(dense_S) & np.isfinite(sparse_S)
    return np.array([_ratio(a, b) for a, b in zip(dense_S[both_S], sparse_S[both_S], strict=True)])
