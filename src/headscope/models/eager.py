"""Attention written out, for what SDPA does not know: gates, soft-capping, sinks, and edits of the pattern.

Shape letters: B batch, T query positions, S key positions, H heads, G key-value heads, K head width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from transformers.integrations.sdpa_attention import repeat_kv

from headscope.models.sparse_gate import Gates, TrainedAttention, shift_of

# From a value with its positions before its heads, (B, T, H, ...), and its layer to the value that goes on.
Edit = Callable[[Tensor, int], Tensor]


def eager_attention(
    module: nn.Module,
    query_BHTK: Tensor,
    key_BGSK: Tensor,
    value_BGSK: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    sparse: Gates | None = None,
    layer: int = 0,
    edits: Sequence[tuple[str, Edit]] = (),
    **kwargs,
) -> tuple[Tensor, Tensor]:
    """Attention written out: scores, soft-cap, mask, softmax (with a sink where the model has one), gates where the
    model is sparse, sum of values. edits: of which keys are "visible", before the softmax, and of the "pattern"."""
    groups = query_BHTK.shape[1] // key_BGSK.shape[1]
    key_BHSK, value_BHSK = repeat_kv(key_BGSK, groups), repeat_kv(value_BGSK, groups)
    scale = query_BHTK.shape[-1] ** -0.5 if scaling is None else scaling
    scores_BHTS = torch.matmul(query_BHTK, key_BHSK.transpose(2, 3)) * scale
    if softcap is not None:
        scores_BHTS = torch.tanh(scores_BHTS / softcap) * softcap
    visible = visible_keys(scores_BHTS, attention_mask)
    if attention_mask is not None and attention_mask.dtype != torch.bool:
        scores_BHTS = scores_BHTS + attention_mask
    hidden_BHTS = None
    for part, edit in edits:
        if part == "visible":
            seen_BHTS = visible.expand(scores_BHTS.shape)
            visible = edit(seen_BHTS.transpose(1, 2), layer).transpose(1, 2)
            hidden_BHTS = seen_BHTS & ~visible
    open_BHTS = None
    if sparse:
        open_BHTS = sparse.decide(scores_BHTS, visible, shift_of(module, layer, query_BHTK, scale), layer)
    scores_BHTS = scores_BHTS.masked_fill(~visible, torch.finfo(scores_BHTS.dtype).min)
    if s_aux is not None:
        sink_BHT1 = s_aux.reshape(1, -1, 1, 1).expand(*scores_BHTS.shape[:3], 1)
        scores_BHTS = torch.cat([scores_BHTS, sink_BHT1], dim=-1)
        scores_BHTS = scores_BHTS - scores_BHTS.max(dim=-1, keepdim=True).values
    pattern_BHTS = scores_BHTS.softmax(dim=-1, dtype=torch.float32).to(query_BHTK.dtype)[..., : key_BGSK.shape[2]]
    if softcap is None:
        # A padding query sees nothing: SDPA gives it an empty sum. (Soft-capped models average there; so do we.)
        pattern_BHTS = pattern_BHTS.masked_fill(~visible, 0.0)
    elif hidden_BHTS is not None:
        # Of a query that is cut from all its keys nothing is left, whatever the model.
        pattern_BHTS = pattern_BHTS.masked_fill(~visible & hidden_BHTS.any(-1, keepdim=True), 0.0)
    if open_BHTS is not None:
        pattern_BHTS = pattern_BHTS * open_BHTS
    for part, edit in edits:
        if part == "pattern":
            pattern_BHTS = edit(pattern_BHTS.transpose(1, 2), layer).transpose(1, 2)
    weights_BHTS = nn.functional.dropout(pattern_BHTS, p=dropout, training=module.training)
    z_BTHK = torch.matmul(weights_BHTS, value_BHSK).transpose(1, 2).contiguous()
    return z_BTHK, pattern_BHTS


def trained_attention(
    module: nn.Module,
    query_BHTK: Tensor,
    key_BGSK: Tensor,
    value_BGSK: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None,
    gates: Gates,
    layer: int,
) -> Tensor:
    """Attention while its gates are trained; z (B, T, H, K)."""
    groups = query_BHTK.shape[1] // key_BGSK.shape[1]
    key_BHSK, value_BHSK = repeat_kv(key_BGSK, groups), repeat_kv(value_BGSK, groups)
    scale = query_BHTK.shape[-1] ** -0.5 if scaling is None else scaling
    visible = visible_keys(query_BHTK.new_empty(1, 1, query_BHTK.shape[2], key_BGSK.shape[2]), attention_mask)
    z_BHTK, gates.expected[layer], gates.opened[layer] = TrainedAttention.apply(  # pyright: ignore[reportGeneralTypeIssues]
        query_BHTK, key_BHSK, value_BHSK, shift_of(module, layer, query_BHTK, scale), visible, scale, gates, layer
    )
    return z_BHTK.transpose(1, 2).contiguous()


def visible_keys(scores_BHTS: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Which keys each query may see, in the shape of the mask or (T, S)."""
    if attention_mask is None:
        T, S = scores_BHTS.shape[-2:]
        return torch.ones(T, S, dtype=torch.bool, device=scores_BHTS.device).tril(S - T)
    if attention_mask.dtype != torch.bool:
        return attention_mask > torch.finfo(attention_mask.dtype).min / 2
    return attention_mask
