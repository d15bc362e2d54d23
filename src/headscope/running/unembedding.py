"""From the stream to logits: the final norm, the unembedding, a soft cap where the model has one.

With the sizes that a run had (that of the stream, by which the norm divides, and how much the cap takes from a logit)
held fixed, a logit is linear in the stream, so that what components write into it adds up:

    logit(t) = s_t * ( gain * W_t . (x - mean x) / size + bias . W_t + b_t )

Gain, bias and whether the norm centres are read from what the norm does to a known vector, and `size` from what it did
to x, so that every kind of norm will do and none needs a row of its own.

Shape letters: B prompts, P positions, A tokens asked for, D stream width, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headscope.errors import InputError
from headscope.models.model import Model
from headscope.models.weights import is_plain


@dataclass(frozen=True)
class Unembedding:
    """The way from a model's stream to its logits."""

    norm: nn.Module
    weight_VD: Tensor
    bias_V: Tensor | None
    cap: float | None  # of the logits

    @classmethod
    def of(cls, model: Model, norm: nn.Module) -> Unembedding:
        head: Any = model.hf.get_output_embeddings()
        if not isinstance(head, nn.Linear) or not is_plain(head.weight):
            found = type(head).__name__
            raise InputError(f"Direct logits need a plain unembedding matrix; {model.name} has a {found}.")
        cap = getattr(model.hf.config.get_text_config(), "final_logit_softcapping", None)
        return cls(norm, head.weight.detach(), None if head.bias is None else head.bias.detach(), cap)

    def logits(self, stream_BPD: Tensor) -> Tensor:
        """What the model would say if it read its stream here, (B, P, V)."""
        logits_BPV = nn.functional.linear(self.norm(stream_BPD), self.weight_VD, self.bias_V).float()
        return logits_BPV if self.cap is None else self.cap * torch.tanh(logits_BPV / self.cap)

    def linear(self, stream_BPD: Tensor, tokens_BA: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of some tokens as linear functions of the stream, at the sizes that it has here.

        Returns:
            Direction (B, P, A, D) and constant (B, P, A), in double precision: logit = direction . stream + constant.
        """
        gain_D, bias_D, centres = norm_parts(self.norm, stream_BPD)
        x_BPD, y_BPD = stream_BPD.double(), self.norm(stream_BPD).double() - bias_D
        moved_BPD = gain_D * (x_BPD - x_BPD.mean(-1, keepdim=True) if centres else x_BPD)
        # The size that makes `moved` what the norm put out.
        size_BP = (moved_BPD * y_BPD).sum(-1) / (y_BPD * y_BPD).sum(-1).clamp(min=1e-30)
        weight_BAD = self.weight_VD[tokens_BA].double()
        extra_BA = 0.0 if self.bias_V is None else self.bias_V[tokens_BA].double()
        direction_BAD = weight_BAD * gain_D
        if centres:
            direction_BAD = direction_BAD - direction_BAD.mean(-1, keepdim=True)
        direction_BPAD = direction_BAD[:, None] / size_BP[:, :, None, None]
        constant_BPA = (weight_BAD @ bias_D + extra_BA)[:, None].expand(*size_BP.shape, -1)
        if self.cap is None:
            return direction_BPAD, constant_BPA
        logit_BPA = torch.einsum("bpad,bpd->bpa", direction_BPAD, x_BPD) + constant_BPA
        share_BPA = self.cap * torch.tanh(logit_BPA / self.cap) / torch.where(logit_BPA == 0, 1.0, logit_BPA)
        share_BPA = torch.where(logit_BPA == 0, 1.0, share_BPA)
        return direction_BPAD * share_BPA[..., None], constant_BPA * share_BPA


def norm_parts(norm: nn.Module, like: Tensor) -> tuple[Tensor, Tensor, bool]:
    """Gain (D,) and bias (D,) of a norm, and whether it takes the mean away first. like: a stream, for its width and
    kind of numbers."""
    D = like.shape[-1]
    known_D = torch.tensor([1.0, -1.0] * (D // 2) + [0.0] * (D % 2), device=like.device)
    if D % 2:
        known_D[-3:] = torch.tensor([1.0, 1.0, -2.0])
    if isinstance(norm, nn.Identity):
        return torch.ones(D, device=like.device).double(), torch.zeros(D, device=like.device).double(), False
    # (So large that the norm's epsilon is nothing beside it.)
    large_D = 1000 * known_D
    bias_D, put_D, shifted_D = (
        norm(x_D.to(like.dtype)[None, None])[0, 0].double()
        for x_D in (torch.zeros_like(known_D), large_D, large_D + 500)
    )
    gain_D = (put_D - bias_D) * known_D.double().pow(2).mean().sqrt() / known_D.double()
    return gain_D, bias_D, bool((shifted_D - put_D).abs().max() < 0.05 * (put_D - bias_D).abs().max())
