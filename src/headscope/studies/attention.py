"""Attention patterns of every head on a few prompts, for people to look at.

Shape letters: P prompts, L layers, H heads, T positions (of the query), S positions (of the key).
"""

from __future__ import annotations

import numpy as np
import torch

from headscope.models import Model
from headscope.records import Attention
from headscope.running.interventions import record
from headscope.tasks import Task

# Longer prompts are passed over: their patterns are too large to keep and to look at.
LONGEST = 160


@torch.no_grad()
def patterns(model: Model, ids: list[list[int]]) -> np.ndarray:
    """Attention weights as they pass, on prompts of one length, (P, L, H, T, S)."""
    with record(model, patterns=True) as recording:
        model.hf(**model.batch(ids), use_cache=False, logits_to_keep=1)
    return np.stack([recording.pattern(l).float().cpu().numpy() for l in range(model.n_layers)], axis=1)


def shows_patterns(model: Model, task: Task) -> bool:
    """Attention that does not go through transformers' interface shows nothing but its output."""
    return hasattr(model.hf, "_headscope_interface") and len(task.clean_ids[0]) <= LONGEST


def attention_of(model: Model, task: Task, *, prompts: int = 2) -> Attention:
    """The patterns of the first prompts that are as long as the first."""
    ids = [row for row in task.clean_ids if len(row) == len(task.clean_ids[0])][:prompts]
    tokens = [[str(model.tokenizer.decode([token])) for token in row] for row in ids]
    return Attention(model.name, task.name, tokens, patterns(model, ids).astype(np.float16), {"seed": task.seed})
