"""What gates say about heads: roles, their spread over seeds, agreement, and what happens when heads are taken away.

The ablation curve of a score: with the soft G+ as the base mask, take heads in descending order of the score; at k the
top k are set to 0 in one mask and to 1 in another.

    change(k) = log P(target | top k at 0) - log P(target | top k at 1)

summed over the target's tokens, mean over held-out prompts and seeds. It falls for facilitation, stays near zero for
irrelevance, and rises for interference until such heads are used up.

Shape letters: S seeds, L layers, H heads, C masks, N prompts, P points of a curve, B rows, T positions, K head width.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from headscope.errors import InputError
from headscope.models.model import Model
from headscope.progress import bar
from headscope.records import ROLES, Ablation, Roles, Scores
from headscope.running.interventions import gated, patched, record
from headscope.running.targets import TOKENS, TargetBatch, log_probs, refuse_unfit, row_sums, targets_of
from headscope.tasks.task import Task

# k at which curves are run unless every k is wanted.
POINTS = (0, 1, 2, 5, 10, 15, 20, 30, 40, 50)


@torch.no_grad()
def ablate(model: Model, task: Task, roles: Roles, *, k: list[int] | None = None) -> Ablation:
    """The ablation curves of the three scores on the prompts of `task`, which the gates should not have seen."""
    refuse_unfit(model, task)
    S, L, H = roles.g_plus.shape
    if roles.g_plus.shape[1:] != (model.n_layers, model.n_heads):
        raise InputError(f"These roles are of {L} x {H} heads; {model.name} has {model.n_layers} x {model.n_heads}.")
    counts = sorted({at for at in (POINTS if k is None else k) if 0 <= at <= L * H})
    base_SLH = torch.from_numpy(roles.g_plus).float()
    change = np.zeros((len(ROLES), S, len(counts), len(task)), dtype=np.float32)
    later = [at for at in range(len(counts)) if counts[at]]
    with bar(f"Ablating heads of {model.name} on {task.name}", len(ROLES) * S, unit="rankings") as shown:
        for r, role in enumerate(ROLES):
            for s in range(S):
                order = np.argsort(-getattr(roles, role)[s].ravel(), kind="stable")
                masks = []
                for at in later:
                    for value in (0.0, 1.0):
                        mask = base_SLH[s].flatten().clone()
                        mask[order[: counts[at]].copy()] = value
                        masks.append(mask.view(L, H))
                if masks:
                    log_CN = masked_log_probs(model, task, torch.stack(masks))
                    change[r, s, later] = log_CN[0::2] - log_CN[1::2]
                shown.advance()
    settings = {"n": len(task), "seed": task.seed, "seeds": roles.settings.get("seeds"), "heads": L * H}
    return Ablation(model.name, task.name, np.array(counts), change, settings)


@torch.no_grad()
def masked_log_probs(model: Model, task: Task, mask_CLH: Tensor, *, fill: str = "zero") -> np.ndarray:
    """log P of every prompt's target, summed over tokens, under every mask, (C, N).

    fill: "zero", or "corrupt" for the heads' outputs on the corrupt prompt followed by the same target.
    """
    targets, out = targets_of(task), np.empty((len(mask_CLH), len(task)), dtype=np.float32)
    lengths = [len(prompt) + len(target) - 1 for prompt, target in zip(task.clean_ids, targets, strict=True)]
    order = sorted(range(len(task)), key=lambda i: lengths[i])
    # A handful of prompts of like length at a time, under as many masks as fit.
    for first in range(0, len(order), 8):
        rows = order[first : first + 8]
        wanted = [targets[i] for i in rows]
        z = None
        if fill == "corrupt":
            with record(model) as z:
                log_probs(model, TargetBatch.of([task.corrupt_ids[i] for i in rows], wanted, model.device))
        size = max(1, TOKENS // (max(lengths[i] for i in rows) * len(rows)))
        for start in range(0, len(mask_CLH), size):
            part_CLH = mask_CLH[start : start + size]
            copies = len(part_CLH)
            batch = TargetBatch.of([task.clean_ids[i] for i in rows] * copies, wanted * copies, model.device)
            mask_BLH = part_CLH.repeat_interleave(len(rows), dim=0).to(model.device)
            block = gated(model, mask_BLH) if z is None else patched(model, mask_BLH, fill=_Repeated(z, copies))
            with block:
                log_B = row_sums(log_probs(model, batch), batch)
            out[start : start + size, rows] = log_B.view(copies, len(rows)).cpu().numpy()
    return out


class _Repeated:
    """A recording whose rows are repeated, layer by layer as they are asked for."""

    def __init__(self, z: Any, copies: int):
        self.z, self.copies = z, copies

    def __getitem__(self, layer: int) -> Tensor:
        return self.z[layer].repeat(self.copies, 1, 1, 1)


@torch.no_grad()
def head_effects(model: Model, task: Task) -> Scores:
    """Exact activation patching for targets of several tokens: what log P of the target loses when one head takes its
    output from the corrupt prompt followed by the same target (where there are no corrupt prompts: becomes zero)."""
    refuse_unfit(model, task)
    L, H = model.n_layers, model.n_heads
    fill = "corrupt" if task.corrupt_ids else "zero"
    effect_NLH = np.empty((len(task), L, H), dtype=np.float32)
    base_N = masked_log_probs(model, task, torch.ones(1, L, H))[0]
    with bar(f"Patching {L * H} heads of {model.name} on {task.name}", L, unit="layers") as shown:
        for layer in range(L):
            mask_CLH = torch.ones(H, L, H)
            mask_CLH[range(H), layer, range(H)] = 0.0
            effect_NLH[:, layer] = base_N[:, None] - masked_log_probs(model, task, mask_CLH, fill=fill).T
            shown.advance()
    return Scores.of(model.name, task, f"patching, {fill} fill", effect_NLH)
