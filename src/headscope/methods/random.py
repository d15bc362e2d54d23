"""Random scores: the ranking that knows nothing, to compare others with. Cost: none."""

from __future__ import annotations

import numpy as np

from headscope.models.model import Model
from headscope.records import Scores
from headscope.tasks.task import Task


def random(model: Model, task: Task, *, seed: int = 0) -> Scores:
    """Random scores, for reference.

    Args:
        model: gives the shape.
        task: gives the number of prompts.
        seed: of the scores; every prompt gets its own, and the task's ranking comes from their mean as always.

    Returns:
        One score for each head, (L, H), that means nothing.
    """
    draw = np.random.default_rng(seed)
    values = draw.normal(size=(len(task), model.n_layers, model.n_heads)).astype(np.float32)
    return Scores.of(model.name, task, "random", values, random_seed=seed)
