"""The probe: which heads tell a classifier what function a question asks for.

    x_lh = [z_lh ; mean of z over the heads of layer l]             width 2K
    p_lh = W x_lh + b                                               one W for all heads, width 64
    logits = V relu(U flatten(p)) , dropout 0.3 before V            512 hidden units
    score(l, h; c) = mean over held-out questions of c of sum(p_lh * d logits[c] / d p_lh)

Ma et al., "Functional heads" (arXiv 2512.10978): cross-entropy, AdamW at 1e-4; heads are ranked by absolute score, and
the elbow of the sorted scores says how many there are. Here z comes from the most surprising tokens of the generated
answer, widths that heads do not have are zero, and training ends when the classes are learnt (or after 60 rounds).

The probe says what can be read off a head, not what the model uses it for: see `causal.py` for that.
Cost: one pass over the generated answers, then a small classifier.

Shape letters: N questions, L layers, H heads, K head width, X the 2K numbers of a head, M the 64 of its projection,
C classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from headscope.progress import bar
from headscope.records import Scores

WIDTH, HIDDEN, DROPOUT = 64, 512, 0.3
ROUNDS, BATCH, RATE = 60, 32, 1e-4


class Probe(nn.Module):
    """From heads' outputs to functions."""

    def __init__(self, n_heads: int, width: int, classes: int):
        super().__init__()
        self.project = nn.Linear(2 * width, WIDTH)
        self.hidden = nn.Linear(n_heads * WIDTH, HIDDEN)
        self.drop = nn.Dropout(DROPOUT)
        self.out = nn.Linear(HIDDEN, classes)

    def forward(self, projected_NLHM: Tensor) -> Tensor:
        """Logits from what `project` made of the features."""
        return self.out(self.drop(self.hidden(projected_NLHM.flatten(1)).relu()))


@dataclass(frozen=True)
class Probed:
    """Scores of every function's heads, and how well the probe tells the functions apart."""

    scores: dict[str, Scores]
    accuracy: float


def features(z_NLHK: Tensor) -> Tensor:
    """Each head's output beside the mean of its layer, (N, L, H, X)."""
    return torch.cat([z_NLHK, z_NLHK.mean(2, keepdim=True).expand_as(z_NLHK)], dim=-1)


def probe(model: str, z: dict[str, Tensor], *, seed: int = 0, held_out: float = 0.25) -> Probed:
    """Train the probe on `z[function]`, (N, L, H, K), and score every head for every function on what was held out."""
    # (The caller's random state is left as it was.)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        train, test = [], []
        for place, z_NLHK in enumerate(z.values()):
            order = torch.randperm(len(z_NLHK))
            cut = min(len(order) - 1, max(1, round(held_out * len(order))))
            test += [(place, z_NLHK[i]) for i in order[:cut]]
            train += [(place, z_NLHK[i]) for i in order[cut:]]
        net = _fit(*_stack(train), classes=len(z))
    class_N, x_NLHX = _stack(test)
    score_NLH, right = _importance(net, x_NLHX, class_N)
    scores = {}
    for place, name in enumerate(z):
        each = score_NLH[class_N == place].numpy()
        task = _Questions(name, seed, len(each))
        scores[name] = Scores.of(model, task, "probe", each, probe_accuracy=right)
    return Probed(scores, right)


@dataclass(frozen=True)
class _Questions:
    """What `Scores.of` wants to know of a task; no curve is ever run on its prompts, so they have no digest."""

    name: str
    seed: int
    count: int
    digest: str = ""

    def __len__(self) -> int:
        return self.count


def _stack(rows: list[tuple[int, Tensor]]) -> tuple[Tensor, Tensor]:
    return torch.tensor([place for place, _ in rows]), features(torch.stack([z for _, z in rows]))


def _fit(class_N: Tensor, x_NLHX: Tensor, *, classes: int) -> Probe:
    N, L, H, X = x_NLHX.shape
    net = Probe(L * H, X // 2, classes)
    optimizer = torch.optim.AdamW(net.parameters(), lr=RATE)
    with torch.enable_grad(), bar("Training the probe", ROUNDS, unit="rounds") as progress:
        for _ in range(ROUNDS):
            total = 0.0
            for rows in torch.randperm(N).split(BATCH):
                loss = nn.functional.cross_entropy(net(net.project(x_NLHX[rows])), class_N[rows])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += loss.item() * len(rows)
            progress.advance()
            if total / N < 0.01:
                break
    return net.eval()


def _importance(net: Probe, x_NLHX: Tensor, class_N: Tensor) -> tuple[Tensor, float]:
    """Gradient x activation of the true class's logit at every head's projection, (N, L, H); and the accuracy."""
    scores, right = [], 0
    for rows in torch.arange(len(x_NLHX)).split(BATCH):
        with torch.enable_grad():
            projected = net.project(x_NLHX[rows]).detach().requires_grad_()
            logits = net(projected)
            chosen = logits.gather(1, class_N[rows, None]).sum()
            (gradient,) = torch.autograd.grad(chosen, projected)
        right += int((logits.argmax(-1) == class_N[rows]).sum())
        scores.append((projected.detach() * gradient).sum(-1))
    return torch.cat(scores), right / len(x_NLHX)


def elbow(values: np.ndarray) -> int:
    """How many heads stand out: where the curve of sorted absolute scores is farthest below the line from its first to
    its last point."""
    curve = np.sort(np.abs(values), axis=None)[::-1]
    if len(curve) < 3 or curve[0] == curve[-1]:
        return len(curve)
    height = (curve - curve[-1]) / (curve[0] - curve[-1])
    return int(np.argmax(1 - np.linspace(0, 1, len(curve)) - height)) + 1
