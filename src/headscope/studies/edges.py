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
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import networkx

from headscope.methods import EDGE_METHODS
from headscope.records import Check, Curve, EdgeScores, crossing
from headscope.report.figures.circuits import circuit_graph, circuit_picture, export_circuit
from headscope.report.figures.panels import by_task, curve_panels
from headscope.runs.names import file_names
from headscope.runs.run import Run, open_run
from headscope.studies.chosen_methods import chosen_methods
from headscope.studies.series import (
    CURVE_COLUMNS,
    RATIO_COLUMNS,
    Compared,
    compare,
    curve_rows,
    ratio_rows,
    save_figures,
    segments,
    summary,
    table_of,
    write_tables,
)
from headscope.studies.settings import EdgeSettings
from headscope.studies.subjects import Subject, subjects
from headscope.sweeps import run_circuit, sweep

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


def study_edges(settings: EdgeSettings, *, out: Path) -> EdgeStudy:
    """Run the study, or go on with it, in the folder `out`."""
    methods = chosen_methods(settings.methods, EDGE_METHODS, " for edges", reserved=["split"])
    pick = {"signed": settings.signed, "choice": settings.choice}
    checks, all_scores, curves, circuits = [], [], [], []
    with open_run(out, settings) as run:
        for subject in subjects(run, settings.models, settings.tasks, n=settings.n, seed=settings.seed):
            model, task = subject.model, subject.task
            checks.append(subject.check())
            for method in methods:
                make = partial(method, model, task, split=settings.split)
                scores = subject.unit("edges", EdgeScores, make, method=method.label, split=settings.split)
                all_scores.append(scores)
                how = {"points": settings.points, "fill": settings.fill, **pick}
                make = partial(sweep, model, task, scores, **how)
                curves.append(subject.unit("curve", Curve, make, method=method.label, split=settings.split, **how))
                if "random" not in scores.method:
                    circuits.append(_circuit(subject, method.label, scores, curves[-1], settings))
        compared = compare(curves, settings.threshold)
        figures = _draw(run, curves, compared, circuits, settings)
        facts = [{key: circuit.graph[key] for key in FACTS} for circuit in circuits]
        listed = [
            (s.model, s.task, s.method, rank, name, f"{value:.6g}")
            for s in all_scores
            for rank, (name, value) in enumerate(s.top(LISTED, signed=settings.signed), 1)
        ]
        tables: dict[str, tuple[str, list[tuple]]] = {
            "edges.csv": ("model task method rank edge score", listed),
            "curves.csv": (CURVE_COLUMNS, curve_rows(curves)),
            "summary.csv": table_of([summary(curve, settings.threshold) for curve in curves]),
            "circuits.csv": table_of(facts),
            "multipliers.csv": (RATIO_COLUMNS, ratio_rows(compared)),
        }
        write_tables(run, tables)
        run.finish()
    return EdgeStudy(run.folder, checks, all_scores, curves, compared, facts, figures)


FACTS = ("model", "task", "method", "choice", "signed", "chosen", "connected", "kept", "explained", "low", "high")


def _circuit(
    subject: Subject, method: str, scores: EdgeScores, curve: Curve, settings: EdgeSettings
) -> networkx.DiGraph:
    """The circuit that reaches the threshold (all edges if none does), with what it explains: measured, because the
    curve says it between two of its points only."""
    at = crossing(curve.k, curve.explained, settings.threshold)
    k = len(scores.graph) if at is None else math.ceil(at)
    pick: dict[str, Any] = {"signed": settings.signed, "choice": settings.choice}
    how = {"connected": settings.connected, **pick}
    keep = scores.circuit(k, **how)
    make = partial(run_circuit, subject.model, subject.task, scores, keep, fill=settings.fill, **pick)
    about = {"split": settings.split, "fill": settings.fill, **how}
    measured = subject.unit("circuit", Curve, make, method=method, named=[k], **about)
    circuit = circuit_graph(scores, k, **how)
    ends = {"explained": measured.explained, "low": measured.low, "high": measured.high}
    circuit.graph.update({name: float(value[-1]) for name, value in ends.items()})
    return circuit


def _draw(
    run: Run, curves: list[Curve], compared: list[Compared], circuits: list[networkx.DiGraph], settings: EdgeSettings
) -> list[Path]:
    """The curves first, then a picture of each circuit, which is exported as well."""
    drawn = {
        "curves": curve_panels(
            by_task(curves), bands={}, segments=segments(curves, compared), threshold=settings.threshold, what="Edges",
            log=True,
        )
    }  # fmt: skip
    keys = [("circuit", *(circuit.graph[part] for part in ("model", "task", "method"))) for circuit in circuits]
    names = file_names(keys)
    for key, circuit in zip(keys, circuits, strict=True):
        drawn[names[key]] = circuit_picture(circuit)
        for path in export_circuit(circuit, run.path(names[key])):
            run.add(path.name)
    return save_figures(run, drawn, settings.formats)
