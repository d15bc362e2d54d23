"""The sparsity frontier: what a model loses, and how small its circuits get, as its attention edges close.

The points are the dense model, the adapters that `sparsify` kept at its milestones, and its last one. Each is measured
under hard gates:

1. Open edges per query and head, cross-entropy above the dense model's and divergence, on text that no training used.
2. On each task: accuracy, and how many heads and how many edges are needed to explain the threshold's share of the
   effect, with intervals over prompts.

Every point is a unit of the run folder: a killed run resumes after the last finished one.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from headscope.errors import InputError
from headscope.methods import EDGE_METHODS, METHODS
from headscope.models import Model, load
from headscope.models.adapters import is_adapter
from headscope.records import Curve, EdgeScores, Scores
from headscope.report.outputs import write
from headscope.report.outputs.frontier import Frontier
from headscope.runs.run import open_run
from headscope.sparse.objective import edges_per_query
from headscope.sparse.saving import milestones
from headscope.sparse.text import sequences
from headscope.sparse.training import measured
from headscope.studies.chosen_methods import chosen_methods
from headscope.studies.settings import FrontierSettings
from headscope.studies.subjects import Subject
from headscope.sweeps import sweep
from headscope.tasks import make_task


def study_frontier(settings: FrontierSettings, *, out: Path) -> Frontier:
    """Measure the points of a run of `sparsify`, or go on with it, in the folder `out`."""
    (by_heads,) = chosen_methods([settings.heads_by], METHODS)
    (by_edges,) = chosen_methods([settings.edges_by], EDGE_METHODS, " for edges", reserved=["split"])
    kinds = (("heads", by_heads, Scores), ("edges", by_edges, EdgeScores))
    points = _points(Path(settings.trained))
    with open_run(out, settings) as run:
        base = load(settings.dense, **settings.loading)
        for name, folder in [("dense", None), *points]:
            model = base if folder is None else load(folder, base=settings.dense, **settings.loading)
            model = replace(model, name=name)
            facts = model.describe()
            run.note_model(settings.dense if folder is None else name, facts)
            about = {"name": name, "sha256": facts["sha256"]}
            run.unit(("loss", name), partial(_loss, model, base, settings), model=about)
            for task_name in settings.tasks:
                task = make_task(task_name, model.tokenizer, n=settings.n, seed=settings.seed)
                subject = Subject(run, model, facts["sha256"], task)
                subject.check()
                for what, method, kind in kinds:
                    scores = subject.unit(f"scores-{what}", kind, partial(method, model, task), method=method.label)
                    subject.unit(f"curve-{what}", Curve, partial(sweep, model, task, scores), method=method.label)
        return write(run, Frontier)


def _points(trained: Path) -> list[tuple[str, Path]]:
    """The milestones of a run and its last adapter, by name."""
    points = [(folder.name, folder) for folder, _ in milestones(trained)]
    if is_adapter(trained / "adapter"):
        points.append(("last", trained / "adapter"))
    if not points:
        raise InputError(
            f"{trained} has neither milestones nor an adapter: expected a folder that `headscope sparsify` wrote, with "
            "LoRA (--lora-rank above 0)."
        )
    return points


def _loss(model: Model, base: Model, settings: FrontierSettings) -> dict[str, Any]:
    ids_NT = sequences(base, settings.text, count=settings.sequences, length=settings.length, seed=settings.seed)
    losses = measured(model.hf, base.hf, ids_NT, 16)
    share = losses.get("connectivity", 1.0)
    return {
        "point": model.name, "connectivity": share, "edges_per_query": edges_per_query(share, ids_NT.shape[1]),
        "ce_above_dense": losses["ce"] - losses["dense_ce"], "divergence": losses["kl"],
    }  # fmt: skip
