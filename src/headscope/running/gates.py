"""Fitting gates: many matrices of head gates at once, as rows of one batch, by Adam on the log-probability of targets.

A `Fit` holds C gate matrices as logits m_CLH (gate = sigmoid(m)) with Adam's moments, and is all there is to save: the
prompts that an update sees follow from the seed of a matrix and the number of the update. Every matrix has its own
batches and its own gradient clipping, so that fitting several together is fitting each alone.

Shape letters: C gate matrices, B prompts per matrix and update, R = C * B rows, P target positions, L layers, H heads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headscope.models.model import Model
from headscope.models.weights import refuse_overflow
from headscope.records.sealed import read_sealed, write_sealed
from headscope.running.batching import in_parts
from headscope.running.interventions import gated
from headscope.running.targets import Targets, token_log_probs
from headscope.tasks.task import Task

# Beyond this, a logit is not driven further by the regularisation.
CLIP = 4.0
GRADIENT_NORM = 1.0
# Adam's own constants.
BETAS, EPSILON = (0.9, 0.999), 1e-8


@dataclass(frozen=True)
class Stage:
    """How long and how fast to go: updates, and the learning rate at both ends of a straight line."""

    updates: int
    rate: tuple[float, float]

    def rate_at(self, update: int) -> float:
        first, last = self.rate
        return first + (last - first) * update / max(1, self.updates - 1)


@dataclass
class Fit:
    """Gate logits being fitted, the seed of each matrix, and Adam's moments."""

    m_CLH: Tensor
    seeds: list[int]
    mean_CLH: Tensor = field(default_factory=lambda: torch.empty(0))
    square_CLH: Tensor = field(default_factory=lambda: torch.empty(0))
    update: int = 0
    losses: list[list[float]] = field(default_factory=list)  # of each update, by matrix

    def __post_init__(self) -> None:
        if not len(self.mean_CLH):
            self.mean_CLH, self.square_CLH = torch.zeros_like(self.m_CLH), torch.zeros_like(self.m_CLH)

    @classmethod
    def start(cls, model: Model, seeds: list[int]) -> Fit:
        """Gates uniform in (0, 1), as far as the clip allows: beyond it nothing would ever press an idle head."""
        gates = [np.random.default_rng([seed, 0]).uniform(size=(model.n_layers, model.n_heads)) for seed in seeds]
        m_CLH = torch.tensor(np.stack(gates), dtype=torch.float32).logit().clamp(-CLIP + 0.01, CLIP - 0.01)
        return cls(m_CLH, seeds)

    def again(self, copies: int) -> Fit:
        """A fresh fit from where this one ended, each matrix `copies` times, one set after the other."""
        return Fit(self.m_CLH.repeat(copies, 1, 1), self.seeds * copies)

    def step(self, gradient_CLH: Tensor, rate: float) -> None:
        """One update of Adam, each matrix's gradient clipped on its own."""
        norm_C = gradient_CLH.flatten(1).norm(dim=1)
        gradient_CLH = gradient_CLH * (GRADIENT_NORM / norm_C.clamp(min=GRADIENT_NORM))[:, None, None]
        self.update += 1
        one, two = BETAS
        self.mean_CLH = one * self.mean_CLH + (1 - one) * gradient_CLH
        self.square_CLH = two * self.square_CLH + (1 - two) * gradient_CLH**2
        mean_CLH = self.mean_CLH / (1 - one**self.update)
        square_CLH = self.square_CLH / (1 - two**self.update)
        self.m_CLH = self.m_CLH - rate * mean_CLH / (square_CLH.sqrt() + EPSILON)

    @property
    def share_open(self) -> float:
        return float((self.m_CLH > 0).float().mean())

    def save(self, path: Path, about: dict[str, Any]) -> None:
        arrays = {"m": self.m_CLH, "mean": self.mean_CLH, "square": self.square_CLH}
        rest = {"seeds": self.seeds, "update": self.update, "losses": self.losses, **about}
        write_sealed(path, {name: value.numpy() for name, value in arrays.items()}, rest)

    @classmethod
    def load(cls, path: Path) -> tuple[Fit, dict[str, Any]]:
        """A fit and what is said about it; ValueError where the file is not what was saved."""
        arrays, rest = read_sealed(path)
        m, mean, square = (torch.from_numpy(arrays[name]) for name in ("m", "mean", "square"))
        return cls(m, rest.pop("seeds"), mean, square, rest.pop("update"), rest.pop("losses")), rest


def batch_rows(n: int, batch: int, seed: int, update: int) -> list[int]:
    """Which prompts a matrix sees at an update: all prompts in a random order, then all in another, and so on. None
    twice: where there are fewer prompts than a batch has, an update sees each once."""
    rows: list[int] = []
    batch = min(batch, n)
    for place in range(update * batch, (update + 1) * batch):
        order = np.random.default_rng([seed, 1, place // n]).permutation(n)
        rows.append(int(order[place % n]))
    return rows


def regulariser(m_CLH: Tensor, lam_C: Tensor) -> Tensor:
    """Gradient of -lam * mean(clip(m)): opens gates where lam is positive, shut where it is negative."""
    inside = (m_CLH.abs() < CLIP).float()
    return -lam_C[:, None, None] * inside / m_CLH[0].numel()


@contextmanager
def frozen(model: Model) -> Iterator[None]:
    """No weight asks for gradients inside the block, which saves keeping what theirs would need."""
    asked = [parameter for parameter in model.hf.parameters() if parameter.requires_grad]
    for parameter in asked:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in asked:
            parameter.requires_grad_(True)


def gate_gradient(model: Model, task: Task, m_CLH: Tensor, rows_CB: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Gradient of -mean log P(target) at the gate logits, (C, L, H), and mean log P of each matrix over its prompts,
    (C,). Each prompt counts the same, however long its target."""
    gradient_CLH, value_C = torch.zeros_like(m_CLH), torch.zeros(len(m_CLH))
    B = len(rows_CB[0])
    pairs = [(c, i) for c, rows in enumerate(rows_CB) for i in rows]

    def run(part: Sequence[tuple[int, int]]) -> None:
        matrix_R, prompts = torch.tensor([c for c, _ in part]), [i for _, i in part]
        targets = Targets.of(task, prompts, model.device)
        with torch.enable_grad():
            leaf_CLH = m_CLH.clone().requires_grad_()
            with gated(model, leaf_CLH.sigmoid().index_select(0, matrix_R).to(model.device)):
                log_R = token_log_probs(model, [task.clean_rows[i] for i in prompts], targets) / B
            (slope_CLH,) = torch.autograd.grad(-log_R.sum(), leaf_CLH)
        gradient_CLH.add_(slope_CLH)
        value_C.index_add_(0, matrix_R, log_R.detach().float().cpu())

    # The prompts of a matrix stay together: batches of like size whatever their lengths.
    in_parts(model, "gates", pairs, run, each=max(len(task.clean_rows[i]) + 1 for _, i in pairs), whole=B)
    # (Their norm, to which each is clipped, overflows first.)
    refuse_overflow(model.hf, gradient_CLH.flatten(1).norm(dim=1), "gates' gradients")
    return gradient_CLH, value_C
