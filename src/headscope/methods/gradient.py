"""Importance of heads from the gradient of their gate.

    score(h) = d m(clean) / d gate_h at gate 1 = sum over positions of z . d m / d z

the first-order effect of taking a head away altogether, after Michel, Levy and Neubig (2019), who take its absolute
value; here it keeps its sign, and ranking decides. No corrupt prompt is needed. Cost: one forward and one backward
pass.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headscope.models.model import Model
from headscope.records import Scores
from headscope.running.gradients import z_and_gradient
from headscope.running.measure import AnswerTokens, per_prompt
from headscope.tasks.task import Task


def gradient(model: Model, task: Task) -> Scores:
    """The gradient of every head's gate: what removing it would cost, to first order."""

    def run(rows: list[int], tokens: AnswerTokens) -> Tensor:
        z, slope = z_and_gradient(model, [task.clean_ids[i] for i in rows], tokens)
        return torch.stack([(a * g).sum(dim=(1, 3)) for a, g in zip(z, slope, strict=True)], dim=1)

    values = per_prompt(model, task, run, f"Gate gradients of {model.name} on {task.name}")
    return Scores.of(model.name, task, "gradient", values)
