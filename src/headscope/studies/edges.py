"""The edge study: which edges between components a model uses for a task, and how few of them are enough.

1. Load each model once; make each task with its tokenizer; check how well it does.
2. Score the edges by each method; save the scores.
3. Sweep the number of edges kept, on a log axis; save the curve.
4. Draw the curves of all series (model, method), compare the first with each other one by its multiplier, and draw and
   export the circuit at the threshold.

Every record is a unit of the run folder: a killed run resumes after the last finished one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headscope.curves import Multiplier, crossing, sweep
from headscope.measure import Check
from headscope.methods import edge_method
from headscope.report.circuits import circuit_graph, circuit_picture, export_circuit
from headscope.report.figures import curve_panels, save_figure
from headscope.results import Curve, EdgeScores, Run
from headscope.studies.heads import (
    CURVE_COLUMNS,
    RATIO_COLUMNS,
    by_task,
    compare,
    curve_rows,
    file_hashes,
    ratio_rows,
    segments,
    subjects,
    unit,
    write_tables,
)  # fmt: skip

# Edges listed in edges.csv for each series.
LISTED = 1000


@dataclass(frozen=True)
class EdgeStudy:
    """What the edge study found; `circuits` says of each circuit how many edges it chose and how many connect."""

    folder: Path
    checks: list[Check]
    scores: list[EdgeScores]
    curves: list[Curve]
    multipliers: list[tuple[str, str, Multiplier]]
    circuits: list[dict[str, Any]]
    figures: list[Path]


def study_edges(
    models: list[str], tasks: list[str], *, out: Path, methods: Iterable[str] = ("eap-ig",), split: str = "none",
    n: int = 50, seed: int = 0, signed: bool = False, threshold: float = 0.9,
    formats: Iterable[str] = ("png", "svg", "pdf"),
) -> EdgeStudy:  # fmt: skip
    """Run the study, or go on with it, in the folder `out`."""
    methods, formats = list(methods), list(formats)
    score = {name: edge_method(name) for name in methods}
    settings = {
        "models": models, "tasks": tasks, "methods": methods, "split": split, "n": n, "seed": seed, "signed": signed,
        **file_hashes(tasks),
    }  # fmt: skip
    run = Run.open(out, command="edges", settings=settings)
    checks, all_scores, curves = [], [], []
    for model, task, stem, found in subjects(run, models, tasks, n=n, seed=seed):
        checks.append(found)
        for method_name in methods:
            part = f"{stem}-{method_name}"
            make = lambda m=method_name, mo=model, t=task: score[m](mo, t, split=split)  # noqa: E731
            scores = unit(run, f"edges-{part}", EdgeScores, make)
            all_scores.append(scores)
            make = lambda mo=model, t=task, s=scores: sweep(mo, t, s, signed=signed)  # noqa: E731
            curves.append(unit(run, f"curve-{part}", Curve, make))
    compared = compare(curves, threshold)
    panels = curve_panels(
        by_task(curves), bands={}, segments=segments(curves, compared), threshold=threshold, what="Edges", log=True
    )
    figures = [save_figure(panels, run.path(f"curves.{ending}")) for ending in formats]
    circuits = []
    for scores, curve in zip(all_scores, curves, strict=True):
        if "random" not in scores.method:
            circuits.append(_circuit(run, scores, curve, threshold, formats, figures))
    for path in figures:
        run.add(path.name)
    listed = [
        (s.model, s.task, s.method, rank, name, f"{value:.6g}")
        for s in all_scores
        for rank, (name, value) in enumerate(s.top(LISTED, signed=signed), 1)
    ]
    tables: dict[str, tuple[str, list[tuple]]] = {
        "edges.csv": ("model task method rank edge score", listed),
        "curves.csv": (CURVE_COLUMNS, curve_rows(curves)),
        "multipliers.csv": (RATIO_COLUMNS, ratio_rows(compared)),
    }
    write_tables(run, tables)
    run.finish()
    return EdgeStudy(run.folder, checks, all_scores, curves, compared, circuits, figures)


def _circuit(
    run: Run, scores: EdgeScores, curve: Curve, threshold: float, formats: list[str], figures: list[Path]
) -> dict[str, Any]:
    """Draw and export the circuit that reaches the threshold (all edges if none does)."""
    at = crossing(curve.k, curve.explained, threshold)
    k = len(scores.graph) if at is None else math.ceil(at)
    circuit = circuit_graph(scores, k)
    name = f"circuit-{scores.model}-{scores.task}-{scores.method}"
    for path in export_circuit(circuit, run.path(name)):
        run.add(path.name)
    picture = circuit_picture(circuit)
    figures += [save_figure(picture, run.path(f"{name}.{ending}")) for ending in formats]
    facts = circuit.graph
    return {key: facts[key] for key in ("model", "task", "method", "chosen")} | {"connected": facts["kept"]}
