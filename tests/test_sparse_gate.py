"""The sparse gate: against the formula written out, in values and gradients; through whole models; and its config."""

from __future__ import annotations

import copy
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from architectures import INTERFACE, build
from torch import Tensor

from headscope.models.attention import Reach, install
from headscope.models.sparse_gate import (
    CONFIG_KEY,
    OFFSETS,
    Gates,
    TrainedAttention,
    deciding,
    generator,
    packed,
    shift_of,
)

B, H, T, K = 2, 3, 7, 4
# Soft-capped logits and sinks have gates at evaluation, but no training step.
ODD = {"gemma2", "gpt_oss"}


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def inputs() -> list[Tensor]:
    return [draw(B, H, T, K, seed=seed).mul(1.5).requires_grad_() for seed in range(3)]


def causal(padding: int = 0) -> Tensor:
    """(B, 1, T, T); the second row is padded on the left."""
    visible = torch.ones(T, T, dtype=torch.bool).tril().expand(B, 1, T, T).clone()
    visible[1, :, :, :padding] = False
    return visible


def literal(
    q: Tensor, k: Tensor, v: Tensor, visible: Tensor, gates: Gates, bias: float, offsets_HO: Tensor
) -> tuple[Tensor, Tensor]:
    """z and the expected open fraction, entry by entry."""
    scale, noise = K**-0.5, torch.rand(B, H, T, T, generator=generator(gates.seed, 0, q.device))
    z, expected = [], []
    for b in range(B):
        for h in range(H):
            total = torch.zeros(())
            for i in range(T):
                seen = [j for j in range(T) if visible[b, 0, i, j]]
                out = torch.zeros(K)
                if seen:
                    s = torch.stack([(q[b, h, i] * k[b, h, j]).sum() * scale for j in seen])
                    p = s.softmax(0)
                    u = torch.stack([noise[b, h, i, j] for j in seen])
                    g = s + bias + offsets_HO[h, -1] + scale * (q[b, h, i] * offsets_HO[h, :-1]).sum()
                    logits = g + gates.noise * (u / (1 - u)).log()
                    soft = (logits / gates.temperature).sigmoid()
                    # Straight through: the decision forwards, the soft one backwards.
                    decided = (logits > 0).float() + soft - soft.detach()
                    out = (decided * p) @ v[b, h][seen]
                    total = total + (g / gates.temperature).sigmoid().sum()
                z.append(out)
            expected.append(total / visible[b, 0].sum())
    return torch.stack(z).view(B, H, T, K), torch.stack(expected).view(B, H)


class Attention(torch.nn.Module):
    """What `shift_of` reads: a config, and offsets where they are trained."""

    def __init__(self, bias: float, offsets_HO: Tensor | None = None):
        super().__init__()
        self.config = SimpleNamespace(**{CONFIG_KEY: {"bias": bias}})
        if offsets_HO is not None:
            self.register_parameter(OFFSETS, torch.nn.Parameter(offsets_HO))


@pytest.mark.parametrize("learned", [True, False])
@pytest.mark.parametrize(
    ("noise", "temperature", "bias", "padding"), [(1.0, 1.0, 0.0, 0), (0.0, 1.0, 0.3, 2), (0.4, 0.5, -0.2, 3)]
)
def test_values_and_gradients_are_those_of_the_formula(
    noise: float, temperature: float, bias: float, padding: int, learned: bool
):
    gates, visible = Gates("trained", noise, temperature, seed=5), causal(padding)
    weight_z, weight_S = draw(B, H, T, K, seed=8), draw(B, H, seed=9)
    found = []
    for run in ("fast", "literal"):
        qkv = inputs()
        q, k, v = qkv
        module = Attention(bias, draw(H, K + 1, seed=3) if learned else None)
        if run == "fast":
            shift = shift_of(module, 0, q, K**-0.5)
            assert isinstance(shift, Tensor) == learned
            z, S, opened = TrainedAttention.apply(*qkv, shift, visible, K**-0.5, gates, 0)  # pyright: ignore[reportGeneralTypeIssues]
            assert 0 < opened.mean() < 1
        else:
            z, S = literal(q, k, v, visible, gates, bias, next(module.parameters(), torch.zeros(H, K + 1)))
        ((z * weight_z).sum() + 10 * (S * weight_S).sum()).backward()
        found.append([z, S, *(tensor.grad for tensor in [*qkv, *module.parameters()])])
    for fast, slow in zip(*found, strict=True):
        torch.testing.assert_close(fast, slow, atol=1e-5, rtol=1e-4)


