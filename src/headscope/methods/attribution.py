"""Attribution patching of heads: patching to first order, all heads at once.

    score(h) = sum over positions of (z_clean - fill) . d m(clean) / d z

which is what noising patching (fill: z in the corrupt run) or ablation (its mean, or zero) would give if the metric
were linear in z. Cost: two forward passes and one backward.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from headscope.models.model import Model
from headscope.records import Scores
from headscope.running.fills import FillName, fill_opener
from headscope.running.gradients import GateGradient, gate_gradient, gate_settings, z_and_gradient
from headscope.running.measure import per_prompt
from headscope.running.targets import Targets
from headscope.tasks.task import Task


def attribution(
    model: Model, task: Task, *, fill: FillName = "corrupt", gates: GateGradient = "hard", temperature: float = 1.0
) -> Scores:  # fmt: skip
    """Patching to first order: gradient times difference, one backward pass for all heads.

    fill: what a head that is not kept puts out: "corrupt", "mean", "zero" or "mean-position".
    gates, temperature: of a sparse model, as for eap.
    """
    filled = fill_opener(model, task, fill)

    def run(rows: Sequence[int], targets: Targets) -> Tensor:
        other = filled(rows, targets)
        clean, gradient = z_and_gradient(model, [task.clean_rows[i] for i in rows], targets)
        by_layer = [((a - b) * g).sum(dim=(1, 3)) for a, b, g in zip(clean, other, gradient, strict=True)]
        return torch.stack(by_layer, dim=1)

    title = f"Attribution of {model.name} on {task.name}"
    with gate_gradient(gates, temperature):
        values = per_prompt(model, task, run, title, corrupt=fill == "corrupt")
    return Scores.of(model.name, task, "attribution", values, fill=fill, **gate_settings(model, gates, temperature))
