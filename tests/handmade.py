"""A two-layer model whose weights are set by hand, so that its circuit is known.

Prompts are [A or B, X, X, Q]; the answer is the first token again. Two heads do it together:

* L0.H0 looks from position 1 to position 0 and copies which of A and B stands there into a first buffer;
* L1.H1 looks from the last position to position 1 and copies the first buffer into a second, which the unembedding
  reads.

L0.H1 and L1.H0 write a constant that nothing reads. MLPs write nothing. So each of the two heads alone decides the
answer: taking its output from the corrupt run gives the corrupt answer, and nothing else does anything.
"""

from __future__ import annotations

from typing import Any

import torch
from conftest import word_tokenizer
from transformers import GPT2Config, GPT2LMHeadModel

from headscope.models import Model
from headscope.models.attention import install
from headscope.tasks import Task

A, B, X, Q = range(4)
CIRCUIT = {(0, 0), (1, 1)}

# Places in the stream: four tokens, four positions, two buffers of two, a constant that nothing reads.
TOKEN, POSITION, FIRST, SECOND, IDLE = 0, 4, 8, 10, 12
WIDTH, HEADS, HEAD = 16, 2, 8


@torch.no_grad()
def handmade() -> Model:
    config = GPT2Config(
        vocab_size=4, n_positions=4, n_embd=WIDTH, n_layer=2, n_head=HEADS, tie_word_embeddings=False,
        bos_token_id=0, eos_token_id=3,
    )  # fmt: skip
    hf = GPT2LMHeadModel(config).eval()
    for name, parameter in hf.named_parameters():
        parameter.fill_(1.0 if "ln_" in name and name.endswith("weight") else 0.0)
    body = hf.transformer
    body.wte.weight[:, TOKEN : TOKEN + 4] = torch.eye(4)
    body.wpe.weight[:, POSITION : POSITION + 4] = torch.eye(4)
    _look(body.h[0].attn, head=0, at=1, to=0, read=TOKEN, write=FIRST)
    _look(body.h[1].attn, head=1, at=3, to=1, read=FIRST, write=SECOND)
    _say(body.h[0].attn, head=1)
    _say(body.h[1].attn, head=0)
    hf.lm_head.weight[A, SECOND] = hf.lm_head.weight[B, SECOND + 1] = 1.0
    return Model("handmade", hf, word_tokenizer(4), install(hf))


def _look(attention, *, head: int, at: int, to: int, read: int, write: int) -> None:
    """From position `at` the head attends to position `to`; it copies two places of the stream."""
    query, key, value = (part * WIDTH + head * HEAD for part in range(3))
    attention.c_attn.weight[POSITION + at, query] = 5.0
    attention.c_attn.weight[POSITION + to, key] = 5.0
    for i in range(2):
        attention.c_attn.weight[read + i, value + 1 + i] = 1.0
        attention.c_proj.weight[head * HEAD + 1 + i, write + i] = 1.0


def _say(attention, *, head: int) -> None:
    """The head writes the same everywhere, whatever the tokens."""
    attention.c_attn.bias[2 * WIDTH + head * HEAD] = 0.3
    attention.c_proj.weight[head * HEAD, IDLE] = 1.0


def handmade_task() -> Task:
    """The four prompts' worth of pairs that there are: A against B and B against A."""
    clean, corrupt = [[A, X, X, Q], [B, X, X, Q]], [[B, X, X, Q], [A, X, X, Q]]
    texts = [[" ".join(f"w{token}" for token in ids) for ids in side] for side in (clean, corrupt)]
    return Task("copy", "logit-diff", texts[0], texts[1], clean, corrupt, [[A], [B]], [[B], [A]], "words", None)


HELPS, HARMS, IDLE_HEADS = (0, 0), (0, 1), [(0, 2), (0, 3)]


@torch.no_grad()
def three_roles() -> Model:
    """One layer of four heads on prompts [A or B, Q], whose target is the first token again. L0.H0 copies that token to
    where the unembedding reads it; L0.H1 says X whatever the prompt; the other two write nothing at all."""
    config = GPT2Config(
        vocab_size=4, n_positions=4, n_embd=WIDTH, n_layer=1, n_head=4, tie_word_embeddings=False,
        bos_token_id=0, eos_token_id=3,
    )  # fmt: skip
    hf = GPT2LMHeadModel(config).eval()
    for name, parameter in hf.named_parameters():
        parameter.fill_(1.0 if "ln_" in name and name.endswith("weight") else 0.0)
    body, width = hf.transformer, WIDTH // 4
    attention: Any = body.h[0].attn
    body.wte.weight[:, TOKEN : TOKEN + 4] = torch.eye(4)
    body.wpe.weight[:, POSITION : POSITION + 4] = torch.eye(4)
    attention.c_attn.weight[POSITION + 1, 0] = attention.c_attn.weight[POSITION, WIDTH] = 5.0
    for i in range(2):
        attention.c_attn.weight[TOKEN + i, 2 * WIDTH + 1 + i] = 1.0
        attention.c_proj.weight[1 + i, FIRST + i] = 1.0
        hf.lm_head.weight[i, FIRST + i] = 1.0
    attention.c_attn.bias[2 * WIDTH + width] = 1.0
    attention.c_proj.weight[width, SECOND] = 1.0
    hf.lm_head.weight[X, SECOND] = 2.0
    return Model("three-roles", hf, word_tokenizer(4), install(hf))


def three_roles_task() -> Task:
    """The two prompts that there are."""
    return Task(
        "first", "log-prob", ["w0 w3", "w1 w3"], [], [[A, Q], [B, Q]], [], [[A], [B]], [[], []], "words", None,
        targets=[[A], [B]],
    )  # fmt: skip
