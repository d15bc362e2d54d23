"""Activation patching of heads, exact.

    noising:    score(h) = m(clean) - m(clean with h's output taken from the corrupt run)
    denoising:  score(h) = m(corrupt with h's output taken from the clean run) - m(corrupt)

A head's output is taken at all positions at once. Cost: one forward pass per head and prompt, plus two per prompt, of
which the engine runs only the part that can change.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headscope.errors import InputError
from headscope.models.model import Model
from headscope.records import Scores
from headscope.running.measure import AnswerTokens, per_prompt
from headscope.running.session import Session
from headscope.tasks.task import Task

DIRECTIONS = ("noising", "denoising")


@torch.no_grad()
def patching(model: Model, task: Task, *, direction: str = "noising") -> Scores:
    """Exact: put one head's output from the other run in its place, and see how the answer changes.

    direction: "noising" puts the corrupt value into the clean run, "denoising" the clean value into the corrupt run.
    """
    if direction not in DIRECTIONS:
        raise InputError(f"Unknown direction {direction!r}. Known: {', '.join(DIRECTIONS)}.")
    L, H = model.n_layers, model.n_heads
    all_but_one = 1 - torch.eye(L * H).view(L * H, L, H)

    def run(rows: list[int], tokens: AnswerTokens) -> Tensor:
        clean, corrupt = ([ids[i] for i in rows] for ids in (task.clean_ids, task.corrupt_ids))
        base, other = (clean, corrupt) if direction == "noising" else (corrupt, clean)
        session = Session(model, base, tokens, other_ids=other)
        change_CB = session.metrics(all_but_one) - session.metric_B
        return (-change_CB if direction == "noising" else change_CB).T.unflatten(1, (L, H))

    values = per_prompt(model, task, run, f"Patching {L * H} heads of {model.name} on {task.name}")
    return Scores.of(model.name, task, "patching", values, direction=direction)
