"""Activation patching of edges, exact.

    score(u -> v) = m(clean) - m(clean with u's fill on the way to v alone)

The fill is u's value in the corrupt run (patching), its mean, or zero (ablation). Cost: one run of
an edge circuit per edge and prompt; for small models, or a chosen few edges of a large one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from headscope.errors import InputError
from headscope.models.model import Model
from headscope.records import EdgeScores
from headscope.running.edge_session import view_of
from headscope.running.fills import FillName, edge_session_opener
from headscope.running.measure import per_prompt
from headscope.running.targets import Targets
from headscope.tasks.task import Task


@torch.no_grad()
def edge_patching(
    model: Model, task: Task, *, split: str = "none", fill: FillName = "corrupt", edges: Sequence[str] | None = None
) -> EdgeScores:
    """Exact: cut one edge at a time, and see what the answer loses.

    Args:
        model: the model.
        task: the prompts.
        split: as for eap.
        fill: what the reader gets instead: "corrupt", "mean", "zero" or "mean-position".
        edges: names of the edges to cut (all of them unless given); the others score 0.

    Returns:
        One score for each edge, (E,), positive where the edge helps.
    """
    view = view_of(model)
    graph = view.graph(split)
    places = {name: place for place, name in enumerate(graph.edges)}
    if edges is not None and (unknown := [name for name in edges if name not in places]):
        raise InputError(f"{model.name} has no edge {unknown[0]!r}. Edges are named like {graph.edges[-1]}.")
    chosen = torch.tensor([places[name] for name in edges] if edges is not None else list(range(len(graph))))
    open_session = edge_session_opener(model, task, graph, fill)

    def run(rows: Sequence[int], targets: Targets) -> Tensor:
        session = open_session(rows, targets)
        whole_1B = session.metrics(torch.ones(1, len(graph)))
        scores_BE = torch.zeros(len(rows), len(graph))
        for part in chosen.split(64):
            keep = torch.ones(len(part), len(graph)).scatter(1, part[:, None], 0.0)
            scores_BE[:, part] = (whole_1B - session.metrics(keep)).T
        return scores_BE

    title = f"Cutting {len(chosen):,} edges of {model.name}"
    values = per_prompt(model, task, run, title, purpose="edge prompts", corrupt=True)
    mean = values.mean(axis=0, dtype=np.float64)
    return EdgeScores.of(model.name, task, "edge-patching", graph, mean, values, fill=fill)
