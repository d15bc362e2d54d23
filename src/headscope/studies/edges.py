"""The edge study: which edges between components a model uses for a task, and how few of them are enough.

1. Load each model once; make each task with its tokenizer; check how well it does.
2. Score the edges by each method; save the scores.
3. Sweep the number of edges kept, on a log axis; save the curve.
4. Choose the circuit at the threshold, and run it: what does it explain by itself?
5. Draw the curves of all series (model, method), compare them by their multiplier as the head study does, and draw
   and export the circuits.

Every record is a unit of the run folder: a killed run resumes after the last finished one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import networkx

from headscope.methods import edge_method
from headscope.models import Model
from headscope.records import CHOICES, SPLITS, Check, Curve, EdgeScores, crossing
from headscope.report.figures.circuits import circuit_graph, circuit_picture, export_circuit
from headscope.report.figures.panels import FORMATS, by_task, curve_panels, save_figure
from headscope.runs.run import Run
from headscope.studies.heads import (
    CURVE_COLUMNS,
    RATIO_COLUMNS,
    Compared,
    compare,
    curve_rows,
    file_hashes,
    ratio_rows,
    refuse_unknown,
    segments,
    subjects,
    summary,
    table_of,
    unit,
    write_tables,
)  # fmt: skip
from headscope.sweeps import run_circuit, sweep
from headscope.tasks import Task

# Edges listed in edges.csv for each series.
LISTED = 1000


@dataclass(frozen=True)
class EdgeStudy:
    """What the edge study found; `circuits` says of each circuit how many edges were chosen, how many of them connect,
    how many it keeps, and what it explains when it is run."""

    folder: Path
    checks: list[Check]
    scores: list[EdgeScores]
    curves: list[Curve]
    multipliers: list[Compared]
    circuits: list[dict[str, Any]]
    figures: list[Path]


def study_edges(
    models: list[str], tasks: list[str], *, out: Path, methods: Iterable[str] = ("eap-ig",), split: str = "none",
    choice: str = "top", connected: bool = False, n: int = 50, seed: int = 0, signed: bool = False,
    threshold: float = 0.9, points: int | None = None, formats: Iterable[str] = ("png", "svg", "pdf"),
) -> EdgeStudy:  # fmt: skip
    """Run the study, or go on with it, in the folder `out`. points: of a curve at most, if not the usual grid."""
    methods, formats = list(methods), list(formats)
    score = {name: edge_method(name) for name in methods}
    refuse_unknown("format", formats, FORMATS)
    refuse_unknown("split", [split], SPLITS)
    refuse_unknown("choice", [choice], CHOICES)
    pick = {"signed": signed, "choice": choice}
    settings = {
        "models": models, "tasks": tasks, "methods": methods, "split": split, "n": n, "seed": seed, **pick,
        "connected": connected, **({"points": points} if points else {}), **file_hashes(tasks),
    }  # fmt: skip
    run = Run.open(out, command="edges", settings=settings)
    checks, all_scores, curves, circuits = [], [], [], []
    for model, task, stem, found in subjects(run, models, tasks, n=n, seed=seed):
        checks.append(found)
        for method_name in methods:
            part = f"{stem}-{method_name}"
            make = lambda m=method_name, mo=model, t=task: score[m](mo, t, split=split)  # noqa: E731
            scores = unit(run, f"edges-{part}", EdgeScores, make)
            all_scores.append(scores)
            make = lambda mo=model, t=task, s=scores: sweep(mo, t, s, points=points, **pick)  # noqa: E731
            curves.append(unit(run, f"curve-{part}", Curve, make))
            if "random" not in scores.method:
                circuits.append(
                    _circuit(run, part, model, task, scores, curves[-1], threshold, connected=connected, **pick)
                )
    compared = compare(curves, threshold)
    figures = _draw(run, curves, compared, circuits, threshold, formats)
    facts = [{key: circuit.graph[key] for key in FACTS} for circuit in circuits]
    listed = [
        (s.model, s.task, s.method, rank, name, f"{value:.6g}")
        for s in all_scores
        for rank, (name, value) in enumerate(s.top(LISTED, signed=signed), 1)
    ]
    tables: dict[str, tuple[str, list[tuple]]] = {
        "edges.csv": ("model task method rank edge score", listed),
        "curves.csv": (CURVE_COLUMNS, curve_rows(curves)),
        "summary.csv": table_of([summary(curve, threshold) for curve in curves]),
        "circuits.csv": table_of(facts),
        "multipliers.csv": (RATIO_COLUMNS, ratio_rows(compared)),
    }
    write_tables(run, tables)
    run.finish()
    return EdgeStudy(run.folder, checks, all_scores, curves, compared, facts, figures)


FACTS = ("model", "task", "method", "choice", "signed", "chosen", "connected", "kept", "explained", "low", "high")


def _circuit(
    run: Run, part: str, model: Model, task: Task, scores: EdgeScores, curve: Curve, threshold: float, *, signed: bool,
    choice: str, connected: bool,
) -> networkx.DiGraph:  # fmt: skip
    """The circuit that reaches the threshold (all edges if none does), with what it explains: measured, because the
    curve says it between two of its points only."""
    at = crossing(curve.k, curve.explained, threshold)
    k = len(scores.graph) if at is None else math.ceil(at)
    pick: dict[str, Any] = {"signed": signed, "choice": choice}
    keep = scores.circuit(k, connected=connected, **pick)
    measured = unit(run, f"circuit-{part}-{k}", Curve, lambda: run_circuit(model, task, scores, keep, **pick))
    circuit = circuit_graph(scores, k, connected=connected, **pick)
    ends = {"explained": measured.explained, "low": measured.low, "high": measured.high}
    circuit.graph.update({name: float(value[-1]) for name, value in ends.items()})
    return circuit


def _draw(
    run: Run, curves: list[Curve], compared: list[Compared], circuits: list[networkx.DiGraph], threshold: float,
    formats: list[str],
) -> list[Path]:  # fmt: skip
    """The curves first, then a picture of each circuit, which is exported as well."""
    drawn = {
        "curves": curve_panels(
            by_task(curves), bands={}, segments=segments(curves, compared), threshold=threshold, what="Edges", log=True
        )
    }
    for circuit in circuits:
        name = "circuit-{model}-{task}-{method}".format(**circuit.graph)
        drawn[name] = circuit_picture(circuit)
        for path in export_circuit(circuit, run.path(name)):
            run.add(path.name)
    figures = [
        save_figure(figure, run.path(f"{name}.{ending}")) for name, figure in drawn.items() for ending in formats
    ]
    for path in figures:
        run.add(path.name)
    return figures
