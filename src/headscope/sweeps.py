"""Explained effect against the number of heads (or edges) kept.

    EE(C) = (m(C) - m(base)) / (m(clean) - m(base))

m is the mean metric over prompts (a ratio of means, not a mean of ratios); heads outside the circuit C are filled,
those inside compute live. The base is the corrupt run, or the circuit that keeps nothing. Intervals are bootstrap
intervals over prompts; on request the ranking is drawn again with them, or made from other prompts (`crossfit`).

Shape letters: P points of the curve, N prompts, B prompts of a batch, L layers, H heads, E heads or edges, C circuits,
S resamples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headscope.errors import InputError
from headscope.models.model import Model
from headscope.records import BASELINES, Curve, EdgeScores, Scores, resampled
from headscope.running.edge_session import view_of
from headscope.running.fills import edge_session_opener, session_opener
from headscope.running.measure import per_prompt
from headscope.running.sites import site_of
from headscope.running.targets import Targets, metrics_of
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
    baseline: str = "corrupt",
    choice: str = "top",
    k: list[int] | None = None,
    points: int | None = None,
    redraw: int = 0,
    resamples: int = 1000,
    seed: int = 0,
) -> Curve:
    """Keep the k best heads (or edges), fill the others, for k from none to all.

    Args:
        model: the model.
        task: the prompts.
        scores: of this model; made on these prompts, or on others of the task (`settings["scored_on"]` says which).
        ranking: "task" ranks by the mean score, "prompt" ranks anew for every prompt by its own scores (heads only).
        signed: rank from most positive to most negative instead of by absolute value.
        fill: "corrupt", "mean", "zero" or "mean-position".
        baseline: an explained effect of 0 is the metric of the "corrupt" run, or of the "empty" circuit.
        choice: of edges, "top" keeps the k best, "greedy" the first k of a circuit grown from the logits.
        k: the numbers of heads to keep; all of them for small models and a grid for large ones, unless given.
        points: how many numbers that grid has at most.
        redraw: draw the prompts this often with their scores, rank by those, and run; the interval is over these.
        resamples: bootstrap draws of the prompts.
        seed: of the draws.

    Returns:
        Explained effect by number kept, (P,), with its interval and every prompt's metric, (P, N).
    """
    _refuse(model, task, scores, ranking, baseline, choice)
    total, edges = scores.values.size, isinstance(scores, EdgeScores)
    what = "edges" if isinstance(scores, EdgeScores) else f"{scores.axes[-1]}s"
    if k is None:
        k = log_grid(total, points or EDGE_POINTS) if edges else grid(total, points)
    counts = _counts(k, total, what)
    if baseline == "empty":
        counts = np.union1d([0], counts)
    title = f"Keeping {counts[0]} to {total:,} {what} of {model.name} on {task.name}"
    about = {
        "ranking": ranking,
        "signed": signed,
        "fill": fill,
        "baseline": baseline,
        "scored_on": _scored_on(scores, task),
    }
    about = {**about, **({"choice": choice} if edges else {})}
    if ranking == "prompt":
        rank_NE = np.stack([_ranks(replace(scores, values=values), signed, choice) for values in scores.per_prompt])
        keep: Callable[[Sequence[int]], np.ndarray] = lambda rows: rank_NE[list(rows)] < counts[:, None, None]  # noqa: E731
    else:
        rank_E = _ranks(scores, signed, choice)
        keep = lambda _: rank_E < counts[:, None]  # noqa: E731
    clean, corrupt, *kept = _metrics(model, task, scores, keep, fill, title)
    curve = Curve.of(scores, counts, np.stack(kept), clean, corrupt, resamples=resamples, seed=seed, **about)
    _refuse_nothing(model, curve)
    return _redrawn(model, task, scores, curve, redraw, seed) if redraw else curve


def _refuse(model: Model, task: Task, scores: Scores | EdgeScores, ranking: str, baseline: str, choice: str) -> None:
    if baseline not in BASELINES:
        raise InputError(f"Unknown baseline {baseline!r}. Known: {', '.join(BASELINES)}.")
    if ranking not in RANKINGS:
        raise InputError(f"Unknown ranking {ranking!r}. Known: {', '.join(RANKINGS)}.")
    if isinstance(scores, EdgeScores):
        if ranking != "task":
            raise InputError(f'Edges know ranking "task" only, found {ranking!r}.')
        if scores.graph != view_of(model).graph(scores.graph.split):
            raise InputError(f"These scores are for another shape than {model.name}'s. Score this model on this task.")
        return
    if choice != "top":
        raise InputError(f'Heads are chosen by rank alone ("top"), found {choice!r}.')
    if "position" in scores.axes:
        raise InputError("A curve keeps heads at all positions: score without positions.")
    here = site_of(model, scores.settings.get("site"))
    shape = (model.n_layers, here.width)[: len(here.axes)]
    if scores.values.shape != shape:
        raise InputError(
            f"These scores are of shape {scores.values.shape} ({', '.join(f'{axis}s' for axis in scores.axes)}); "
            f"{model.name} has {shape}. Score this model on this task."
        )
    if ranking == "prompt" and (len(scores.per_prompt) != len(task) or _scored_on(scores, task) == "other prompts"):
        raise InputError(
            f"A ranking per prompt needs the scores of these {len(task)} prompts; those given are of "
            f"{len(scores.per_prompt)} others. Score this model on this task, or rank per task."
        )


def _scored_on(scores: Scores | EdgeScores, task: Task) -> str:
    """Whether the scores were made on the prompts of this task."""
    # (Scores of an older version know only how many there were.)
    same = scores.settings.get("prompts", task.digest) == task.digest and scores.settings.get("n") == len(task)
    return "the same prompts" if same else "other prompts"


def _metrics(
    model: Model, task: Task, scores: Scores | EdgeScores, keep: Callable[[Sequence[int]], np.ndarray], fill: str,
    title: str,
) -> np.ndarray:  # fmt: skip
    """Metrics of every prompt: clean, corrupt, and under every circuit; (2 + C, N). keep: from the rows of a batch,
    (C, E), or (C, B, E) for circuits per prompt."""
    if isinstance(scores, EdgeScores):
        open_edges = edge_session_opener(model, task, scores.graph, fill)

        def run(rows: Sequence[int], targets: Targets) -> Tensor:
            session = open_edges(rows, targets)
            ends_2B = torch.stack([session.clean.metric_B, session.corrupt.metric_B])
            return torch.cat([ends_2B, session.metrics(torch.from_numpy(keep(rows)).float())]).T

        return per_prompt(model, task, run, title, purpose="edge prompts", corrupt=True).astype(np.float64).T
    open_heads = session_opener(model, task, fill, site=scores.settings.get("site"))

    def run_heads(rows: Sequence[int], targets: Targets) -> Tensor:
        session = open_heads(rows, targets)
        corrupt_B = session.other_metric_B  # known where closed heads are filled from the corrupt run
        if corrupt_B is None:
            corrupt_B = metrics_of(model, [task.corrupt_rows[i] for i in rows], targets)
        keep_CBLH = torch.from_numpy(keep(rows)).float().unflatten(-1, (model.n_layers, -1))
        return torch.cat([session.metric_B[None], corrupt_B[None], session.metrics(keep_CBLH)]).T

    return per_prompt(model, task, run_heads, title, corrupt=True).astype(np.float64).T


def _redrawn(model: Model, task: Task, scores: Scores | EdgeScores, curve: Curve, draws: int, seed: int) -> Curve:
    """The curve with an interval over draws of the prompts, each ranked by the scores of the drawn prompts."""
    about = curve.settings
    if about["scored_on"] != "the same prompts" or len(scores.per_prompt) != len(task) or about["ranking"] != "task":
        raise InputError(
            "Drawing the ranking again needs every prompt's own scores, made on these prompts, and one ranking per "
            "task: score with per_prompt=True on this task, or use crossfit."
        )
    rows_SN = resampled(len(task), draws, seed)
    signed, choice = about["signed"], about.get("choice", "top")
    ranks_SE = [_ranks(replace(scores, values=scores.per_prompt[rows].mean(0)), signed, choice) for rows in rows_SN]
    # Different draws agree on most of their small circuits: each is run once.
    keep_XE = (np.stack(ranks_SE)[:, None] < curve.k[:, None]).reshape(-1, scores.values.size)
    circuits_CE, place_X = np.unique(keep_XE, axis=0, return_inverse=True)
    title = f"Running {len(circuits_CE):,} circuits of {draws} drawn rankings of {model.name}"
    metrics_SPN = _metrics(model, task, scores, lambda _: circuits_CE, about["fill"], title)[2:][place_X.ravel()]
    each = zip(metrics_SPN.reshape(draws, len(curve.k), -1), rows_SN, strict=True)
    drawn_SP = np.stack([replace(curve, metrics=metrics_PN).effect(rows) for metrics_PN, rows in each])
    return replace(curve, drawn=drawn_SP, settings={**about, "redraw": draws}).bounded(drawn_SP)


def crossfit(
    model: Model, task: Task, method: Callable[[Model, Task], Scores | EdgeScores], *, resamples: int = 1000,
    seed: int = 0, **options: Any,
) -> Curve:  # fmt: skip
    """Score on one half of the prompts and sweep on the other, both ways: no prompt is judged by a ranking that it had
    a part in.

    Args:
        model: the model.
        task: the prompts, two at least.
        method: such as `hs.methods.patching`, or a function of model and task that calls it with options.
        resamples: bootstrap draws of the prompts, within each half.
        seed: of the halves and of the bootstrap.
        options: as for `sweep`.

    Returns:
        One curve over all prompts.
    """
    if len(task) < 2:
        raise InputError(f"Halves need two prompts at least, found {len(task)}.")
    half_N = np.random.default_rng(seed).permutation(len(task)) % 2
    halves = [np.flatnonzero(half_N == one) for one in (0, 1)]
    scores = [method(model, task.take(rows.tolist())) for rows in halves]
    # Each half with the other's scores.
    curves = [
        sweep(model, task.take(rows.tolist()), other, resamples=0, **options)
        for rows, other in zip(halves, reversed(scores), strict=True)
    ]
    order = np.argsort(np.concatenate(halves))
    metrics = np.concatenate([curve.metrics for curve in curves], axis=1)[:, order]
    clean, corrupt = (np.concatenate([getattr(curve, end) for curve in curves])[order] for end in ("clean", "corrupt"))
    about = {key: value for key, value in curves[0].settings.items() if key not in ("total", "n")}
    about["scored_on"] = "the other half"
    return Curve.of(
        scores[0], curves[0].k, metrics, clean, corrupt, resamples=resamples, seed=seed, half=half_N, **about
    )


@torch.no_grad()
def run_circuit(
    model: Model, task: Task, scores: EdgeScores, keep: np.ndarray, *, fill: str = "corrupt", baseline: str = "corrupt",
    resamples: int = 1000, seed: int = 0, **settings: Any,
) -> Curve:  # fmt: skip
    """What one edge circuit explains, measured by running it.

    Args:
        model: the model.
        task: the prompts.
        scores: those it was chosen by; they carry the graph.
        keep: (E,), which edges run live.
        fill: what all other edges carry.
        baseline: what explains nothing: the "corrupt" run or the "empty" circuit.
        resamples: bootstrap draws of the prompts.
        seed: of those draws.
        settings: how the edges were chosen, for the record.

    Returns:
        A curve of one point, behind that of the empty circuit where that is the baseline.
    """
    _refuse(model, task, scores, "task", baseline, "top")
    keep_PE = keep[None] if baseline == "corrupt" else np.stack([np.zeros_like(keep), keep])
    title = f"Running {keep.sum():,} edges of {model.name}"
    clean, corrupt, *kept = _metrics(model, task, scores, lambda _: keep_PE, fill, title)
    about = {"ranking": "task", "fill": fill, "baseline": baseline, **settings}
    curve = Curve.of(scores, keep_PE.sum(1), np.stack(kept), clean, corrupt, resamples=resamples, seed=seed, **about)
    _refuse_nothing(model, curve)
    return curve


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
    model: Model, task: Task, *, draws: int = 3, fill: str = "corrupt", baseline: str = "corrupt",
    signed: bool = False, split: str | None = None, points: int = 13, seed: int = 0,
) -> Curve:  # fmt: skip
    """What rankings that know nothing give.

    Args:
        model: the model.
        task: the prompts.
        draws: how many random rankings.
        fill: what replaces a head that is not kept.
        baseline: what explains nothing: the "corrupt" run or the "empty" circuit.
        signed: rank by signed score.
        points: numbers of heads on the curve.
        seed: of the rankings.

    Returns:
        The mean curve over the rankings, with their lowest and highest.
    """
    graph = None if split is None else view_of(model).graph(split)
    total = model.n_layers * model.n_heads if graph is None else len(graph)
    straight = sorted({round(total * at / (points - 1)) for at in range(points)})
    counts, curves = straight if graph is None else log_grid(total, points), []
    for one in range(draws):
        draw = np.random.default_rng([seed, one])
        if graph is None:
            values = draw.normal(size=(1, model.n_layers, model.n_heads))
            scores = Scores.of(model.name, task, "random", np.repeat(values, len(task), axis=0))
        else:
            scores = EdgeScores.of(model.name, task, "random", graph, draw.normal(size=total), None)
        curves.append(sweep(model, task, scores, fill=fill, baseline=baseline, signed=signed, k=counts, resamples=0))
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


def _refuse_nothing(model: Model, curve: Curve) -> None:
    clean, base = curve.clean.mean(), curve.base.mean()
    if abs(clean - base) < 1e-4 * max(1.0, abs(clean)):
        what = "corrupt prompts" if curve.settings["baseline"] == "corrupt" else "an empty circuit"
        raise InputError(
            f"{model.name} gives clean prompts and {what} of {curve.task} the same metric ({clean:.4g}): there "
            "is no effect to explain. `headscope check` shows both; use other corrupt prompts."
        )


def _ranks(scores: Scores | EdgeScores, signed: bool, choice: str) -> np.ndarray:
    """(E,): 0 for the head (or edge) that matters most, 1 for the next, ..."""
    if isinstance(scores, EdgeScores):
        order = scores.ranked(signed=signed, choice=choice)
    else:
        order = np.argsort(-(scores.values if signed else np.abs(scores.values)), axis=None, kind="stable")
    ranks = np.empty(len(order), dtype=np.int64)
    ranks[order] = np.arange(len(order))
    return ranks
