"""What head and edge studies do with their curves: compare series by their multipliers, and write tables."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from headscope.records import Curve, Multiplier, multiplier, needed
from headscope.records.files import write_bytes
from headscope.report.figures.panels import Ratio, save_figure, segments_of
from headscope.runs.run import Run


@dataclass(frozen=True)
class Compared:
    """Two series on a task, by their labels, and the multiplier of the first over the second."""

    task: str
    first: str
    against: str
    ranking: str
    found: Multiplier

    def as_dict(self) -> dict[str, Any]:
        return {"task": self.task, "first": self.first, "against": self.against, **asdict(self.found)}


def compare(curves: list[Curve], threshold: float) -> list[Compared]:
    """On every task, of several models the first with each other one by the same method and ranking, of one model the
    first series with each other one."""
    several = len({curve.model for curve in curves}) > 1
    groups: dict[tuple[str, ...], list[Curve]] = {}
    for curve in curves:
        same = (curve.method, curve.settings["ranking"]) if several else ()
        groups.setdefault((curve.task, *same), []).append(curve)
    return [
        Compared(c.task, group[0].label, c.label, c.settings["ranking"], multiplier(group[0], c, threshold=threshold))
        for group in groups.values()
        for c in group[1:]
    ]


def save_figures(run: Run, figures: Mapping[str, Figure], formats: Iterable[str]) -> list[Path]:
    """Each figure in each format as a file of the run."""
    paths = []
    for name, figure in figures.items():
        for ending in formats:
            paths.append(save_figure(figure, run.path(f"{name}.{ending}")))
            run.add(f"{name}.{ending}")
    return paths


def segments(curves: list[Curve], compared: list[Compared]) -> dict[str, tuple[float, float, float]]:
    """By task, where two curves reach the threshold and their multiplier; nothing where there are more than two."""
    found = [Ratio(c.task, c.first, c.against, c.found.dense_k, c.found.sparse_k, c.found.value) for c in compared]
    return segments_of(curves, found)


CURVE_COLUMNS = "model task method ranking k explained low high"
RATIO_COLUMNS = "task first against multiplier low high first_k second_k threshold note"


def curve_rows(curves: list[Curve]) -> list[tuple]:
    return [
        (c.model, c.task, c.method, c.settings["ranking"], int(k), f"{mid:.6g}", f"{low:.6g}", f"{high:.6g}")
        for c in curves
        for k, mid, low, high in zip(c.k, c.explained, c.low, c.high, strict=True)
    ]


def ratio_rows(compared: list[Compared]) -> list[tuple]:
    rows = []
    for c in compared:
        m = c.found
        rows.append((c.task, c.first, c.against, m.value, m.low, m.high, m.dense_k, m.sparse_k, m.threshold, m.note))
    return rows


def write_tables(run: Run, tables: dict[str, tuple[str, list[tuple]]]) -> None:
    """CSV files of a run: by name, the columns and the rows."""
    for name, (columns, rows) in tables.items():
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(columns.split())
        writer.writerows(rows)
        write_bytes(run.path(name), text.getvalue().encode())
        run.add(name)


def table_of(rows: list[dict[str, Any]]) -> tuple[str, list[tuple]]:
    """Columns and rows of records that have the same keys."""
    return " ".join(rows[0]) if rows else "", [tuple(row.values()) for row in rows]


def summary(curve: Curve, threshold: float) -> dict[str, Any]:
    """One curve in a few numbers. As in MIB, a ranking by signed score gives CPR, one by absolute score CMD."""
    about, need = curve.settings, needed(curve, threshold=threshold)
    signed = about["signed"]
    return {
        "model": curve.model, "task": curve.task, "method": curve.method, "ranking": about["ranking"],
        "choice": about.get("choice", "top"), "signed": signed, "total": about["total"], "threshold": threshold,
        "k_at_threshold": need.k, "k_low": need.low, "k_high": need.high, "at_none": float(curve.explained[0]),
        "at_all": float(curve.explained[-1]), "area": curve.area, "cpr": curve.cpr if signed else None,
        "cmd": None if signed else curve.cmd,
    }  # fmt: skip