def test_penalty_of_a_case_by_hand():
    # One head, two tokens, scale 1: logits 0, ln 3, -ln 3 below the diagonal give 0.5, 0.75 and 0.25, a mean of 0.5.
    q = torch.tensor([[[[0.0, 0.0], [1.0, -1.0]]]])
    k = torch.tensor([[[[3.0, 0.0], [0.0, 3.0]]]]).log().nan_to_num(neginf=0.0)
    visible = torch.ones(1, 1, 2, 2, dtype=torch.bool).tril()
    v = torch.ones(1, 1, 2, 2)
    z, expected, opened = TrainedAttention.apply(q, k, v, 0.0, visible, 1.0, Gates("trained", noise=0.0), 0)  # pyright: ignore[reportGeneralTypeIssues]
    assert expected.item() == pytest.approx(0.5)
    # Open is what is above zero: of three edges the one with logit ln 3, which has 9/10 of its row.
    assert opened.item() == pytest.approx(1 / 3)
    torch.testing.assert_close(z[0, 0], torch.tensor([[0.0, 0.0], [0.9, 0.9]]))


def gated(hf: Any, bias: float = 0.0, offsets: list[Tensor] | None = None) -> Any:
    hf = copy.deepcopy(hf)
    more = {} if offsets is None else {"offsets": [packed(offsets_HO) for offsets_HO in offsets]}
    setattr(hf.config, CONFIG_KEY, {"bias": bias, **more})
    return hf


def offsets_of(reach: Reach, *, along: float = 0.0, each: float = 0.0) -> list[Tensor]:
    """Offsets for every layer: c_h drawn at random, b_h a number."""
    drawn = [draw(reach.n_heads, width + 1, seed=layer) * along for layer, width in enumerate(reach.head_widths)]
    for offsets_HO in drawn:
        offsets_HO[:, -1] = each
    return drawn


