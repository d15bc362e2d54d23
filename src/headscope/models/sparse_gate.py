"""The sparse gate: an attention edge passes what it reads only where its own attention logit says so.

For a head, query i and key j <= i, with s the attention logit and b a constant bias (Draye et al., arXiv 2512.05865):

    g_ij = s_ij + b        open_ij = 1[g_ij > 0]        z_i = sum_j open_ij * softmax_j(s_i) * v_j

The softmax runs over all causal keys and nothing is normalised again, so a head may write exactly nothing, and
pretrained weights drop in unchanged. Learned offsets add b_h + scale * q_i . c_h to g_ij, with q the query as attention
sees it: a shift of a whole row, which no softmax sees. (A key bias, which GPT-2 has and a model with rotary positions
has not, is such a c_h.)

In training the decision is made with logistic noise of a chosen scale (1 makes
it Bernoulli(sigmoid(g)), the paper's; 0 is the hard decision), and its gradient is that of sigmoid((g + noise) /
temperature), straight through. `expected` is the mean over causal edges of sigmoid(g / temperature), which the
training presses down; `opened` the fraction of edges that were open.

A model is gated when its config says so (`CONFIG_KEY`: the bias, and the offsets of every layer in base64, so that
whatever keeps the config keeps the gates). A `deciding(...)` block changes how gates are decided in it.

Shape letters: B batch, T query positions, S key positions, H heads, K head width, L layers; O = K + 1: c_h and b_h.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from headscope.errors import InputError
from headscope.schema import checked

CONFIG_KEY = "headscope_gate"
# The offsets of an attention module while they are trained, as a parameter of it.
OFFSETS = "headscope_offsets_HO"


@dataclass(eq=False)
class Gates:
    """How gates are decided, and what came of it in the last run: per layer the expected and the open fraction, each
    (B, H).

    kind: "hard" by the threshold; "trained" with noise and straight-through gradients; "random" open at `rates_LH`
    whatever the logits say, a control; "open" leaves the model dense.
    """

    kind: Literal["hard", "trained", "random", "open"] = "hard"
    noise: float = 1.0
    temperature: float = 1.0
    seed: int = 0
    rates_LH: Tensor | None = None
    expected: dict[int, Tensor] = field(default_factory=dict)
    opened: dict[int, Tensor] = field(default_factory=dict)

    def decide(self, scores_BHTS: Tensor, visible: Tensor, shift: Tensor | float, layer: int) -> Tensor:
        """Which edges are open, for "hard" and "random"; the shift is that of `shift_of`."""
        open_BHTS = scores_BHTS + shift > 0
        if self.rates_LH is not None:
            draw = generator(self.seed, layer, scores_BHTS.device)
            rate_H11 = self.rates_LH[layer].to(scores_BHTS)[:, None, None]
            open_BHTS = torch.rand(scores_BHTS.shape, generator=draw, device=scores_BHTS.device) < rate_H11
        open_BHTS = open_BHTS & visible
        self.opened[layer] = fraction(open_BHTS, visible)
        return open_BHTS


_GATES: ContextVar[Gates | None] = ContextVar("headscope_gates", default=None)


@contextmanager
def deciding(gates: Gates) -> Iterator[Gates]:
    """Decide the gates of gated models in this way inside the block."""
    token = _GATES.set(gates)
    try:
        yield gates
    finally:
        _GATES.reset(token)


@contextmanager
def straight_through(temperature: float) -> Iterator[None]:
    """Inside the block gradients pass hard gates as in training without noise, d open / d g = sigmoid'(g / temperature)
    / temperature. Values stay those of the hard gate; gates that are decided otherwise (random, open) stay so."""
    now = _GATES.get()
    if now is not None and now.kind != "hard":
        yield
        return
    with deciding(Gates("trained", noise=0.0, temperature=temperature)):
        yield


def gates_of(module: nn.Module) -> Gates | None:
    """How the gates of an attention module are to be decided now; None where the model is dense."""
    config: Any = getattr(module, "config", None)
    if getattr(config, CONFIG_KEY, None) is None:
        return None
    gates = _GATES.get()
    if gates is None:
        # A user's own training loop: the paper's gate, with noise that torch's seed decides.
        trained = module.training and torch.is_grad_enabled()
        gates = Gates("trained", seed=int(torch.randint(2**31, ()).item())) if trained else Gates()
    return None if gates.kind == "open" else gates


def shift_of(module: nn.Module, layer: int, query_BHTK: Tensor, scale: float) -> Tensor | float:
    """What the gates of a module add to its logits: the bias, or with offsets a number for every row, (B, H, T, 1)."""
    config: Any = module.config
    gate = getattr(config, CONFIG_KEY)
    offsets_HO = module._parameters.get(OFFSETS)
    if offsets_HO is None and "offsets" in gate:
        offsets_HO = unpacked(gate["offsets"][layer], query_BHTK.shape[1], query_BHTK.device)
    if offsets_HO is None:
        return float(gate["bias"])
    along_BHT1 = query_BHTK.float() @ offsets_HO[:, :-1, None]
    return along_BHT1 * scale + (offsets_HO[:, -1, None, None] + float(gate["bias"]))


@dataclass(frozen=True)
class GateEntry:
    """What a config or an adapter's file says of the gates."""

    bias: Annotated[float, Field(strict=True, allow_inf_nan=False)]
    offsets: list[str] | None = None


