"""Masks for a function's K best heads, and for K others at random.

Shape letters: C masks, L layers, H heads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from headscope.errors import InputError
from headscope.records import Scores

# The paper's numbers, of 1,024 heads; and two small ones, so that the fall itself is seen.
PAPER_KS, PAPER_HEADS, SMALL_KS = (16, 32, 64, 128), 1024, (1, 2)
FACTOR = 1e-3
Head = tuple[int, int]


@dataclass(frozen=True)
class Choice:
    """The K best heads by a ranking, and several draws of K heads from outside them."""

    k: int
    top: list[Head]
    random: list[list[Head]]


def choose(scores: Scores, k: int, *, draws: int, seed: int) -> Choice:
    """TopK and RandomK: the draws of a seed do not depend on those of other k."""
    order = scores.ranked()
    generator = np.random.default_rng([seed, k])
    rest = order[k:]
    drawn = [[rest[i] for i in sorted(generator.permutation(len(rest))[:k])] for _ in range(draws)]
    return Choice(k, order[:k], drawn)


def default_ks(total: int) -> list[int]:
    """Numbers of heads to mask in a model of this many: the paper's shares, and small ones."""
    return sorted({*SMALL_KS, *(of_paper(k, total) for k in PAPER_KS)})


def of_paper(k: int, total: int) -> int:
    """The same share of a model's heads as k of the paper's."""
    return max(1, round(total * k / PAPER_HEADS))


def clipped(ks: Iterable[int], total: int) -> list[int]:
    """The numbers of heads to mask, at most half of all heads: as many others must be left to draw from."""
    counts = sorted({min(k, total // 2) for k in ks})
    if not counts or counts[0] < 1:
        raise InputError(f"Expected numbers of heads to mask of at least 1, found {', '.join(map(str, ks)) or 'none'}.")
    return counts


def masks(shape: tuple[int, int], sets: Sequence[Sequence[Head]], *, factor: float = FACTOR) -> Tensor:
    """A mask for each set of heads, (C, L, H): `factor` at its heads, 1 elsewhere."""
    mask_CLH = torch.ones(len(sets), *shape)
    for mask_LH, heads in zip(mask_CLH, sets, strict=True):
        for layer, head in heads:
            mask_LH[layer, head] = factor
    return mask_CLH
