"""What head and edge studies share: curves of all series (model, method, ranking), each in a few numbers, and compared
by their multipliers: of several models the first with each other one by the same method and ranking, of one model the
first series with each other one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np

from headscope.records import Curve, EdgeScores, Multiplier, Scores, Table, area_multiplier, multiplier, needed
from headscope.report.command import THRESHOLD
from headscope.report.figures.panels import by_task, curve_panels
from headscope.report.figures.titles import task_title
from headscope.report.outputs.outputs import Draw, Outputs, listed


@dataclass(frozen=True)
class Compared:
    """Two series on a task, by their labels, and the multiplier of the first over the second."""

    task: str
    first: str
    against: str
    ranking: str
    found: Multiplier
    stays: Multiplier  # where each curve stays above the threshold
    mean: Multiplier  # over all thresholds

    def as_dict(self) -> dict[str, Any]:
        about = {"task": self.task, "first": self.first, "against": self.against, "ranking": self.ranking}
        return {**about, **asdict(self.found), "stays": asdict(self.stays), "mean": asdict(self.mean)}


class Series(Outputs):
    """what: "head" or "edge". log: whether their number stands on a log axis."""

    what = ""
    log = False

    @cached_property
    def scores(self) -> Sequence[Scores | EdgeScores]:
        raise NotImplementedError

    @cached_property
    def curves(self) -> list[Curve]:
        return list(self.run.records("curve-", Curve).values())

    @cached_property
    def bands(self) -> list[Curve]:
        return list(self.run.records("band-", Curve).values())

    @property
    def threshold(self) -> float:
        return self.run.shown.get("threshold", THRESHOLD)

    @cached_property
    def compared(self) -> list[Compared]:
        return compare(self.curves, self.threshold)

    @cached_property
    def against_random(self) -> list[Compared]:
        """How many times more a ranking at random needs than each series of the same model and task."""
        chance = {(c.model, c.task): c for c in [*self.curves, *self.bands] if c.method.startswith("random")}
        pairs = [(chance.get((c.model, c.task)), c) for c in self.curves if not c.method.startswith("random")]
        return [compared(first, c, self.threshold) for first, c in pairs if first is not None]

    @cached_property
    def summaries(self) -> list[dict[str, Any]]:
        return [summary(curve, self.threshold) for curve in [*self.curves, *self.bands]]

    def sentences(self) -> list[str]:
        """Of the first series: how few are enough and which come first; between which numbers that lies; and what a
        ranking at random, or the other model, needs."""
        curve = next((c for c in self.curves if not c.method.startswith("random")), None)
        if curve is None or self.unusable:
            return self.unusable[:3]
        mine = [s for s in self.scores if (s.model, s.task, s.method) == (curve.model, curve.task, curve.method)]
        best, task = [name for s in mine for name, _ in s.top(3)], task_title(curve.task)
        need, total = needed(curve, threshold=self.threshold), f"{curve.settings['total']:,} {self.what}s"
        share = f"{self.threshold:.0%} of the effect of {task} in {curve.model}"
        if need.k is None:
            return [f"No number of the {total} explains {share}: the curve peaks at {curve.explained.max():.2f}."]
        said = [f"The best {need.k:,.1f} of {total} explain {share}, {listed(best)} first."]
        ends = [f"{end:,.1f}" if end is not None else "never" for end in (need.low, need.high)]
        sure = f"Over resampled prompts ({len(curve.clean)}) that number lies between {ends[0]} and {ends[1]} (95 %)"
        others = [c for c in self.curves if c.task != curve.task and c.label == curve.label]
        more = [f"{needed(c, threshold=self.threshold)} on {task_title(c.task)}" for c in others]
        said.append(f"{sure}; it is {listed(more)}." if more else f"{sure}.")
        same = [pair for pair in (*self.against_random, *self.compared) if pair.task == curve.task]
        if same and same[0].found.value is not None:
            first = "A ranking at random" if "random" in same[0].first else same[0].first
            said.append(f"{first} needs {same[0].found} as many as {same[0].against}.")
        return said

    def figures(self) -> dict[str, Draw]:
        return {
            name: partial(
                curve_panels, by_task(part), bands=by_task(self.bands), segments=segments(part, self.compared),
                threshold=self.threshold, what=f"{self.what.capitalize()}s", log=self.log,
            )
            for name, part in curve_figures(self.curves).items()
        }  # fmt: skip

    def tables(self) -> dict[str, Table]:
        points = [row for curve in [*self.curves, *self.bands] for row in curve.rows()]
        ratios = [
            (
                c.task, c.first, c.against, m.value, m.low, m.high, m.dense_k, m.sparse_k, m.threshold, m.note,
                *(number for one in (c.stays, c.mean) for number in (one.value, one.low, one.high)),
            )
            for c in self.compared
            for m in (c.found,)
        ]  # fmt: skip
        columns = (
            "task first against multiplier low high first_k second_k threshold note stays stays_low stays_high mean "
            "mean_low mean_high"
        )
        return {
            "summary": Table.of_dicts(self.summaries),
            "curves": Table.of(Curve.COLUMNS, points, floats=".6g"),
            "multipliers": Table.of(columns, ratios),
        }

    def findings(self, *, top: int = 10) -> dict[str, Any]:
        return {
            "run": str(self.run.folder),
            "checks": self.told_checks,
            "scores": [
                {
                    "model": s.model, "task": s.task, "method": s.method, "n": s.settings.get("n"),
                    "top": [{self.what: name, "score": value} for name, value in s.top(top)],
                }
                for s in self.scores
            ],
            "curves": self.summaries,
            "multipliers": [pair.as_dict() for pair in self.compared],
            "against_random": [pair.as_dict() for pair in self.against_random],
            "figures": self.drawn,
        }  # fmt: skip


def compare(curves: Sequence[Curve], threshold: float) -> list[Compared]:
    several = len({curve.model for curve in curves}) > 1
    groups: dict[tuple[str, ...], list[Curve]] = {}
    for curve in curves:
        same = (curve.method, curve.settings["ranking"]) if several else ()
        groups.setdefault((curve.task, *same), []).append(curve)
    return [compared(group[0], c, threshold) for group in groups.values() for c in group[1:]]


def compared(first: Curve, c: Curve, threshold: float) -> Compared:
    found, stays = (multiplier(first, c, threshold=threshold, stays=stays) for stays in (False, True))
    return Compared(c.task, first.label, c.label, c.settings["ranking"], found, stays, area_multiplier(first, c))


def summary(curve: Curve, threshold: float) -> dict[str, Any]:
    """One curve in a few numbers. As in MIB, a ranking by signed score gives CPR, one by absolute score CMD."""
    about, need = curve.settings, needed(curve, threshold=threshold)
    signed, stays = about["signed"], needed(curve, threshold=threshold, stays=True)
    return {
        "model": curve.model, "task": curve.task, "method": curve.method, "ranking": about["ranking"],
        "choice": about.get("choice", "top"), "signed": signed, "total": about["total"], "threshold": threshold,
        "k_at_threshold": need.k, "k_low": need.low, "k_high": need.high, "note": need.note,
        "at_none": float(curve.explained[0]), "at_all": float(curve.explained[-1]), "area": curve.area,
        "cpr": curve.cpr if signed else None, "cmd": None if signed else curve.cmd, "k_stays": stays.k,
        "k_stays_low": stays.low, "k_stays_high": stays.high, "k_mean": float(np.exp(curve.log_area)),
        "fill": about.get("fill", "corrupt"), "baseline": about.get("baseline", "corrupt"),
        "scored_on": about.get("scored_on", "the same prompts"),
    }  # fmt: skip


def curve_figures(curves: Sequence[Curve]) -> dict[str, list[Curve]]:
    """Which curves stand in which figure: all in `curves`; of several models under several rankings, one a ranking."""
    rankings = dict.fromkeys(curve.settings["ranking"] for curve in curves)
    if len(rankings) < 2 or len({curve.model for curve in curves}) == 1:
        return {"curves": list(curves)} if curves else {}
    return {f"curves-{name}": [curve for curve in curves if curve.settings["ranking"] == name] for name in rankings}


def segments(curves: Sequence[Curve], compared: Sequence[Compared]) -> dict[str, tuple[float, float, float]]:
    """By task, where two curves reach the threshold and their multiplier; nothing where there are more than two."""
    if any(len(group) != 2 for group in by_task(curves).values()):
        return {}
    labels = {curve.label for curve in curves}
    return {
        c.task: (m.dense_k, m.sparse_k, m.value)
        for c in compared
        for m in (c.found,)
        if {c.first, c.against} <= labels and m.dense_k is not None and m.sparse_k is not None and m.value is not None
    }
