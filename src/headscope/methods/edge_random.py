"""Random scores of edges: the ranking that knows nothing, to compare others with. Cost: none."""

from __future__ import annotations

import numpy as np

from headscope.models.model import Model
from headscope.records import EdgeScores
from headscope.running.edge_session import view_of
from headscope.tasks.task import Task


def edge_random(model: Model, task: Task, *, split: str = "none", seed: int = 0) -> EdgeScores:
    """Random scores, for reference.

    Args:
        model: gives the graph.
        task: named in the record.
        split: as for eap.
        seed: of the scores.

    Returns:
        One score for each edge, (E,), that means nothing.
    """
    graph = view_of(model).graph(split)
    values = np.random.default_rng(seed).normal(size=len(graph))
    return EdgeScores.of(model.name, task, "random", graph, values, None, random_seed=seed)
