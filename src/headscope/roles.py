"""What gates say about heads: roles, their spread over seeds, agreement, and what happens when heads are taken away.

The ablation curve of a score: with the soft G+ as the base mask, take heads in descending order of the score; at k the
top k are set to 0 in one mask and to 1 in another.

    change(k) = log P(target | top k at 0) - log P(target | top k at 1)

summed over the target's tokens, mean over held-out prompts and seeds. It falls for facilitation, stays near zero for
irrelevance, and rises for interference until such heads are used up.

Shape letters: S seeds, L layers, H heads, C masks, N prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from headscope.errors import InputError
from headscope.models.model import Model
from headscope.records import ROLES, Ablation, Roles, Scores
from headscope.running.fills import effects, session_opener
from headscope.running.measure import per_prompt
from headscope.running.session import Session
from headscope.running.targets import Targets
from headscope.tasks.task import Task

# k at which curves are run unless every k is wanted.
POINTS = (0, 1, 2, 5, 10, 15, 20, 30, 40, 50)


@torch.no_grad()
def ablate(model: Model, task: Task, roles: Roles, *, k: list[int] | None = None) -> Ablation:
    """The ablation curves of the three scores on the prompts of `task`, which the gates should not have seen."""
    S, L, H = roles.g_plus.shape
    if roles.g_plus.shape[1:] != (model.n_layers, model.n_heads):
        raise InputError(f"These roles are of {L} x {H} heads; {model.name} has {model.n_layers} x {model.n_heads}.")
    counts = sorted({at for at in (POINTS if k is None else k) if 0 <= at <= L * H})
    at_k = [at for at in counts if at]
    masks = []
    for role in ROLES:
        for base_LH, score_LH in zip(roles.g_plus, getattr(roles, role), strict=True):
            order = np.argsort(-score_LH.ravel(), kind="stable")
            for at in at_k:
                for value in (0.0, 1.0):
                    mask = base_LH.astype(np.float32).ravel()
                    mask[order[:at]] = value
                    masks.append(mask.reshape(L, H))
    change = np.zeros((len(ROLES), S, len(counts), len(task)), dtype=np.float32)
    if masks:
        log_CN = masked_log_probs(model, task, torch.from_numpy(np.stack(masks)))
        log = log_CN.reshape(len(ROLES), S, len(at_k), 2, len(task))
        change[:, :, len(counts) - len(at_k) :] = log[:, :, :, 0] - log[:, :, :, 1]
    settings = {"n": len(task), "seed": task.seed, "seeds": roles.settings.get("seeds"), "heads": L * H}
    return Ablation(model.name, task.name, np.array(counts), change, settings)


@torch.no_grad()
def masked_log_probs(model: Model, task: Task, mask_CLH: Tensor) -> np.ndarray:
    """log P of every prompt's target, summed over tokens, under every mask, (C, N)."""

    def run(rows: Sequence[int], targets: Targets) -> Tensor:
        return Session(model, [task.clean_rows[i] for i in rows], targets).metrics(mask_CLH).T

    title = f"Ablating heads of {model.name} on {task.name}"
    return per_prompt(model, replace(task, metric="log-prob"), run, title).T


def head_effects(model: Model, task: Task) -> Scores:
    """Exact activation patching by the target's log-probability, whatever the task's own metric: what it loses when one
    head takes its output from the corrupt prompt (where there are no corrupt prompts: becomes zero)."""
    fill = "corrupt" if task.corrupt_ids else "zero"
    task = replace(task, metric="log-prob")
    values = effects(model, task, session_opener(model, task, fill), "Patching")
    return Scores.of(model.name, task, f"patching, {fill} fill", values)
