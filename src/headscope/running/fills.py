"""What closed heads are filled with (`corrupt`, `mean`, `zero`), and sessions that fill them so.

Shape letters: B prompts, T positions, H heads, K head width.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from headscope.errors import InputError
from headscope.models.model import Model
from headscope.running.interventions import record
from headscope.running.measure import AnswerTokens, answer_logits, batches
from headscope.running.session import Session
from headscope.tasks.task import Task

FILLS = ("corrupt", "mean", "zero")


def session_opener(model: Model, task: Task, fill: str) -> Callable[[list[int], AnswerTokens], Session]:
    """A function that opens a session on some of the task's clean prompts, with closed heads filled as asked.

    corrupt: the value of the same head in the corrupt prompt's run. mean: its mean over all clean prompts and
    positions. zero: nothing.
    """
    if fill not in FILLS:
        raise InputError(f"Unknown fill {fill!r}. Known: {', '.join(FILLS)}.")
    means = mean_z(model, task) if fill == "mean" else None

    def open_session(rows: list[int], tokens: AnswerTokens) -> Session:
        clean = [task.clean_ids[i] for i in rows]
        other = [task.corrupt_ids[i] for i in rows] if fill == "corrupt" else None
        return Session(model, clean, tokens, other_ids=other, fill=means)

    return open_session


@torch.no_grad()
def mean_z(model: Model, task: Task) -> list[Tensor]:
    """Every head's mean output over the task's clean prompts and all their positions; per layer (H, K)."""
    totals: list[Tensor] = []
    count = 0
    for rows in batches(task):
        with record(model) as z:
            answer_logits(model, [task.clean_ids[i] for i in rows])
        sums = [z[layer].double().sum(dim=(0, 1)) for layer in range(model.n_layers)]
        totals = [a + b for a, b in zip(totals, sums, strict=True)] if totals else sums
        count += z[0].shape[0] * z[0].shape[1]
    return [(total / count).to(model.hf.dtype) for total in totals]
