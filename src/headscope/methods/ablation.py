"""Ablation of heads, exact.

    score(h) = m(clean) - m(clean with h's output replaced by zero or by its mean)

Unlike patching it asks for everything a head does, not only for what differs between clean and corrupt. Cost: one
forward pass per head and prompt, of which the engine runs only the part above the head.
"""

from __future__ import annotations

from typing import Literal

from headscope.errors import InputError
from headscope.models.model import Model
from headscope.records import Scores
from headscope.running.fills import effects, session_opener
from headscope.running.sites import Positions, SiteName, about, site_of
from headscope.tasks.task import Task


def ablation(
    model: Model, task: Task, *, site: SiteName | None = "z", positions: Positions = None,
    fill: Literal["mean", "zero", "mean-position"] = "mean",
) -> Scores:  # fmt: skip
    """Exact: take one head's output away (mean or zero in its place), and see what the answer loses.

    Args:
        model: what `load` returned.
        task: N prompts; corrupt ones are not needed.
        site, positions: as for patching.
        fill: "mean" (over the task's clean prompts and positions), "mean-position" (at each position) or "zero".

    Returns:
        Scores whose `values` are (L, H), or (L, H, T) by position; `per_prompt` has N of them.
    """
    if fill == "corrupt":
        raise InputError(f"Ablation fills with mean or zero, not {fill!r}; for corrupt values use patching.")
    opener = session_opener(model, task, fill, site=site)
    values = effects(model, task, opener, "Ablating", site=site, positions=positions)
    return Scores.of(
        model.name, task, "ablation", values, fill=fill, **about(model, task, site_of(model, site), positions)
    )
