"""Explained effect against the number of heads (or edges) kept.

    EE(C) = (m(C) - m(base)) / (m(clean) - m(base))

m is the mean metric over prompts: a ratio of means, not a mean of ratios. The base is the corrupt run, or the circuit
that keeps nothing (`baseline`), from which every curve starts at 0. Intervals are bootstrap intervals over prompts: the
prompts alone are drawn again, or the ranking with them (`drawn`).

Shape letters: P points of the curve, N prompts, S resamples.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar

import numpy as np

from headscope.errors import InputError
from headscope.records.record import Record
from headscope.records.scores import EdgeScores, Scores

# Circuit sizes, as shares of all components, at which the field compares curves (MIB).
SHARES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
# What an explained effect of 0 is: the metric of the corrupt run, or of the circuit that keeps nothing.
BASELINES = ("corrupt", "empty")


@dataclass(frozen=True)
class Curve(Record):
    """Explained effect against the number of heads kept, with an interval over prompts."""

    missing: ClassVar = {
        **dict.fromkeys(("explained", "drawn"), "clean and base metric are the same: there is no effect to explain"),
        **dict.fromkeys(("low", "high"), "no effect to explain, or no interval: one prompt, or all prompts are equal"),
    }
    model: str
    task: str
    method: str
    k: Annotated[np.ndarray, "P"]
    explained: Annotated[np.ndarray, "P"]
    low: Annotated[np.ndarray, "P"]
    high: Annotated[np.ndarray, "P"]
    metrics: Annotated[np.ndarray, "P N"]  # the metric of every prompt at every k
    clean: Annotated[np.ndarray, "N"]
    corrupt: Annotated[np.ndarray, "N"]
    settings: dict[str, Any] = field(default_factory=dict)
    # Which half each prompt was in, where one half is ranked by the other's scores; drawn again apart.
    half: Annotated[np.ndarray, "N"] | None = None
    # The curve over drawn prompts, each ranked by the scores of those prompts.
    drawn: Annotated[np.ndarray, "S P"] | None = None

    @classmethod
    def of(
        cls, scores: Scores | EdgeScores, k: np.ndarray, metrics: np.ndarray, clean: np.ndarray, corrupt: np.ndarray, *,
        resamples: int, seed: int, half: np.ndarray | None = None, **settings: Any,
    ) -> Curve:  # fmt: skip
        """The curve of a sweep, with 95 % bootstrap intervals over prompts."""
        about = {"total": int(scores.values.size), "n": len(clean), **settings}
        names, none = (scores.model, scores.task, scores.method), np.empty(0)
        bare = cls(*names, k, none, none, none, metrics, clean, corrupt, about, half)
        whole = replace(bare, explained=bare.effect(slice(None)))
        return whole.bounded(whole.effects(resamples, seed))

    def bounded(self, effects_SP: np.ndarray) -> Curve:
        """The same curve with its interval from these resamples.

        Args:
            effects_SP: the curve once per resample, (S, P).

        Returns:
            A curve whose `low` and `high` are their 2.5th and 97.5th percentile.
        """
        again = effects_SP if len(effects_SP) else self.explained[None]
        low, high = np.percentile(again, [2.5, 97.5], axis=0)
        if self.no_interval:
            low = high = np.full(len(self.k), np.nan)
        return replace(self, low=low, high=high)

    @property
    def no_interval(self) -> str:
        """Why drawing prompts again says nothing of how sure the numbers are: there is one, or all are equal."""
        return no_interval(np.vstack([self.metrics, self.clean, self.corrupt]))

    @property
    def base(self) -> np.ndarray:
        """(N,): the metric of every prompt that counts as an explained effect of 0."""
        if self.settings.get("baseline", "corrupt") == "corrupt":
            return self.corrupt
        if not len(self.k) or self.k[0] != 0:
            raise InputError("A curve relative to the empty circuit needs k = 0 among its points, as its first.")
        return self.metrics[0]

    def effect(self, rows: np.ndarray | slice) -> np.ndarray:
        """Explained effect at every k over the given prompts only.

        Args:
            rows: places of prompts; several draws of them as (draws, N).

        Returns:
            (P,), or of several draws (P, draws).
        """
        base = self.base[rows].mean(axis=-1)
        # Where there is no effect to explain, the answer is NaN.
        with np.errstate(divide="ignore", invalid="ignore"):
            return (self.metrics[:, rows].mean(axis=-1) - base) / (self.clean[rows].mean(axis=-1) - base)

    def effects(self, resamples: int, seed: int) -> np.ndarray:
        """The curve over drawn prompts; the curves it came with where the ranking was drawn again as well.

        Args:
            resamples: how often to draw.
            seed: of the draws.

        Returns:
            (S, P): the explained effect, once per resample.
        """
        if self.drawn is not None:
            return self.drawn
        draws = resampled(len(self.clean), resamples, seed, self.half)
        # (In parts, so that a long curve over many prompts needs little memory.)
        parts = np.array_split(np.array(draws).reshape(-1, len(self.clean)).astype(int), 20)
        return np.concatenate([self.effect(rows_SN).T for rows_SN in parts])

    COLUMNS = "model task method ranking k explained low high"

    def rows(self) -> list[tuple[Any, ...]]:
        """The rows of its table.

        Returns:
            One per k, as COLUMNS says.
        """
        named = (self.model, self.task, self.method, self.settings.get("ranking", "task"))
        points = zip(self.k, self.explained, self.low, self.high, strict=True)
        return [(*named, int(k), float(mid), float(low), float(high)) for k, mid, low, high in points]

    @property
    def what(self) -> str:
        """What is kept: "heads" or "edges", of which a sweep notes how a circuit was chosen."""
        return "edges" if "choice" in self.settings else "heads"

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
    def log_area(self) -> float:
        """Area above the curve over ln k, from one head to all: see `log_areas`."""
        return float(log_areas(self.k, self.explained[None])[0])

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


def log_areas(k: np.ndarray, explained_SP: np.ndarray) -> np.ndarray:
    """Area between curves and 1 over ln k, from k = 1 to the last point, (S,).

    For a curve that only rises it is the mean, over all thresholds between 0 and 1, of the logarithm of the k that
    reaches them, so that its exponential is the geometric mean of the heads needed. Points are taken into 0 to 1 first;
    between them the curve is a straight line in k, as for crossings, and the integral of (a + b k) d ln k is exact.
    """
    kept_SP = np.clip(explained_SP, 0, 1)
    if k[0] < 1:
        at_one_S = np.array([np.interp(1.0, k, row) for row in kept_SP])
        k, kept_SP = np.concatenate([[1.0], k[k > 1]]), np.column_stack([at_one_S, kept_SP[:, k > 1]])
    slope_SP = np.diff(kept_SP) / np.diff(k)
    at_zero_SP = 1 - (kept_SP[:, :-1] - slope_SP * k[:-1])
    return (at_zero_SP * np.diff(np.log(k)) - slope_SP * np.diff(k)).sum(axis=1)


def no_interval(values_KN: np.ndarray, what: str = "prompt") -> str:
    """Why an interval over resampled prompts would have no width: there is one, or all have the same numbers; an empty
    text where there is one. values_KN: a column per prompt."""
    if values_KN.shape[-1] == 1:
        return f"no interval: one {what}"
    return f"no interval: all {what}s are equal" if (values_KN == values_KN[..., :1]).all() else ""


def resampled(n: int, resamples: int, seed: int, half: np.ndarray | None = None) -> list[np.ndarray]:
    """Prompts drawn with replacement, as row numbers, once per resample: the bootstrap behind every interval. Where
    prompts belong to halves, as many are drawn of each as there are."""
    draw = np.random.default_rng(seed)
    if half is None:
        return [draw.integers(n, size=n) for _ in range(resamples)]
    groups = [np.flatnonzero(half == one) for one in np.unique(half)]
    return [np.concatenate([draw.choice(rows, len(rows)) for rows in groups]) for _ in range(resamples)]