@pytest.mark.parametrize("name", sorted(INTERFACE))
def test_a_large_bias_is_the_dense_model(name: str):
    hf = build(name)
    reach = install(hf)
    ids = torch.randint(3, 90, (2, 9), generator=torch.Generator().manual_seed(1))
    expected = hf(input_ids=ids).logits
    for wide in (
        gated(hf, 1e4),
        gated(hf, 0.0, offsets_of(reach, each=1e4)),
        gated(hf, 2e4, offsets_of(reach, along=1)),
    ):
        torch.testing.assert_close(wide(input_ids=ids).logits, expected, atol=1e-5, rtol=1e-4)
        if name not in ODD:
            with deciding(Gates("trained", noise=1.0)) as gates:
                torch.testing.assert_close(wide(input_ids=ids).logits, expected, atol=1e-5, rtol=1e-4)
            assert all((opened == 1).all() for opened in gates.opened.values())
    shut = gated(hf, 0.0, offsets_of(reach, each=-1e4))
    assert (shut(input_ids=ids).logits - expected).abs().max() > 1e-3
    with deciding(Gates("open")):
        torch.testing.assert_close(gated(hf, -1e4)(input_ids=ids).logits, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", sorted(set(INTERFACE) - ODD))
def test_hard_gates_are_trained_gates_without_noise(name: str):
    hf = build(name)
    sparse = gated(hf, offsets=offsets_of(install(hf), along=0.3))
    ids = torch.randint(3, 90, (2, 9), generator=torch.Generator().manual_seed(1))
    seen = torch.ones(2, 9, dtype=torch.long)
    seen[1, :3] = 0
    found = []
    for gates in (Gates(), Gates("trained", noise=0.0)):
        with deciding(gates):
            found.append(sparse(input_ids=ids, attention_mask=seen).logits)
    torch.testing.assert_close(found[0][0], found[1][0], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(found[0][1, 3:], found[1][1, 3:], atol=1e-5, rtol=1e-4)
    assert (found[0] - hf(input_ids=ids, attention_mask=seen).logits).abs().max() > 1e-3


@pytest.mark.parametrize("name", ["gpt2", "llama-gqa", "qwen3", "gemma3"])
def test_a_cache_changes_nothing(name: str):
    hf = build(name)
    sparse = gated(hf, offsets=offsets_of(install(hf), along=0.3))
    ids = torch.randint(3, 90, (2, 5), generator=torch.Generator().manual_seed(2))
    options: dict[str, Any] = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    with torch.no_grad():
        cached = sparse.generate(ids, use_cache=True, **options)
        plain = sparse.generate(ids, use_cache=False, **options)
        whole = sparse(input_ids=cached).logits[:, 4:-1].argmax(-1)
    assert torch.equal(cached, plain)
    assert torch.equal(cached[:, 5:], whole)


def test_noise_follows_the_seed_and_survives_gradient_checkpointing():
    hf = build("llama-gqa")
    install(hf)
    ids = torch.randint(3, 90, (2, 9), generator=torch.Generator().manual_seed(3))

    def gradient(seed: int, checkpointing: bool = False) -> Tensor:
        sparse = gated(hf).train()
        if checkpointing:
            sparse.gradient_checkpointing_enable({"use_reentrant": False})
        with deciding(Gates("trained", seed=seed)) as gates:
            loss = sparse(input_ids=ids, labels=ids, use_cache=False).loss
            (loss + sum(part.mean() for part in gates.expected.values())).backward()
        return sparse.model.layers[0].self_attn.q_proj.weight.grad

    assert torch.equal(gradient(1), gradient(1))
    assert not torch.equal(gradient(1), gradient(2))
    torch.testing.assert_close(gradient(1), gradient(1, checkpointing=True))


def test_random_gates_open_at_their_rates_whatever_the_logits_say():
    hf = build("llama-gqa")
    install(hf)
    sparse = gated(hf, -1e4)
    ids = torch.randint(3, 90, (64, 20), generator=torch.Generator().manual_seed(3))
    rates = torch.tensor([[0.0, 0.1, 0.5, 1.0], [1.0, 0.9, 0.2, 0.0]])
    with deciding(Gates("random", rates_LH=rates)) as gates, torch.no_grad():
        sparse(input_ids=ids)
    for layer in range(2):
        torch.testing.assert_close(gates.opened[layer].mean(0), rates[layer], atol=0.02, rtol=0)


def test_a_training_loop_of_ones_own_has_noise_and_gradients():
    hf = build("llama-gqa")
    install(hf)
    sparse = gated(hf).train()
    ids = torch.randint(3, 90, (2, 9), generator=torch.Generator().manual_seed(3))
    torch.manual_seed(0)
    losses = [sparse(input_ids=ids, labels=ids).loss for _ in range(2)]
    assert losses[0] != losses[1]
    losses[0].backward()
    assert sparse.model.layers[0].self_attn.k_proj.weight.grad.abs().sum() > 0
    sparse.eval()
    assert sparse(input_ids=ids, labels=ids).loss == sparse(input_ids=ids, labels=ids).loss


@pytest.mark.parametrize("order", ["headscope, transformers", "transformers, headscope", "headscope.models.attention"])
def test_plain_transformers_knows_the_implementation_after_the_import(order: str):
    script = (
        f"import {order}\n"
        "from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS\n"
        "assert 'headscope' in ALL_ATTENTION_FUNCTIONS.valid_keys()"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
