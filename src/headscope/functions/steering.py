"""The opposite of masking: steer heads towards how they are where the model answers correctly.

    z' = z + alpha * sigma * d        d = (mean of z where right - mean of z where wrong), of length 1
                                      sigma = standard deviation of z along d, over all answers

at the chosen heads, each with its own direction and sigma; z is taken at the answers' highest-surprisal tokens.
An alpha below zero steers the other way.

Shape letters: N answers, C alphas, H heads, K head width.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from headscope.functions.masking import Head
from headscope.models.model import Model

# With fewer right or wrong answers than this a mean says little.
LEAST = 5


def steering_vectors(
    model: Model, z_NLHK: Tensor, right: np.ndarray, heads: Sequence[Head], alphas: Sequence[float]
) -> list[Tensor] | None:
    """What to add at every head, per layer (C, H, K), for each alpha; None where there are too few right or wrong
    answers to tell a direction from."""
    right_N = torch.as_tensor(right.astype(bool))
    if min(int(right_N.sum()), int((~right_N).sum())) < LEAST:
        return None
    difference_LHK = z_NLHK[right_N].mean(0) - z_NLHK[~right_N].mean(0)
    direction_LHK = difference_LHK / difference_LHK.norm(dim=-1, keepdim=True).clamp(min=1e-12)
    sigma_LH = (z_NLHK * direction_LHK).sum(-1).std(0)
    shift_LHK = sigma_LH[..., None] * direction_LHK
    chosen_LH = torch.zeros(sigma_LH.shape)
    for layer, head in heads:
        chosen_LH[layer, head] = 1.0
    shift_LHK = shift_LHK * chosen_LH[..., None]
    alpha_C = torch.tensor(list(alphas))
    widths = model.reach.head_widths
    return [alpha_C[:, None, None] * shift_LHK[layer, :, :width] for layer, width in enumerate(widths)]
