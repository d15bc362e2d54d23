"""Activation patching of heads, exact.

    noising:    score(h) = m(clean) - m(clean with h's output taken from the corrupt run)
    denoising:  score(h) = m(corrupt with h's output taken from the clean run) - m(corrupt)

A head's output is taken at all positions at once. Cost: one forward pass per head and prompt, plus two per prompt, of
which the engine runs only the part that can change.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from headscope.errors import InputError
from headscope.models.model import Model
from headscope.records import Scores
from headscope.running.fills import effects
from headscope.running.session import Session
from headscope.running.targets import Targets
from headscope.tasks.task import Task

DIRECTIONS = ("noising", "denoising")


def patching(model: Model, task: Task, *, direction: Literal["noising", "denoising"] = "noising") -> Scores:
    """Exact: put one head's output from the other run in its place, and see how the answer changes.

    direction: "noising" puts the corrupt value into the clean run, "denoising" the clean value into the corrupt run.
    """
    if direction not in DIRECTIONS:
        raise InputError(f"Unknown direction {direction!r}. Known: {', '.join(DIRECTIONS)}.")
    base, other, sign = (
        ("clean_rows", "corrupt_rows", 1) if direction == "noising" else ("corrupt_rows", "clean_rows", -1)
    )

    def open_session(rows: Sequence[int], targets: Targets) -> Session:
        ids, other_ids = ([getattr(task, side)[i] for i in rows] for side in (base, other))
        return Session(model, ids, targets, other_ids=other_ids)

    values = sign * effects(model, task, open_session, "Patching", corrupt=True)
    return Scores.of(model.name, task, "patching", values, direction=direction)
