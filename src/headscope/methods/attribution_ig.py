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
from headscope.methods.attribution import summed
from headscope.models.model import Model
from headscope.records import Scores
from headscope.running.fills import FillName, fill_opener
from headscope.running.gradients import (
    GateGradient,
    embeddings,
    gate_gradient,
    gate_settings,
    values_and_gradients,
    values_of,
)
from headscope.running.measure import per_prompt
from headscope.running.sites import Positions, SiteName, about, site_of
from headscope.running.targets import Targets
from headscope.tasks.task import Task


def attribution_ig(
    model: Model, task: Task, *, site: SiteName | None = "z", positions: Positions = None, steps: int = 5,
    fill: FillName = "corrupt", gates: GateGradient = "hard", temperature: float = 1.0,
) -> Scores:  # fmt: skip
    """Attribution with the gradient averaged over points between the corrupt and the clean embeddings.

    Args:
        model: what `load` returned.
        task: N prompts, with corrupt ones, at whose embeddings the path begins.
        site, positions, fill, gates, temperature: as for attribution.
        steps: how many points.

    Returns:
        Scores whose `values` are (L, H), or (L, H, T) by position; `per_prompt` has N of them.
    """
    if steps < 1:
        raise InputError(f"attribution-ig needs at least 1 step, found {steps}.")

    here = site_of(model, site)
    filled, sum_up = fill_opener(model, task, fill, here), summed(task, here, positions)

    def run(rows: Sequence[int], targets: Targets) -> Tensor:
        clean_ids, corrupt_ids = ([ids[i] for i in rows] for ids in (task.clean_rows, task.corrupt_rows))
        clean, other = values_of(model, clean_ids, targets, here.columns), filled(rows, targets)
        near, far = embeddings(model, corrupt_ids), embeddings(model, clean_ids)
        total = torch.zeros((), device=model.device)
        for step in range(steps):
            point_BTD = near + (step + 0.5) / steps * (far - near)
            _, slope = values_and_gradients(model, clean_ids, targets, here.columns, embedding_BTD=point_BTD)
            total = total + sum_up(clean, other, slope)
        return total / steps

    with gate_gradient(gates, temperature):
        values = per_prompt(model, task, run, f"Attribution-IG of {model.name} on {task.name}", corrupt=True)
    told = {"steps": steps, "fill": fill, **gate_settings(model, gates, temperature)}
    return Scores.of(model.name, task, "attribution-ig", values, **told, **about(model, task, here, positions))
