"""Attribution patching with integrated gradients.

    score(h) = sum over positions of (z_clean - fill) . mean over a of d m(x_a) / d z,
    x_a = corrupt + a * (clean - corrupt) at the token embeddings

The gradient is averaged over runs between the corrupt and the clean prompt, which mends attribution where the metric
is flat at the clean end. The points a are the middles of `steps` equal parts. The path is the same whatever the fill (z
in the corrupt run, its mean, or zero): it says how the metric bends, the fill what is taken away. Cost: two forward
passes, and a forward and a backward pass per step.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from headscope.errors import InputError
from headscope.models.model import Model
from headscope.records import Scores
from headscope.running.fills import FillName, fill_opener
from headscope.running.gradients import GateGradient, embeddings, gate_gradient, gate_settings, z_and_gradient, z_of
from headscope.running.measure import per_prompt
from headscope.running.targets import Targets
from headscope.tasks.task import Task


def attribution_ig(
    model: Model, task: Task, *, steps: int = 5, fill: FillName = "corrupt", gates: GateGradient = "hard",
    temperature: float = 1.0,
) -> Scores:  # fmt: skip
    """Attribution with the gradient averaged over points between the corrupt and the clean embeddings.

    steps: how many points. fill, gates, temperature: as for attribution.
    """
    if steps < 1:
        raise InputError(f"attribution-ig needs at least 1 step, found {steps}.")

    filled = fill_opener(model, task, fill)

    def run(rows: Sequence[int], targets: Targets) -> Tensor:
        clean_ids, corrupt_ids = ([ids[i] for i in rows] for ids in (task.clean_rows, task.corrupt_rows))
        clean, other = z_of(model, clean_ids, targets), filled(rows, targets)
        near, far = embeddings(model, corrupt_ids), embeddings(model, clean_ids)
        total_BLH = torch.zeros(len(rows), model.n_layers, model.n_heads, device=model.device)
        for step in range(steps):
            point_BTD = near + (step + 0.5) / steps * (far - near)
            _, gradient = z_and_gradient(model, clean_ids, targets, embedding_BTD=point_BTD)
            by_layer = [((a - b) * g).sum(dim=(1, 3)) for a, b, g in zip(clean, other, gradient, strict=True)]
            total_BLH += torch.stack(by_layer, dim=1)
        return total_BLH / steps

    with gate_gradient(gates, temperature):
        values = per_prompt(model, task, run, f"Attribution-IG of {model.name} on {task.name}", corrupt=True)
    about = {"steps": steps, "fill": fill, **gate_settings(model, gates, temperature)}
    return Scores.of(model.name, task, "attribution-ig", values, **about)
