"""The sparsity frontier: what a model loses, and how small its circuits get, as its attention edges close.

The points are the dense model, the adapters that `sparsify` kept at its milestones, and its last one. Each is measured
under hard gates:

1. Open edges per query and head, cross-entropy above the dense model's and divergence, on text that no training used.
2. On each task: accuracy, and how many heads and how many edges are needed to explain the threshold's share of the
   effect, with intervals over prompts.

Every point is a unit of the run folder: a killed run resumes after the last finished one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headscope.errors import InputError
from headscope.methods import edge_method, method
from headscope.models import Model, load
from headscope.models.adapters import is_adapter
from headscope.records import Curve, EdgeScores, Scores, needed
from headscope.records.files import write_json
from headscope.report.figures.frontier import frontier_panels
from headscope.report.figures.panels import FORMATS
from headscope.running.measure import check
from headscope.runs.run import Run
from headscope.sparse.objective import edges_per_query
from headscope.sparse.saving import milestones
from headscope.sparse.text import windows
from headscope.sparse.training import measured
from headscope.studies.heads import describe, refuse_unknown, save_figures, table_of, unit, write_tables
from headscope.sweeps import sweep
from headscope.tasks import make_task


@dataclass(frozen=True)
class Frontier:
    """What was found: a row per point and task, from dense to the sparsest, and where."""

    folder: Path
    rows: list[dict[str, Any]]
    figures: list[Path]


def study_frontier(
    dense: str, trained: Path, *, out: Path, tasks: list[str], heads_by: str = "patching", edges_by: str = "eap-ig",
    text: str = "self", count: int = 64, length: int = 64, n: int = 50, seed: int = 1, threshold: float = 0.9,
    formats: Iterable[str] = ("png", "svg", "pdf"),
) -> Frontier:  # fmt: skip
    """Measure the points of the run `trained` of `sparsify`, or go on with it, in the folder `out`."""
    formats = list(formats)
    refuse_unknown("format", formats, FORMATS)
    score_heads, score_edges = method(heads_by), edge_method(edges_by)
    points = _points(trained)
    settings = {
        "dense": dense, "trained": str(trained), "tasks": tasks, "heads_by": heads_by, "edges_by": edges_by,
        "text": text, "count": count, "length": length, "n": n, "seed": seed, "points": [name for name, _ in points],
    }  # fmt: skip
    run = Run.open(out, command="sparsity-frontier", settings=settings)
    base = load(dense)
    run.note_model(dense, describe(base))
    ids_NT = windows(base, text, count=count, length=length, seed=seed)
    rows = []
    for name, folder in [("dense", None), *points]:
        model = replace(base if folder is None else load(folder, base=dense), name=name)
        if folder is not None:
            run.note_model(name, describe(model))
        loss = _kept(run, f"loss-{name}.json", lambda mo=model: _loss(mo, base, ids_NT))
        for task_name in tasks:
            task = make_task(task_name, model.tokenizer, n=n, seed=seed)
            stem = f"{name}-{task_name}"
            accuracy = _kept(run, f"check-{stem}.json", lambda mo=model, t=task: {"accuracy": check(mo, t).accuracy})
            row = {"point": name, **loss, "task": task_name, **accuracy}
            for what, score, kind in (("heads", score_heads, Scores), ("edges", score_edges, EdgeScores)):
                scores = unit(run, f"{what}-scores-{stem}", kind, lambda s=score, mo=model, t=task: s(mo, t))
                curve = unit(run, f"{what}-{stem}", Curve, lambda mo=model, t=task, s=scores: sweep(mo, t, s))
                need = needed(curve, threshold=threshold)
                row |= {what: need.k, f"{what}_low": need.low, f"{what}_high": need.high}
            rows.append(row)
    write_tables(run, {"frontier.csv": table_of(rows)})
    figures = save_figures(run, {"frontier": frontier_panels(rows, threshold)}, formats)
    run.finish()
    return Frontier(run.folder, rows, figures)


def _points(trained: Path) -> list[tuple[str, Path]]:
    """The milestones of a run and its last adapter, by name."""
    found = [(folder.name, folder) for folder, _ in milestones(trained)]
    if is_adapter(trained / "adapter"):
        found.append(("last", trained / "adapter"))
    if not found:
        raise InputError(
            f"{trained} has neither milestones nor an adapter: expected a folder that `headscope sparsify` wrote, with "
            "LoRA (--lora-rank above 0)."
        )
    return found


def _loss(model: Model, base: Model, ids_NT: Any) -> dict[str, float]:
    found = measured(model.hf, base.hf, ids_NT, 16)
    share = found.get("connectivity", 1.0)
    return {
        "connectivity": share, "edges_per_query": edges_per_query(share, ids_NT.shape[1]),
        "ce_above_dense": found["ce"] - found["dense_ce"], "divergence": found["kl"],
    }  # fmt: skip


def _kept(run: Run, file: str, make: Any) -> dict[str, float]:
    """A few numbers of the run: read if they are there, otherwise made and saved."""
    if not run.has(file):
        write_json(run.path(file), make())
        run.add(file)
    try:
        return json.loads(run.path(file).read_text())
    except ValueError as error:
        raise InputError(f"{run.path(file)} is damaged: {error}. Delete it to have it made again.") from error
