"""What sparsifying minimises: the expected fraction of open gates, while the model stays as good as it was.

    minimise  S   subject to   C <= target          as          loss = C + weight * S

C is the cross-entropy (its target: the dense model's own plus a margin) or the divergence from the dense model (its
target: the margin). GECO (Rezende and Viola, arXiv 1810.00597) moves the penalty's weight: up while the moving
average of C is under its target, down when it is over, by a factor each time, so that no size
of S or C has to be guessed.

Pure: numbers and tensors in, numbers and tensors out. Shape letters: B batch, T positions, P some of them, V
vocabulary, H heads, N rows, R some of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn import functional

Number = TypeVar("Number", float, Tensor)

# Between these the weight moves; at the floor the penalty counts for nothing.
FLOOR, CEILING = 1e-4, 1e6


@dataclass(frozen=True)
class Geco:
    """The weight of the penalty and the moving average of the constraint.

    rate: the weight changes by at most this factor's logarithm in a step; less the nearer the average is to target.
    memory: share of the old average that is kept in a step.
    """

    weight: float
    rate: float
    memory: float = 0.9
    average: float | None = None

    def after(self, constraint: float, *, target: float, margin: float) -> Geco:
        """The state after a step in which the constraint was measured."""
        average = constraint if self.average is None else self.memory * self.average + (1 - self.memory) * constraint
        slack = max(-1.0, min(1.0, (target - average) / margin))
        weight = min(CEILING, max(FLOOR, self.weight * math.exp(self.rate * slack)))
        return replace(self, weight=weight, average=average)


def cross_entropy(logits_BPV: Tensor, ids_BT: Tensor, places_P: Tensor | None = None) -> Tensor:
    """Mean negative log-probability of every token but the first, or of those behind the given places only, whose
    logits are then the only ones given."""
    if places_P is None:
        logits_BPV, ids_BP = logits_BPV[:, :-1], ids_BT[:, 1:]
    else:
        ids_BP = ids_BT[:, places_P + 1]
    return functional.cross_entropy(logits_BPV.flatten(0, 1).float(), ids_BP.flatten())


def divergence(dense_BTV: Tensor, sparse_BTV: Tensor) -> Tensor:
    """Mean Kullback-Leibler divergence of the next token's distribution, from the dense model to the sparse one."""
    return _Divergence.apply(dense_BTV.flatten(0, 1), sparse_BTV.flatten(0, 1))  # pyright: ignore[reportReturnType]


class _Divergence(torch.autograd.Function):
    """The gradient with respect to the sparse logits is the difference of the distributions, which is all that is kept:
    a vocabulary is wide, and every tensor of its width costs. Some rows at a time, so that what lies between stays in
    a processor's cache."""

    ROWS = 16

    @staticmethod
    def forward(ctx, dense_NV, sparse_NV):
        count = len(dense_NV)
        value = torch.zeros((), device=sparse_NV.device)
        gradient_NV = torch.empty_like(sparse_NV)
        parts = (whole_NV.split(_Divergence.ROWS) for whole_NV in (dense_NV, sparse_NV, gradient_NV))
        for dense_RV, sparse_RV, gradient_RV in zip(*parts, strict=True):
            dense = dense_RV.float().log_softmax(-1)
            sparse = sparse_RV.float().log_softmax(-1)
            chance = dense.exp()
            value += torch.dot(chance.flatten(), dense.sub_(sparse).flatten()) / count
            gradient_RV.copy_(sparse.exp_().sub_(chance).div_(count))
        ctx.save_for_backward(gradient_NV)
        return value

    @staticmethod
    def backward(ctx, *gradients):
        return None, ctx.saved_tensors[0] * gradients[0]


# Under the root: where a head is closed for good, its gates are pressed ten times as hard as at one edge per query.
NEAR_ZERO = 0.01


def penalty(expected: Mapping[int, Tensor], kind: str, length: int) -> Tensor:
    """What is pressed down, from the expected open fractions of each layer, (B, H), on sequences of this length.

    "mean": the share of open edges. "edges": open edges per query and head, which says the same for any length.
    "sqrt": the mean over heads of the root of those, which presses the harder the less a head has open: it closes
    whole heads where the others thin all of them.
    """
    share = mean_fraction(expected)
    if kind == "mean":
        return share
    if kind == "edges":
        return edges_per_query(share, length)
    heads = torch.cat([edges_per_query(fraction_BH.float().mean(0), length) for fraction_BH in expected.values()])
    return (heads + NEAR_ZERO).sqrt().mean()


def edges_per_query(share: Number, length: int) -> Number:
    """Open edges per query and head: a share of causal edges says little without the length."""
    return share * ((length + 1) / 2)


def mean_fraction(fractions: Mapping[int, Tensor]) -> Tensor:
    """Mean over layers, heads and batch of what `Gates` found per layer, (B, H)."""
    return torch.stack([fraction_BH.float().mean() for fraction_BH in fractions.values()]).mean()