def refuse_odd_gate(gate: Any, where: str, n_layers: int) -> None:
    """A bias that is a number, and offsets, if any, that can be taken apart for every layer."""
    entry: GateEntry = checked(gate, GateEntry, where=where)
    if entry.offsets is None:
        return
    if len(entry.offsets) != n_layers:
        raise InputError(f"{where}: offsets must be of {n_layers} layers, found {len(entry.offsets)}.")
    for layer, text in enumerate(entry.offsets):
        try:
            offsets_1O = unpacked(text, 1, torch.device("cpu"))
            fine = bool(offsets_1O.numel() and offsets_1O.isfinite().all())
        except (ValueError, RuntimeError):
            fine = False
        if not fine:
            raise InputError(f"{where}: the offsets of layer {layer} must be finite numbers in base64; they are not.")


def packed(offsets_HO: Tensor) -> str:
    """A layer's offsets as text, in half precision."""
    return base64.b64encode(offsets_HO.detach().cpu().numpy().astype("<f2").tobytes()).decode()


@lru_cache(maxsize=1024)
def unpacked(text: str, n_heads: int, device: torch.device) -> Tensor:
    halves = np.frombuffer(base64.b64decode(text), "<f2").astype(np.float32)
    return torch.from_numpy(halves).reshape(n_heads, -1).to(device)


def generator(seed: int, layer: int, device: torch.device) -> torch.Generator:
    """Noise that depends on seed and layer alone, so that a second look at the same run finds the same noise."""
    return torch.Generator(device).manual_seed((seed * 1000003 + layer) % 2**63)


def fraction(part_BHTS: Tensor, visible: Tensor) -> Tensor:
    """Sum over causal edges divided by their number, (B, H)."""
    count = visible.expand(part_BHTS.shape).sum((-2, -1)).clamp(min=1)
    return part_BHTS.sum((-2, -1)) / count


class TrainedAttention(torch.autograd.Function):
    """Attention with trained gates: z (B, H, T, K), expected and open fractions (B, H).

    Nothing of size T x S is kept for the backward pass: scores are computed again, noise drawn again from its seed.
    """

    @staticmethod
    def forward(ctx, query_BHTK, key_BHSK, value_BHSK, shift, visible, scale, gates, layer):
        # The shift is a number, or (B, H, T, 1) and then has a gradient of its own: the row sums of the gates'.
        rows = shift if isinstance(shift, Tensor) else None
        ctx.save_for_backward(query_BHTK, key_BHSK, value_BHSK, visible, rows)
        ctx.rest = scale, shift if rows is None else None, gates.noise, gates.temperature, gates.seed, layer
        pattern, chance, open_, _ = TrainedAttention._decide(query_BHTK, key_BHSK, visible, rows, *ctx.rest)
        z_BHTK = (pattern * open_).to(value_BHSK.dtype) @ value_BHSK
        opened_BH = fraction(open_, visible)
        ctx.mark_non_differentiable(opened_BH)
        return z_BHTK, fraction(chance, visible), opened_BH

    @staticmethod
    def _decide(query_BHTK, key_BHSK, visible, shift_BHT1, scale, bias, noise, temperature, seed, layer):
        scores = (query_BHTK @ key_BHSK.transpose(-2, -1)).float().mul_(scale)
        scores = scores.masked_fill_(~visible, torch.finfo(scores.dtype).min)
        pattern = scores.softmax(-1)
        logits = scores.add_(bias if shift_BHT1 is None else shift_BHT1)
        chance = (logits / temperature).sigmoid_()
        if noise == 0:
            return pattern, chance, logits > 0, chance
        draw = torch.rand(scores.shape, generator=generator(seed, layer, scores.device), device=scores.device)
        noisy = draw.logit_(1e-7).mul_(noise).add_(logits)
        return pattern, chance, noisy > 0, (noisy / temperature).sigmoid_()

    @staticmethod
    def backward(ctx, *gradients):
        grad_z, grad_expected, _ = gradients
        query_BHTK, key_BHSK, value_BHSK, visible, shift_BHT1 = ctx.saved_tensors
        scale, _, _, temperature, _, _ = ctx.rest
        pattern, chance, open_, soft = TrainedAttention._decide(query_BHTK, key_BHSK, visible, shift_BHT1, *ctx.rest)
        grad_value = (pattern * open_).to(grad_z.dtype).transpose(-2, -1) @ grad_z
        grad_weight = (grad_z @ value_BHSK.transpose(-2, -1)).float().mul_(pattern)
        # Through the gate, straight: d weight / d soft = pattern. Through the softmax, where the gate is open.
        grad_scores = grad_weight * soft * (1 - soft) / temperature
        count = visible.expand(pattern.shape).sum((-2, -1)).clamp(min=1)
        grad_scores += (grad_expected / count / temperature)[..., None, None] * chance * (1 - chance)
        grad_shift = None if shift_BHT1 is None else grad_scores.sum(-1, keepdim=True)
        through = grad_weight.mul_(open_)
        grad_scores += through - pattern * through.sum(-1, keepdim=True)
        grad_scores = grad_scores.mul_(scale).to(query_BHTK.dtype)
        grad_query, grad_key = grad_scores @ key_BHSK, grad_scores.transpose(-2, -1) @ query_BHTK
        return grad_query, grad_key, grad_value, grad_shift, *[None] * 4
