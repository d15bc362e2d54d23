"""Importance of heads from the gradient of their gate.

    score(h) = d m(clean) / d gate_h at gate 1 = sum over positions of z . d m / d z

the first-order effect of taking a head away altogether, after Michel, Levy and Neubig (2019), who take its absolute
value; here it keeps its sign, and ranking decides. No corrupt prompt is needed. Cost: one forward and one backward
pass.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from headscope.models.model import Model
from headscope.records import Scores
from headscope.running.gradients import z_and_gradient
from headscope.running.measure import per_prompt
from headscope.running.targets import Targets
from headscope.tasks.task import Task


def gradient(model: Model, task: Task) -> Scores:
    """The gradient of every head's gate: what removing it would cost, to first order.

    Args:
        model: the model.
        task: the prompts; the corrupt ones are not used.

    Returns:
        One score for each head, (L, H), positive where the head helps, with every prompt's own, (N, L, H).
    """
    values = gate_gradients(model, task, f"Gate gradients of {model.name} on {task.name}")
    return Scores.of(model.name, task, "gradient", values)


def gate_gradients(model: Model, task: Task, title: str, *, start: int = 0) -> np.ndarray:
    """The gradient of every head's gate at the positions from `start` on, for each prompt, (N, L, H)."""

    def run(rows: Sequence[int], targets: Targets) -> Tensor:
        z, slope = z_and_gradient(model, [task.clean_rows[i] for i in rows], targets)
        return torch.stack([(a * g)[:, start:].sum(dim=(1, 3)) for a, g in zip(z, slope, strict=True)], dim=1)

    return per_prompt(model, task, run, title)
