"""Activation patching of heads, exact.

    noising:    score(h) = m(clean) - m(clean with h's output taken from the corrupt run)
    denoising:  score(h) = m(corrupt with h's output taken from the clean run) - m(corrupt)

A head's output is taken at all positions at once, at some, or at each; so is what it reads (q, k, v), its pattern, the
stream, or what attention and MLPs write (`site`, see running/sites.py). Cost: one forward pass per head (and position)
and prompt, plus two per prompt, of which the engine runs only the part that can change.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from headscope.errors import InputError
from headscope.models.model import Model
from headscope.records import Scores
from headscope.running.fills import effects
from headscope.running.session import Session
from headscope.running.sites import Positions, SiteName, about, site_of
from headscope.running.targets import Targets
from headscope.tasks.task import Task

DIRECTIONS = ("noising", "denoising")


def patching(
    model: Model, task: Task, *, site: SiteName | None = "z", positions: Positions = None,
    direction: Literal["noising", "denoising"] = "noising",
) -> Scores:  # fmt: skip
    """Exact: put one head's output from the other run in its place, and see how the answer changes.

    Args:
        site: where; a head's output z, what it reads (q, k, v), its pattern, the stream (resid_pre, resid_mid), what is
            written to it (attn_out, mlp_out), heads and MLPs side by side (component), or whole layers (layer).
        positions: None for all at once, "each" for one after the other, a number or several for these at once.
        direction: "noising" puts the corrupt value into the clean run, "denoising" the clean one into the corrupt run.
    Returns:
        Scores (L, H), or (L,) where a layer has one; with positions="each" (L, H, T) or (L, T).
    """
    if direction not in DIRECTIONS:
        raise InputError(f"Unknown direction {direction!r}. Known: {', '.join(DIRECTIONS)}.")
    base, other, sign = (
        ("clean_rows", "corrupt_rows", 1) if direction == "noising" else ("corrupt_rows", "clean_rows", -1)
    )

    def open_session(rows: Sequence[int], targets: Targets) -> Session:
        ids, other_ids = ([getattr(task, side)[i] for i in rows] for side in (base, other))
        return Session(model, ids, targets, other_ids=other_ids, site=site)

    values = sign * effects(model, task, open_session, "Patching", corrupt=True, site=site, positions=positions)
    told = about(model, task, site_of(model, site), positions)
    return Scores.of(model.name, task, "patching", values, direction=direction, **told)
