"""Activation patching of heads, exact.

    noising:    score(h) = m(clean) - m(clean with h's output taken from the corrupt run)
    denoising:  score(h) = m(corrupt with h's output taken from the clean run) - m(corrupt)

A head's output is taken at all positions at once. Cost: one forward pass per head and prompt, plus two per prompt;
many heads share a pass as rows of one batch.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from headscope.errors import InputError
from headscope.interventions import patched, record
from headscope.measure import AnswerTokens, answer_logits, per_prompt
from headscope.models.model import Model
from headscope.results import Scores
from headscope.tasks.task import Task

DIRECTIONS = ("noising", "denoising")


@torch.no_grad()
def patching(model: Model, task: Task, *, direction: str = "noising", heads_per_pass: int = 8) -> Scores:
    """Score every head by replacing its output, one head at a time.

    direction: "noising" puts the corrupt value into the clean run, "denoising" the clean value into the corrupt run.
    heads_per_pass: how many heads share a forward pass, as rows of one batch.
    """
    if direction not in DIRECTIONS:
        raise InputError(f"Unknown direction {direction!r}. Known: {', '.join(DIRECTIONS)}.")
    L, H = model.n_layers, model.n_heads

    def run(rows: list[int], tokens: AnswerTokens) -> Tensor:
        clean, corrupt = ([ids[i] for i in rows] for ids in (task.clean_ids, task.corrupt_ids))
        base, other = (clean, corrupt) if direction == "noising" else (corrupt, clean)
        sign = -1 if direction == "noising" else 1
        with record(model) as z_other:
            answer_logits(model, other)
        before_B = tokens(answer_logits(model, base))
        scores_BLH = torch.empty(len(rows), L, H)
        for heads in torch.arange(L * H).split(heads_per_pass):
            keep_CLH = torch.ones(len(heads), L * H).scatter(1, heads[:, None], 0.0).view(-1, L, H)
            # Rows of the large batch: all prompts under the first mask, then all under the second, ...
            keep = keep_CLH.repeat_interleave(len(rows), dim=0)
            fill = [z_other[layer].repeat(len(heads), 1, 1, 1) for layer in range(L)]
            with patched(model, keep, fill=fill):
                logits = answer_logits(model, base * len(heads))
            for head, logits_BV in zip(heads.tolist(), logits.chunk(len(heads)), strict=True):
                scores_BLH[:, head // H, head % H] = sign * (tokens(logits_BV) - before_B).cpu()
        return scores_BLH

    values = per_prompt(model, task, run, f"Patching {L * H} heads of {model.name} on {task.name}")
    settings = {"direction": direction, "n": len(task), "seed": task.seed}
    return Scores(
        model.name, task.name, "patching", values.mean(0, dtype=np.float64).astype(np.float32), values, settings
    )
