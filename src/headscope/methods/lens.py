"""The logit lens: the stream after every layer, read by the final norm and the unembedding as if it were the last.

Cost: one forward pass, and an unembedding per layer. Models with a row in models/layouts.py (as for edges).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from headscope.methods.direct import Where, asked_positions
from headscope.models.model import Model
from headscope.records import Lens
from headscope.running.edge_session import view_of
from headscope.running.edge_view import watched
from headscope.running.measure import per_prompt
from headscope.running.targets import Targets
from headscope.running.unembedding import Unembedding
from headscope.tasks.task import Task


@torch.no_grad()
def lens(model: Model, task: Task, *, positions: Where = "answer") -> Lens:
    """Logit difference, and likeliest token, after every layer.

    Args:
        model: what `load` returned.
        task: prompts with right and wrong answers of one token.
        positions: "answer", the one that predicts the answer; or "each" (prompts of one length).

    Returns:
        A record: `values` (R,) or (R, T), with R the embedding and every layer; `per_prompt` with a leading N.
    """
    tokens = asked_positions(task, positions, model)
    view, task = view_of(model), replace(task, metric="logit-diff")
    unembedding = Unembedding.of(model, view.final_norm)

    def run(rows: Sequence[int], targets: Targets) -> Tensor:
        ids_BT = torch.tensor([task.clean_rows[i] for i in rows], device=model.device)
        with watched(view) as streams:
            model.hf(input_ids=ids_BT, use_cache=False, logits_to_keep=1)
        at = slice(None) if positions == "each" else slice(-1, None)
        found = []
        for stream_BTD in [*streams.attention_in, streams.final_in]:
            logits_BPV = unembedding.logits(stream_BTD[:, at])
            probability_BP, likeliest_BP = logits_BPV.softmax(-1).max(-1)
            # (The metric reads one position: each takes its turn as a row.)
            B, P, V = logits_BPV.shape
            repeated = [rows_ for rows_ in rows for _ in range(P)]
            value_BP = Targets.of(task, repeated, model.device)(logits_BPV.reshape(B * P, 1, V)).view(B, P)
            found.append(torch.stack([value_BP.double(), likeliest_BP.double(), probability_BP.double()], dim=1))
        return torch.stack(found, dim=2)

    found = per_prompt(model, task, run, f"Logit lens of {model.name} on {task.name}", purpose="edge prompts")
    value, likeliest, probability = (part if positions == "each" else part[..., 0] for part in found.swapaxes(0, 1))
    known, places = np.unique(likeliest.astype(int), return_inverse=True)
    words = [str(model.tokenizer.decode([int(token)])) for token in known]
    points = ["embedding", *(f"layer {layer}" for layer in range(model.n_layers))]
    settings = {"n": len(task), "seed": task.seed, "prompts": task.digest, "positions": positions}
    places = places.reshape(likeliest.shape)
    return Lens(model.name, task.name, points, value.mean(0), value, places, probability, words, tokens, settings)
