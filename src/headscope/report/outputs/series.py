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
from headscope.report.outputs.outputs import Draw, Outputs


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
    def summaries(self) -> list[dict[str, Any]]:
        return [summary(curve, self.threshold) for curve in [*self.curves, *self.bands]]

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
            "multipliers": [compared.as_dict() for compared in self.compared],
            "figures": self.drawn,
        }  # fmt: skip


def compare(curves: Sequence[Curve], threshold: float) -> list[Compared]:
    several = len({curve.model for curve in curves}) > 1
    groups: dict[tuple[str, ...], list[Curve]] = {}
    for curve in curves:
        same = (curve.method, curve.settings["ranking"]) if several else ()
        groups.setdefault((curve.task, *same), []).append(curve)
    return [
        Compared(
            c.task, group[0].label, c.label, c.settings["ranking"], multiplier(group[0], c, threshold=threshold),
            multiplier(group[0], c, threshold=threshold, stays=True), area_multiplier(group[0], c),
        )
        for group in groups.values()
        for c in group[1:]
    ]  # fmt: skip


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
