"""Ablation of heads, exact.

    score(h) = m(clean) - m(clean with h's output replaced by zero or by its mean)

Unlike patching it asks for everything a head does, not only for what differs between clean and corrupt. Cost: one
forward pass per head and prompt, of which the engine runs only the part above the head.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headscope.errors import InputError
from headscope.models.model import Model
from headscope.records import Scores
from headscope.running.fills import session_opener
from headscope.running.measure import AnswerTokens, per_prompt
from headscope.tasks.task import Task


@torch.no_grad()
def ablation(model: Model, task: Task, *, fill: str = "mean") -> Scores:
    """Exact: take one head's output away (mean or zero in its place), and see what the answer loses.

    fill: "mean" (over the task's clean prompts and positions), "mean-position" (at each position) or "zero".
    """
    if fill == "corrupt":
        raise InputError(f"Ablation fills with mean or zero, not {fill!r}; for corrupt values use patching.")
    L, H = model.n_layers, model.n_heads
    all_but_one = 1 - torch.eye(L * H).view(L * H, L, H)
    open_session = session_opener(model, task, fill)

    def run(rows: list[int], tokens: AnswerTokens) -> Tensor:
        session = open_session(rows, tokens)
        return (session.metric_B - session.metrics(all_but_one)).T.unflatten(1, (L, H))

    values = per_prompt(model, task, run, f"Ablating {L * H} heads of {model.name} on {task.name}")
    return Scores.of(model.name, task, "ablation", values, fill=fill)
