"""A run's figures drawn again from its records: at the width of a paper's column, in another format, or only some."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import networkx
import numpy as np
from matplotlib.figure import Figure

from headscope.errors import InputError
from headscope.records import Ablation, Attention, Curve, Roles, Scores
from headscope.report.command import THRESHOLD
from headscope.report.figures.circuits import circuit_picture
from headscope.report.figures.functions import function_panels, panels_of
from headscope.report.figures.panels import (
    FORMATS,
    Ratio,
    by_task,
    curve_figures,
    curve_panels,
    head_grid,
    head_map,
    save_figure,
    segments_of,
)
from headscope.report.figures.roles import ablation_grid, role_map, score_distributions
from headscope.report.figures.sparsity import open_heads
from headscope.report.reading import Reading

# A figure is drawn when it is asked for, at a width in inches or at its own (None).
Draw = Callable[..., Figure]
INCHES = {"in": 1.0, "cm": 1 / 2.54, "mm": 1 / 25.4, "pt": 1 / 72}
NARROWEST, WIDEST = 1.5, 40.0


def redraw(
    folder: Path, out: Path, *, formats: Sequence[str], width: float | None = None, only: Sequence[str] | None = None
) -> list[Path]:
    """Draw figures of a run into the folder `out`; with a width in inches, files are exactly that wide."""
    if unknown := [name for name in formats if name not in FORMATS]:
        raise InputError(f"Unknown format {unknown[0]!r}. Known: {', '.join(FORMATS)}.")
    known = figures_of(folder)
    if unknown := [name for name in only or () if name not in known]:
        raise InputError(f"{folder} has no figure {unknown[0]!r}. It has: {', '.join(known)}.")
    paths = []
    for name in only or known:
        figure = known[name](width=width)
        paths += [save_figure(figure, out / f"{name}.{ending}", exact=width is not None) for ending in formats]
    return paths


def inches(text: str) -> float:
    """3.25in, 8cm, 85mm or 240pt in inches."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(in|cm|mm|pt)\s*", text)
    width = float(found[1]) * INCHES[found[2]] if found else 0.0
    if not NARROWEST <= width <= WIDEST:
        raise InputError(
            f"--width: expected a width such as 3.25in, 8cm, 85mm or 240pt, from {NARROWEST:g} to {WIDEST:g} inches; "
            f"found {text!r}."
        )
    return width


def figures_of(folder: Path) -> dict[str, Draw]:
    """What can be drawn of a run, by the names of its files. Figures need all of their records: one that is missing or
    damaged is told."""
    if not (folder / "manifest.json").exists():
        raise InputError(f"{folder} is no run: expected a folder with manifest.json.")
    run = Reading(folder)
    command = run.manifest["command"]
    if command and command not in FIGURES:
        raise InputError(f"{folder} is a run of {command!r}, which has no figures. Known: {', '.join(FIGURES)}.")
    figures = FIGURES[command](run) if command else {}
    if run.notes:
        raise InputError(f"{folder}: {run.notes[0]} Give the run's command again to have it made.")
    if not figures:
        raise InputError(f"{folder} has nothing to draw yet. Give the run's command again to go on with it.")
    return figures


def _curves(run: Reading, **options: Any) -> dict[str, Draw]:
    curves = list(run.records("curve-", Curve).values())
    bands = list(run.records("band-", Curve).values())
    rows = run.rows("multipliers.csv")
    # (Earlier runs compared all series with the first one, and did not name it.)
    first = {task: group[0].label for task, group in by_task(curves).items()}
    ends = [(row.get("first") or first.get(row["task"], ""), row["against"]) for row in rows]
    ratios = [
        Ratio(row["task"], *labels, row["first_k"], row["second_k"], row["multiplier"])
        for row, labels in zip(rows, ends, strict=True)
    ]
    threshold = next((row["threshold"] for row in [*rows, *run.rows("summary.csv")]), THRESHOLD)
    return {
        name: partial(
            curve_panels, by_task(part), bands=by_task(bands), segments=segments_of(part, ratios), threshold=threshold,
            **options,
        )
        for name, part in (curve_figures(curves) if curves else {}).items()
    }  # fmt: skip


def _heads(run: Reading) -> dict[str, Draw]:
    scores = run.records("scores-", Scores).values()
    maps = {f"heads-{s.model}-{s.task}-{s.method}": partial(head_map, s, label=s.ranked()[:10]) for s in scores}
    return _curves(run) | maps


def _edges(run: Reading) -> dict[str, Draw]:
    pictures: dict[str, Draw] = {}
    for name in run.names("circuit-", ".json"):
        data = run.json(name)
        if data is not None:
            circuit = run.made(name, lambda data=data: networkx.node_link_graph(data, edges="links"))
            pictures[name.removesuffix(".json")] = partial(circuit_picture, circuit or networkx.DiGraph())
    return _curves(run, what="Edges", log=True) | pictures


@dataclass(frozen=True)
class Noted:
    """A check as its file says it."""

    model: str
    task: str
    accuracy: float
    usable: bool = True


def _roles(run: Reading) -> dict[str, Draw]:
    found = [run.json(name) for name in run.names("check-", ".json")]
    checks = [Noted(one["model"], one["task"], one["accuracy"]) for one in found if isinstance(one, dict)]
    roles = list(run.records("roles-", Roles).values())
    ablations = list(run.records("ablation-", Ablation).values())
    figures: dict[str, Draw] = {"ablation": partial(ablation_grid, checks, ablations)} if checks else {}
    if roles:
        figures["scores"] = partial(score_distributions, roles)
    return figures | {f"map-{r.model}-{r.task}": partial(role_map, r) for r in roles}


def _functions(run: Reading) -> dict[str, Draw]:
    tables = run.json("functions.json") if "functions.json" in run.manifest["files"] else None
    if not isinstance(tables, dict):
        return {}
    said, settings = str(tables.get("comet") or ""), run.manifest["settings"]
    note = "" if said.startswith("COMET by") else said
    figures: dict[str, Draw] = {}
    for ranking in settings.get("rankings", []):
        model = next((s.model for s in run.records(f"scores-{ranking}-", Scores).values()), settings.get("model", ""))
        panels = run.made("functions.json", partial(panels_of, ranking, tables["sweep"], tables["base"]))
        title = f"{model}, heads by {ranking}, {settings.get('n')} questions each"
        figures[f"functions-{ranking}"] = partial(function_panels, panels or [], title=title, note=note)
    return figures


def _sparsity(run: Reading) -> dict[str, Draw]:
    figures: dict[str, Draw] = {}
    report, rows = run.json("report.json"), run.rows("connectivity.csv")
    if rows and isinstance(report, dict):
        rates = np.zeros((1 + max(row["layer"] for row in rows), 1 + max(row["index"] for row in rows)))
        for row in rows:
            rates[row["layer"], row["index"]] = row["connectivity"]

        def connectivity(*, width: float | None = None) -> Figure:
            title = f"{report['sparse']}: attention edges that are open"
            limits = (0.0, float(rates.max()))
            return head_grid(rates, title=title, colours="Blues", limits=limits, scale="Share", width=width)[0]

        figures["connectivity"] = connectivity
    both = list(run.records("attention-", Attention).values())
    if len(both) == 2:
        figures["attention"] = partial(open_heads, *both)
    return figures


FIGURES: dict[str, Callable[[Reading], dict[str, Draw]]] = {
    "heads": _heads, "edges": _edges, "roles": _roles, "functions": _functions, "sparsify-report": _sparsity,
}  # fmt: skip
