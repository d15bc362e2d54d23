"""Explained effect against the number of heads (or edges) kept, how many are needed, and the multiplier between two
such curves.

    EE(C) = (m(C) - m(corrupt)) / (m(clean) - m(corrupt))

m is the mean metric over prompts (a ratio of means, not a mean of ratios); heads outside the circuit C are filled,
those inside compute live. Intervals are bootstrap intervals over prompts.

Shape letters: P points of the curve, N prompts, B prompts of a batch, L layers, H heads, E edges, S resamples.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headscope.errors import InputError
from headscope.models.model import Model
from headscope.records import Curve, EdgeScores, Scores
from headscope.running.edge_session import EDGE_TOKENS, EdgeSession, view_of
from headscope.running.fills import session_opener
from headscope.running.measure import AnswerTokens, answer_logits, per_prompt
from headscope.tasks.task import Task

RANKINGS = ("task", "prompt")

# Up to this many heads every k is run; beyond, every k at the small end and then ever fewer.
EVERY_K = 160
EDGE_POINTS = 31


@torch.no_grad()
def sweep(
    model: Model,
    task: Task,
    scores: Scores | EdgeScores,
    *,
    ranking: str = "task",
    signed: bool = False,
    fill: str = "corrupt",
    choice: str = "top",
    k: list[int] | None = None,
    points: int | None = None,
    resamples: int = 1000,
    seed: int = 0,
) -> Curve:
    """Keep the k best heads (or edges), fill the others, for k from none to all.

    ranking: "task" ranks by the mean score, "prompt" ranks anew for every prompt by its own scores.
    signed: rank from most positive to most negative instead of by absolute value.
    fill: "corrupt", "mean" or "zero". (Edges: one ranking per task, corrupt fill.)
    choice: of edges, "top" keeps the k best, "greedy" the first k of a circuit grown from the logits.
    k: the numbers of heads to keep; all of them for small models and a grid for large ones, unless given.
    points: how many numbers that grid has at most.
    resamples, seed: of the bootstrap.
    """
    if isinstance(scores, EdgeScores):
        if (ranking, fill) != ("task", "corrupt"):
            raise InputError(f'Edges know ranking "task" and fill "corrupt" only, found {ranking!r} and {fill!r}.')
        k = log_grid(len(scores.graph), points or EDGE_POINTS) if k is None else k
        return _sweep_edges(model, task, scores, signed=signed, choice=choice, k=k, resamples=resamples, seed=seed)
    if choice != "top":
        raise InputError(f'Heads are chosen by rank alone ("top"), found {choice!r}.')
    if ranking not in RANKINGS:
        raise InputError(f"Unknown ranking {ranking!r}. Known: {', '.join(RANKINGS)}.")
    shape = (model.n_layers, model.n_heads)
    if scores.values.shape != shape or len(scores.per_prompt) != len(task):
        raise InputError(
            f"These scores are of shape {scores.per_prompt.shape} (prompts, layers, heads); {model.name} needs "
            f"{(len(task), *shape)} here. Score this model on this task."
        )
    total = shape[0] * shape[1]
    counts = _counts(grid(total, points) if k is None else k, total, "heads")
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

    title = f"Keeping 0 to {total} heads of {model.name} on {task.name}"
    clean, corrupt, *kept = per_prompt(model, task, run, title).astype(np.float64).T
    _refuse_nothing(model, task, clean, corrupt)
    return Curve.of(
        scores, counts, np.stack(kept), clean, corrupt, resamples=resamples, seed=seed, ranking=ranking, signed=signed,
        fill=fill,
    )  # fmt: skip


def _sweep_edges(
    model: Model, task: Task, scores: EdgeScores, *, signed: bool, choice: str, k: list[int], resamples: int,
    seed: int,
) -> Curve:  # fmt: skip
    total = len(scores.graph)
    counts = _counts(k, total, "edges")
    ranks_E = np.empty(total, dtype=np.int64)
    ranks_E[scores.ranked(signed=signed, choice=choice)] = np.arange(total)
    title = f"Keeping 1 to {total:,} edges of {model.name} on {task.name}"
    metrics = _edge_metrics(model, task, scores, ranks_E < counts[:, None], title)
    return _edge_curve(scores, counts, metrics, resamples=resamples, seed=seed, signed=signed, choice=choice)


@torch.no_grad()
def run_circuit(
    model: Model, task: Task, scores: EdgeScores, keep: np.ndarray, *, resamples: int = 1000, seed: int = 0,
    **settings: Any,
) -> Curve:  # fmt: skip
    """What one edge circuit explains, measured by running it: a curve of one point.

    keep: (edges,), which edges run live. settings: how they were chosen, for the record.
    """
    metrics = _edge_metrics(model, task, scores, keep[None], f"Running {keep.sum():,} edges of {model.name}")
    return _edge_curve(scores, np.array([keep.sum()]), metrics, resamples=resamples, seed=seed, **settings)


def _edge_metrics(model: Model, task: Task, scores: EdgeScores, keep_PE: np.ndarray, title: str) -> np.ndarray:
    """Metrics of every prompt: clean, corrupt, and under every circuit; (2 + P, N)."""
    view, graph = view_of(model), scores.graph
    if graph != view.graph(graph.split):
        raise InputError(f"These scores are for another shape than {model.name}'s. Score this model on this task.")

    def run(rows: list[int], tokens: AnswerTokens) -> Tensor:
        clean, corrupt = ([ids[i] for i in rows] for ids in (task.clean_ids, task.corrupt_ids))
        session = EdgeSession(view, clean, corrupt, tokens, graph)
        ends_2B = torch.stack([session.clean.metric_B, session.corrupt.metric_B])
        return torch.cat([ends_2B, session.metrics(torch.from_numpy(keep_PE).float())]).T

    metrics_NP = per_prompt(model, task, run, title, tokens=EDGE_TOKENS).astype(np.float64)
    _refuse_nothing(model, task, metrics_NP[:, 0], metrics_NP[:, 1])
    return metrics_NP.T


def _edge_curve(scores: EdgeScores, counts: np.ndarray, metrics: np.ndarray, **settings: Any) -> Curve:
    clean, corrupt, *kept = metrics
    return Curve.of(scores, counts, np.stack(kept), clean, corrupt, ranking="task", fill="corrupt", **settings)


def _counts(k: list[int], total: int, what: str) -> np.ndarray:
    counts = np.array(sorted(set(k)))
    if counts.min() < 0 or counts.max() > total:
        raise InputError(f"k goes from 0 to {total} {what}, found {counts.min()} to {counts.max()}.")
    return counts


def log_grid(total: int, points: int) -> list[int]:
    """Numbers of edges to keep, evenly spaced on a log axis."""
    _refuse_few(points)
    return sorted({round(total ** (at / (points - 1))) for at in range(points)})


def random_band(
    model: Model, task: Task, *, draws: int = 3, fill: str = "corrupt", signed: bool = False, points: int = 13,
    seed: int = 0,
) -> Curve:  # fmt: skip
    """What rankings that know nothing give: mean over `draws` random rankings, with their lowest and highest."""
    total = model.n_layers * model.n_heads
    counts = sorted({round(total * at / (points - 1)) for at in range(points)})
    curves = []
    for one in range(draws):
        values = np.random.default_rng([seed, one]).normal(size=(1, model.n_layers, model.n_heads))
        scores = Scores.of(model.name, task, "random", np.repeat(values, len(task), axis=0))
        curves.append(sweep(model, task, scores, fill=fill, signed=signed, k=counts, resamples=0))
    explained = np.stack([curve.explained for curve in curves])
    mean, metrics = explained.mean(0), np.mean([curve.metrics for curve in curves], axis=0)
    settings = {**curves[0].settings, "draws": draws}
    return replace(
        curves[0], explained=mean, low=explained.min(0), high=explained.max(0), metrics=metrics, settings=settings
    )


def grid(total: int, points: int | None = None) -> list[int]:
    """Numbers of heads to keep: all for small models, otherwise every one at first and then about a tenth more each;
    at most `points` of these, both ends among them."""
    counts, step = [0], 1.0
    while counts[-1] < total:
        step = 1.0 if total <= EVERY_K else max(1.0, counts[-1] * 0.1)
        counts.append(min(total, counts[-1] + int(step)))
    if points is None or points >= len(counts):
        return counts
    _refuse_few(points)
    return sorted({counts[round(at * (len(counts) - 1) / (points - 1))] for at in range(points)})


def _refuse_few(points: int) -> None:
    if points < 2:
        raise InputError(f"A curve has two points at least, found {points}.")


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
