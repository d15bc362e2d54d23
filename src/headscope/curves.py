"""Explained effect against the number of heads kept, and the multiplier between two such curves.

    EE(C) = (m(C) - m(corrupt)) / (m(clean) - m(corrupt))

m is the mean metric over prompts (a ratio of means, not a mean of ratios); heads outside the circuit C are filled,
those inside compute live. Intervals are bootstrap intervals over prompts.

Shape letters: P points of the curve, N prompts, B prompts of a batch, L layers, H heads.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from headscope.edges import EDGE_TOKENS, EdgeSession, view_of
from headscope.errors import InputError
from headscope.fills import session_opener
from headscope.measure import AnswerTokens, answer_logits, per_prompt
from headscope.models.model import Model
from headscope.results import Curve, EdgeScores, Scores
from headscope.tasks.task import Task

RANKINGS = ("task", "prompt")

# Up to this many heads every k is run; beyond, every k at the small end and then ever fewer.
EVERY_K = 160


@torch.no_grad()
def sweep(
    model: Model,
    task: Task,
    scores: Scores | EdgeScores,
    *,
    ranking: str = "task",
    signed: bool = False,
    fill: str = "corrupt",
    k: list[int] | None = None,
    resamples: int = 1000,
    seed: int = 0,
) -> Curve:
    """Keep the k best heads (or edges), fill the others, for k from none to all.

    ranking: "task" ranks by the mean score, "prompt" ranks anew for every prompt by its own scores.
    signed: rank from most positive to most negative instead of by absolute value.
    fill: "corrupt", "mean" or "zero".
    k: the numbers of heads to keep; all of them for small models and a grid for large ones, unless given.
    resamples, seed: of the bootstrap.
    """
    if isinstance(scores, EdgeScores):
        return _sweep_edges(model, task, scores, signed=signed, k=k, resamples=resamples, seed=seed)
    if ranking not in RANKINGS:
        raise InputError(f"Unknown ranking {ranking!r}. Known: {', '.join(RANKINGS)}.")
    shape = (model.n_layers, model.n_heads)
    if scores.values.shape != shape or len(scores.per_prompt) != len(task):
        raise InputError(
            f"These scores are of shape {scores.per_prompt.shape} (prompts, layers, heads); {model.name} needs "
            f"{(len(task), *shape)} here. Score this model on this task."
        )
    counts = np.array(sorted(set(grid(shape[0] * shape[1]) if k is None else k)))
    if counts.min() < 0 or counts.max() > shape[0] * shape[1]:
        raise InputError(f"k goes from 0 to {shape[0] * shape[1]} heads, found {counts.min()} to {counts.max()}.")
    rank_NLH = _ranks(scores.per_prompt if ranking == "prompt" else scores.values[None], signed)
    open_session = session_opener(model, task, fill)

    def run(rows: list[int], tokens: AnswerTokens) -> Tensor:
        session = open_session(rows, tokens)
        corrupt_B = session.other_metric_B  # known where closed heads are filled from the corrupt run
        if corrupt_B is None:
            corrupt_B = tokens(answer_logits(model, [task.corrupt_ids[i] for i in rows]))
        rank_BLH = rank_NLH[rows] if ranking == "prompt" else rank_NLH
        keep_PBLH = torch.from_numpy(rank_BLH[None] < counts[:, None, None, None]).float()
        kept_PB = session.metrics(keep_PBLH)
        return torch.cat([session.metric_B[None], corrupt_B[None], kept_PB]).T

    title = f"Keeping 0 to {shape[0] * shape[1]} heads of {model.name} on {task.name}"
    clean, corrupt, *kept = per_prompt(model, task, run, title).astype(np.float64).T
    _refuse_nothing(model, task, clean, corrupt)
    return Curve.of(
        scores, counts, np.stack(kept), clean, corrupt, resamples=resamples, seed=seed, ranking=ranking, signed=signed,
        fill=fill,
    )  # fmt: skip


def _sweep_edges(
    model: Model, task: Task, scores: EdgeScores, *, signed: bool, k: list[int] | None, resamples: int, seed: int
) -> Curve:
    view, graph = view_of(model), scores.graph
    if graph != view.graph(graph.split):
        raise InputError(f"These scores are for another shape than {model.name}'s. Score this model on this task.")
    total = len(graph)
    counts = np.array(sorted(set(log_grid(total) if k is None else k)))
    ranks = np.empty(total, dtype=np.int64)
    ranks[scores.ranked(signed=signed)] = np.arange(total)

    def run(rows: list[int], tokens: AnswerTokens) -> Tensor:
        clean, corrupt = ([ids[i] for i in rows] for ids in (task.clean_ids, task.corrupt_ids))
        session = EdgeSession(view, clean, corrupt, tokens, graph)
        keep_PE = torch.from_numpy(ranks[None] < counts[:, None]).float()
        ends_2B = torch.stack([session.clean.metric_B, session.corrupt.metric_B])
        return torch.cat([ends_2B, session.metrics(keep_PE)]).T

    title = f"Keeping 1 to {total:,} edges of {model.name} on {task.name}"
    clean, corrupt, *kept = per_prompt(model, task, run, title, tokens=EDGE_TOKENS).astype(np.float64).T
    _refuse_nothing(model, task, clean, corrupt)
    return Curve.of(
        scores, counts, np.stack(kept), clean, corrupt, resamples=resamples, seed=seed, ranking="task", signed=signed,
        fill="corrupt",
    )  # fmt: skip


def log_grid(total: int, points: int = 31) -> list[int]:
    """Numbers of edges to keep, evenly spaced on a log axis."""
    return sorted({round(total ** (at / (points - 1))) for at in range(points)})


def random_band(
    model: Model, task: Task, *, draws: int = 3, fill: str = "corrupt", points: int = 13, seed: int = 0
) -> Curve:
    """What rankings that know nothing give: mean over `draws` random rankings, with their lowest and highest."""
    total = model.n_layers * model.n_heads
    counts = sorted({round(total * at / (points - 1)) for at in range(points)})
    curves = []
    for one in range(draws):
        values = np.random.default_rng([seed, one]).normal(size=(1, model.n_layers, model.n_heads))
        scores = Scores.of(model.name, task, "random", np.repeat(values, len(task), axis=0))
        curves.append(sweep(model, task, scores, fill=fill, k=counts, resamples=0))
    explained = np.stack([curve.explained for curve in curves])
    mean, metrics = explained.mean(0), np.mean([curve.metrics for curve in curves], axis=0)
    settings = {**curves[0].settings, "draws": draws}
    return replace(
        curves[0], explained=mean, low=explained.min(0), high=explained.max(0), metrics=metrics, settings=settings
    )


def grid(total: int) -> list[int]:
    """Numbers of heads to keep: all for small models, otherwise every one at first and then about a tenth more each."""
    if total <= EVERY_K:
        return list(range(total + 1))
    counts, step = [0], 1.0
    while counts[-1] < total:
        step = max(1.0, counts[-1] * 0.1)
        counts.append(min(total, counts[-1] + int(step)))
    return counts


def _refuse_nothing(model: Model, task: Task, clean: np.ndarray, corrupt: np.ndarray) -> None:
    if abs(clean.mean() - corrupt.mean()) < 1e-4 * max(1.0, abs(clean.mean())):
        raise InputError(
            f"{model.name} gives clean and corrupt prompts of {task.name} the same metric ({clean.mean():.4g}): there "
            "is no effect to explain. `headscope check` shows both; use other corrupt prompts."
        )


def _ranks(values_NLH: np.ndarray, signed: bool) -> np.ndarray:
    """0 for the head that matters most, 1 for the next, ..."""
    flat = values_NLH.reshape(len(values_NLH), -1)
    order = np.argsort(-(flat if signed else np.abs(flat)), axis=1, kind="stable")
    ranks = np.empty_like(order)
    np.put_along_axis(ranks, order, np.arange(flat.shape[1])[None], axis=1)
    return ranks.reshape(values_NLH.shape)


@dataclass(frozen=True)
class Multiplier:
    """How many times more heads the dense curve needs than the sparse one to reach the threshold.

    value is None where a curve never gets there; `note` says so, and whether a curve dips below again afterwards.
    low and high bound it over resampled prompts; `reached` is the share of resamples in which both curves got there.
    """

    value: float | None
    low: float | None
    high: float | None
    threshold: float
    dense_k: float | None
    sparse_k: float | None
    reached: float
    note: str

    def __str__(self) -> str:
        if self.value is None:
            return f"not reached ({self.note})"
        interval = "" if self.low is None else f" [{self.low:.2f}, {self.high:.2f}]"
        return f"{self.value:.2f}x{interval}" + (f" ({self.note})" if self.note else "")


def multiplier(
    dense: Curve, sparse: Curve, *, threshold: float = 0.9, resamples: int = 1000, seed: int = 0
) -> Multiplier:
    """(heads the dense curve needs) / (heads the sparse curve needs), each where it first reaches the threshold.

    Crossings are interpolated linearly; below 1 the sparse one needs more. The prompts of both curves are resampled
    together if they are as many, separately otherwise.
    """
    dense_k, sparse_k = crossing(dense.k, dense.explained, threshold), crossing(sparse.k, sparse.explained, threshold)
    draw = np.random.default_rng(seed)
    n, m = dense.metrics.shape[1], sparse.metrics.shape[1]
    ratios = []
    for _ in range(resamples):
        rows = draw.integers(n, size=n)
        other = rows if n == m else draw.integers(m, size=m)
        a = crossing(dense.k, dense.effect(rows), threshold)
        b = crossing(sparse.k, sparse.effect(other), threshold)
        if a is not None and b is not None:
            ratios.append(_ratio(a, b))
    notes = []
    for name, curve, at in (("first", dense, dense_k), ("second", sparse, sparse_k)):
        label = f"{name} curve, {curve.label},"
        if at is None:
            notes.append(f"{label} peaks at {curve.explained.max():.2f}")
        elif (curve.explained[curve.k > at] < threshold).any():
            notes.append(f"{label} dips below {threshold:g} again")
    value = None if dense_k is None or sparse_k is None else _ratio(dense_k, sparse_k)
    low, high = np.percentile(ratios, [2.5, 97.5]) if ratios and value is not None else (None, None)
    share = len(ratios) / resamples if resamples else 0.0
    if value is not None and share < 0.975:
        notes.append(f"only {share:.0%} of resamples reach it")
    return Multiplier(value, low, high, threshold, dense_k, sparse_k, share, "; ".join(notes))


def crossing(k: np.ndarray, explained: np.ndarray, threshold: float) -> float | None:
    """The number of heads at which a curve first reaches the threshold, between points by a straight line."""
    above = np.flatnonzero(explained >= threshold)
    if len(above) == 0:
        return None
    at = above[0]
    if at == 0:
        return float(k[0])
    rise = explained[at] - explained[at - 1]
    return float(k[at - 1] + (threshold - explained[at - 1]) / rise * (k[at] - k[at - 1]))


def _ratio(dense_k: float, sparse_k: float) -> float:
    # A curve that starts above the threshold needs no head at all; counted as one, so that there is a ratio.
    return max(dense_k, 1.0) / max(sparse_k, 1.0)
