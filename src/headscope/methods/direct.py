"""Direct logit attribution: what every component writes straight into the answer's logit difference.

    direct(c) = (u_right - u_wrong) . (what c wrote at the position that predicts the answer)

u_t is the direction of token t's logit in the stream, through the unembedding and the final norm, whose size is that of
the run (`running.unembedding`). The sum over components, and over the biases that no component writes, is the model's
own logit difference. What a component does through others is not in it: patching tells that.

Cost: one forward pass, in closed form. Models with a row in models/layouts.py (as for edges).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from headscope.errors import InputError
from headscope.models.model import Model
from headscope.records import Direct
from headscope.running.edge_session import view_of
from headscope.running.edge_view import EdgeView, Streams, head_values, watched
from headscope.running.measure import per_prompt
from headscope.running.targets import Targets, target_logits
from headscope.running.unembedding import Unembedding
from headscope.tasks.task import Task

Where = Literal["answer", "each"]


@torch.no_grad()
def direct(model: Model, task: Task, *, positions: Where = "answer") -> Direct:
    """What each component writes into the logit difference of the best right and the best wrong answer.

    Args:
        model: what `load` returned.
        task: prompts with right and wrong answers of one token.
        positions: "answer", the one that predicts the answer; or "each", as if the answer were read at every position
            (prompts of one length).

    Returns:
        A record: `values` (C,) or (C, T), `per_prompt` with a leading N, `total` the logit differences they sum to.
    """
    tokens = asked_positions(task, positions, model)
    view, task = view_of(model), replace(task, metric="logit-diff")
    unembedding = Unembedding.of(model, view.final_norm)

    def run(rows: Sequence[int], targets: Targets) -> Tensor:
        ids = [task.clean_rows[i] for i in rows]
        with watched(view) as streams:
            logits_BPV = target_logits(model, ids, targets).float()
        best_BA = torch.stack(
            [
                _best(logits_BPV, targets.right_BPA, targets.has_right_BPA),
                _best(logits_BPV, targets.wrong_BPA, targets.has_wrong_BPA),
            ],
            dim=-1,
        )
        at = slice(None) if positions == "each" else slice(-1, None)
        read_BPD = streams.final_in[:, at]
        direction_BPAD, constant_BPA = unembedding.linear(read_BPD, best_BA)
        u_BPD, rest_BP = direction_BPAD[:, :, 0] - direction_BPAD[:, :, 1], constant_BPA[..., 0] - constant_BPA[..., 1]
        shown_BPA = unembedding.logits(read_BPD).gather(-1, best_BA[:, None].expand(-1, read_BPD.shape[1], -1))
        total_BP = (shown_BPA[..., 0] - shown_BPA[..., 1]).double()
        return torch.cat([_written(view, streams, at, u_BPD, rest_BP), total_BP[:, None]], dim=1)

    found = per_prompt(model, task, run, f"Direct logits of {model.name} on {task.name}", purpose="edge prompts")
    found = found if positions == "each" else found[:, :, 0]
    each, total = found[:, :-1], found[:, -1]
    settings = {"n": len(task), "seed": task.seed, "prompts": task.digest, "positions": positions}
    settings["largest_error"] = float(np.abs(each.sum(1) - total).max())
    components = [*view.graph().writers, "biases"]
    return Direct(model.name, task.name, components, each.mean(0), each, total, tokens, settings)


def asked_positions(task: Task, positions: str, model: Model) -> list[list[str]]:
    """The tokens of every prompt where each position is asked for, which needs prompts of one length."""
    if positions not in ("answer", "each"):
        raise InputError(f'Unknown positions {positions!r}. Known: "answer", "each".')
    if positions == "answer":
        return []
    lengths = {len(row) for row in task.clean_ids}
    if len(lengths) > 1:
        raise InputError(
            f'positions="each" needs prompts of one length; those of {task.name} have {min(lengths)} to {max(lengths)} '
            "tokens. Take those of one length, or the answer's position."
        )
    return [[str(model.tokenizer.decode([token])) for token in row] for row in task.clean_ids]


def _best(logits_BPV: Tensor, tokens_BPA: Tensor, has_BPA: Tensor) -> Tensor:
    """The likeliest of some tokens at the answer's position, (B,)."""
    logit_BA = logits_BPV[:, -1].gather(-1, tokens_BPA[:, -1]).masked_fill(~has_BPA[:, -1], float("-inf"))
    return tokens_BPA[:, -1].gather(-1, logit_BA.argmax(-1, keepdim=True))[:, 0]


def _written(view: EdgeView, streams: Streams, at: slice, u_BPD: Tensor, rest_BP: Tensor) -> Tensor:
    """What every writer, and last the biases, wrote along u, (B, C, P)."""

    def along(value: Tensor) -> Tensor:
        return torch.einsum("b...pd,bpd->b...p", value.double(), u_BPD)

    parts = [along(streams.attention_in[0][:, at])[:, None]]
    for layer, block in enumerate(view.blocks):
        parts.append(along(head_values(block, streams.z[layer][:, at])))
        parts.append(along(streams.mlp_out[layer][:, at])[:, None])
        if block.output_bias is not None:
            rest_BP = rest_BP + u_BPD @ block.output_bias.detach().double()
    return torch.cat([*parts, rest_BP[:, None]], dim=1)
