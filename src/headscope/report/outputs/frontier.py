"""What is shown of the sparsity frontier."""

from __future__ import annotations

from functools import cached_property, partial
from typing import Any

from headscope.records import Curve, Needed, Table, needed
from headscope.report.command import THRESHOLD
from headscope.report.figures.frontier import frontier_panels
from headscope.report.figures.titles import task_title
from headscope.report.outputs.outputs import Draw, Outputs


class Frontier(Outputs):
    """A row per point and task, from dense to the sparsest; one figure of them."""

    @property
    def threshold(self) -> float:
        return self.run.shown.get("threshold", THRESHOLD)

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        curves = {
            (what, curve.model, curve.task): curve
            for what in ("heads", "edges")
            for curve in self.run.records(f"curve-{what}-", Curve).values()
        }
        rows = []
        for loss in filter(None, map(self.run.json, self.run.names("loss-", ".json"))):
            for check in self.checks:
                keys = [(what, check.model, check.task) for what in ("heads", "edges")]
                if check.model == loss["point"] and all(key in curves for key in keys):
                    row = {**loss, "task": check.task, "accuracy": check.accuracy}
                    for key in keys:
                        what, need = key[0], needed(curves[key], threshold=self.threshold)
                        ends = {f"{what}_low": need.low, f"{what}_high": need.high}
                        row |= {what: need.k, **ends, f"{what}_note": need.note}
                    rows.append(row)
        return rows

    def sentences(self) -> list[str]:
        if not self.rows:
            return []
        first, last = self.rows[0], self.rows[-1]
        needs = [f"{Needed(row['heads'], row['heads_low'], row['heads_high'])}" for row in (first, last)]
        return [
            f"From {first['point']} to {last['point']} open edges fall from {first['connectivity']:.2%} to "
            f"{last['connectivity']:.2%}, at {last['ce_above_dense']:+.4f} nats; {task_title(last['task'])} needs "
            f"{needs[1]} heads instead of {needs[0]}."
        ]

    def figures(self) -> dict[str, Draw]:
        return {"frontier": partial(frontier_panels, self.rows, self.threshold)} if self.rows else {}

    def tables(self) -> dict[str, Table]:
        return {"frontier": Table.of_dicts(self.rows)}

    def findings(self, *, top: int = 10) -> dict[str, Any]:
        about = {"dense": self.run.manifest["settings"].get("dense"), "threshold": self.threshold}
        return {
            "run": str(self.run.folder),
            "checks": self.told_checks,
            **about,
            "rows": self.rows,
            "figures": self.drawn,
        }
