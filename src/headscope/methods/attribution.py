"""Attribution patching of heads: patching to first order, all heads at once.

    score(h) = sum over positions of (z_clean - fill) . d m(clean) / d z

which is what noising patching (fill: z in the corrupt run) or ablation (its mean, or zero) would give if the metric
were linear in z. Cost: two forward passes and one backward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from headscope.models.model import Model
from headscope.records import Scores
from headscope.running.fills import FillName, fill_opener
from headscope.running.gradients import GateGradient, gate_gradient, gate_settings, values_and_gradients
from headscope.running.measure import per_prompt
from headscope.running.sites import Positions, Site, SiteName, about, positions_of, site_of
from headscope.running.targets import Targets
from headscope.tasks.task import Task

ByPart = dict[str, list[Tensor]]


def attribution(
    model: Model, task: Task, *, site: SiteName | None = "z", positions: Positions = None, fill: FillName = "corrupt",
    gates: GateGradient = "hard", temperature: float = 1.0,
) -> Scores:  # fmt: skip
    """Patching to first order: gradient times difference, one backward pass for all heads.

    Args:
        model: what `load` returned.
        task: N prompts, with corrupt ones for the fill "corrupt".
        site, positions: as for patching; each position costs nothing more.
        fill: what a head that is not kept puts out: "corrupt", "mean", "zero" or "mean-position".
        gates, temperature: of a sparse model, as for eap.

    Returns:
        Scores whose `values` are (L, H), or (L, H, T) by position; `per_prompt` has N of them.
    """
    here = site_of(model, site)
    filled, sum_up = fill_opener(model, task, fill, here), summed(task, here, positions)

    def run(rows: Sequence[int], targets: Targets) -> Tensor:
        other = filled(rows, targets)
        clean, slope = values_and_gradients(model, [task.clean_rows[i] for i in rows], targets, here.columns)
        return sum_up(clean, other, slope)

    title = f"Attribution of {model.name} on {task.name}"
    with gate_gradient(gates, temperature):
        values = per_prompt(model, task, run, title, corrupt=fill == "corrupt")
    told = {**gate_settings(model, gates, temperature), **about(model, task, here, positions)}
    return Scores.of(model.name, task, "attribution", values, fill=fill, **told)


def summed(task: Task, site: Site, positions: Positions) -> Callable[[ByPart, ByPart, ByPart], Tensor]:
    """A function from values, fills and gradients, per part and layer (B, T, X, W), to what their differences come to,
    (B, L, X), or (B, L) where a layer has one; at each position (..., T)."""
    chosen = positions_of(task, positions)

    def change(value: Tensor, fill: Tensor, slope: Tensor) -> Tensor:
        product_BTXW = (value - fill) * slope
        if positions == "each":
            return product_BTXW.sum(dim=3).transpose(1, 2)
        return (product_BTXW if chosen is None else product_BTXW[:, chosen]).sum(dim=(1, 3))

    def sum_up(values: ByPart, fills: ByPart, slopes: ByPart) -> Tensor:
        parts = [
            torch.stack([change(*each) for each in zip(values[part], fills[part], slopes[part], strict=True)], dim=1)
            for part in site.columns
        ]
        # Parts stand side by side where they are components of their own; a layer's are added up.
        total = torch.cat(parts, dim=2) if site.axis else torch.stack(parts).sum(0)
        return total if site.axis else total[:, :, 0]

    return sum_up
