"""What a head looks like: the share of its attention that goes where a known pattern would send it.

    previous token    to the token before
    first token       to the first token, where heads rest
    current token     to the token itself
    duplicate token   to earlier occurrences of the same token
    induction         to the tokens that followed those

each a mean over the queries that have such a place (but the first token, which can only attend to itself). On random
tokens said twice, the last two come from nothing but the repetition.

And what its weights would do with tokens as such, through the embedding and the norms' gains, without a prompt:

    OV copying        whether attending to a token raises that token's own logit
    QK matching       whether a token attends to tokens like itself

Both are the sum of the eigenvalues of the matrix from token to token over the sum of their sizes, from -1 to 1 (Elhage
and others, 2021). The matrix has the rank of a head, so that its eigenvalues are those of a small one. Rotary positions
and norms of q and k are left aside. These need a row in models/layouts.py; without one they are left out.

Cost: one forward pass. Shape letters: B prompts, T query and S key positions, M patterns, L layers, H heads, K head
width, D stream width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headscope.errors import InputError
from headscope.models.model import Model
from headscope.records import Patterns
from headscope.running.batching import in_parts, same_length
from headscope.running.edge_session import view_of
from headscope.running.edge_view import Block
from headscope.running.interventions import record
from headscope.running.unembedding import Unembedding, norm_parts
from headscope.tasks.task import Task

NAMES = ("previous token", "first token", "current token", "duplicate token", "induction")
WEIGHTS = ("OV copying", "QK matching")
REPEATED = "repeated tokens"


@torch.no_grad()
def patterns(model: Model, task: Task | None = None, *, n: int = 10, length: int = 50, seed: int = 0) -> Patterns:
    """Scores of known patterns for every head.

    Args:
        model: what `load` returned.
        task: on whose clean prompts; on random tokens said twice where there is none.
        n, length, seed: how many of those, of how many tokens, drawn how.

    Returns:
        A record: `values` (M, L, H) under `names`.
    """
    if not hasattr(model.hf, "_headscope_interface"):
        raise InputError(
            f"{model.name} ({model.hf.config.model_type}) does not show its attention patterns: it computes attention "
            "by itself, and Headscope reaches only what its heads put out."
        )
    ids = repeated_tokens(model, n, length, seed) if task is None else task.clean_ids
    sums_MLH, counts_M = np.zeros((len(NAMES), model.n_layers, model.n_heads)), np.zeros(len(NAMES))
    for group in same_length(model, "prompts", [len(row) for row in ids]):

        def run(rows: Sequence[int]) -> None:
            ids_BT = torch.tensor([ids[i] for i in rows], device=model.device)
            with record(model, patterns=True) as recording:
                model.hf(input_ids=ids_BT, use_cache=False, logits_to_keep=1)
            targets_MBTS = _targets(ids_BT)
            for layer in range(model.n_layers):
                weight_BHTS = recording.pattern(layer).float()
                sums_MLH[:, layer] += torch.einsum("mbts,bhts->mh", targets_MBTS, weight_BHTS).double().cpu().numpy()
            counts_M[:] += targets_MBTS.amax(-1).sum((1, 2)).cpu().numpy()

        in_parts(model, "prompts", group, run, each=len(ids[group[0]]))
    with np.errstate(invalid="ignore"):
        values = sums_MLH / np.where(counts_M > 0, counts_M, np.nan)[:, None, None]
    names: list[str] = list(NAMES)
    settings: dict[str, Any] = {"n": len(ids), "seed": seed if task is None else task.seed}
    try:
        names, values = [*names, *WEIGHTS], np.concatenate([values, copying(model)])
    except InputError as error:
        settings["left_out"] = f"{', '.join(WEIGHTS)}: {error}"
    return Patterns(model.name, REPEATED if task is None else task.name, names, values.astype(np.float32), settings)


def repeated_tokens(model: Model, n: int, length: int, seed: int) -> list[list[int]]:
    """Random tokens said twice, behind whatever the tokenizer puts first."""
    tokenizer: Any = model.tokenizer
    config = model.hf.config.get_text_config()
    limit = getattr(config, "max_position_embeddings", None) or 10**9
    first = [tokenizer.bos_token_id] if tokenizer("a")["input_ids"][:1] == [tokenizer.bos_token_id] else []
    length = min(length, (limit - len(first)) // 2)
    usable = np.setdiff1d(np.arange(min(len(tokenizer), config.vocab_size)), tokenizer.all_special_ids)
    draw = np.random.default_rng(seed)
    halves = [draw.choice(usable, length, replace=length > len(usable)).tolist() for _ in range(n)]
    return [first + half + half for half in halves]


def _targets(ids_BT: Tensor) -> Tensor:
    """(M, B, T, S): 1 where a pattern would attend."""
    B, T = ids_BT.shape
    place_T = torch.arange(T, device=ids_BT.device)
    t, s = place_T[:, None], place_T[None]
    same_BTS = (ids_BT[:, :, None] == ids_BT[:, None]) & (s < t)
    after_BTS = torch.zeros_like(same_BTS)
    after_BTS[:, :, 1:] = same_BTS[:, :, :-1]
    later = (t > 0).expand(T, T)
    fixed = [((s == t - 1) & later), ((s == 0) & later), ((s == t) & later)]
    # (What followed a token just before is the token itself.)
    return torch.stack([*(one.expand(B, T, T) for one in fixed), same_BTS, after_BTS & (s < t)]).float()


@torch.no_grad()
def copying(model: Model) -> np.ndarray:
    """(2, L, H): OV copying and QK matching of every head, from weights alone."""
    view = view_of(model)
    embedding: Any = model.hf.get_input_embeddings()
    embedding_VD: Tensor = embedding.weight.detach()
    unembedding = Unembedding.of(model, view.final_norm)
    like = embedding_VD[:1, None]
    final_D, _, _ = norm_parts(view.final_norm, like)
    embedding_VD = embedding_VD.float()
    to_logits_DD = embedding_VD.T @ (unembedding.weight_VD.float() * final_D.float())
    to_tokens_DD = embedding_VD.T @ embedding_VD
    found = [_head_copying(block, to_logits_DD, to_tokens_DD, like) for block in view.blocks]
    return np.stack(found, axis=1)


def _head_copying(block: Block, to_logits_DD: Tensor, to_tokens_DD: Tensor, like: Tensor) -> np.ndarray:
    """Those of one layer's heads, (2, H)."""
    read_D, _, _ = norm_parts(block.before_attention, like)
    write_D = 1.0 if block.after_attention is None else norm_parts(block.after_attention, like)[0].float()
    q, k, v = (block.weight_HKD[part].detach().float() * read_D.float() for part in "qkv")
    out_HKD = block.output_HKD.detach().float() * write_D
    ov_HKK = torch.einsum("hkd,de,hje->hkj", v, to_logits_DD, out_HKD)
    qk_HKK = torch.einsum("hkd,de,hje->hkj", k, to_tokens_DD, q)
    values = torch.linalg.eigvals(torch.stack([ov_HKK, qk_HKK]).double().cpu())
    return (values.real.sum(-1) / values.abs().sum(-1).clamp(min=1e-30)).numpy()
