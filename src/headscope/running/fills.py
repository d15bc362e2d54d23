"""What closed heads, and writers outside an edge circuit, are filled with, and sessions that fill them so.

| fill | value of a head (z) or of a writer (what it puts into the stream) |
|---|---|
| corrupt | its own in the corrupt prompt's run |
| mean | its mean over the task's clean prompts and all their positions |
| mean-position | its mean over the task's clean prompts at each position; prompts of one length only |
| zero | nothing |

Of edges the embedding is a writer like every other (with the position embedding, where a model adds one): under a mean
or zero fill a reader that keeps no edge from it does not know which tokens it stands on. An MLP's value is its whole
output; the bias of a layer's output projection is no head's own, and stays.

Shape letters: B prompts, T positions, H heads, K head width, W writers, D stream width.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from headscope.errors import InputError
from headscope.models.model import Model
from headscope.records import Graph
from headscope.running.edge_session import EDGE_TOKENS, EdgeSession, view_of
from headscope.running.edge_view import EdgeView, Streams, writer_values
from headscope.running.gradients import z_of
from headscope.running.measure import AnswerTokens, batches
from headscope.running.session import Session
from headscope.tasks.task import Task

FILLS = ("corrupt", "mean", "zero", "mean-position")


def session_opener(model: Model, task: Task, fill: str) -> Callable[[list[int], AnswerTokens], Session]:
    """A function that opens a session on some of the task's clean prompts, with closed heads filled as asked."""
    value = head_fill(model, task, fill)

    def open_session(rows: list[int], tokens: AnswerTokens) -> Session:
        clean = [task.clean_ids[i] for i in rows]
        other = [task.corrupt_ids[i] for i in rows] if fill == "corrupt" else None
        return Session(model, clean, tokens, other_ids=other, fill=value)

    return open_session


def edge_session_opener(
    model: Model, task: Task, graph: Graph, fill: str
) -> Callable[[list[int], AnswerTokens], EdgeSession]:
    """A function that opens an edge session on some of the task's pairs, with writers outside a circuit filled."""
    view = view_of(model)
    value = writer_fill(view, task, fill)

    def open_session(rows: list[int], tokens: AnswerTokens) -> EdgeSession:
        clean, corrupt = ([ids[i] for i in rows] for ids in (task.clean_ids, task.corrupt_ids))
        return EdgeSession(view, clean, corrupt, tokens, graph, fill_WTD=value)

    return open_session


def refuse_unknown_fill(task: Task, fill: str) -> None:
    if fill not in FILLS:
        raise InputError(f"Unknown fill {fill!r}. Known: {', '.join(FILLS)}.")
    lengths = sorted({len(ids) for ids in task.clean_ids})
    if fill == "mean-position" and len(lengths) > 1:
        raise InputError(
            f"A mean per position needs prompts of one length; those of {task.name} have {lengths[0]} to "
            f"{lengths[-1]} tokens. Use fill mean, or take the prompts of one length."
        )


def head_fill(model: Model, task: Task, fill: str) -> list[Tensor] | None:
    """What fills closed heads: per layer (H, K), or (1, T, H, K) for a mean per position; None where it comes from the
    corrupt run, or is nothing."""
    refuse_unknown_fill(task, fill)
    if not fill.startswith("mean"):
        return None
    per_position = fill == "mean-position"

    def recorded(rows: list[int]) -> list[Tensor]:
        return z_of(model, [task.clean_ids[i] for i in rows], AnswerTokens.of(task, rows, model.device))

    means = _means(task, recorded, (0,) if per_position else (0, 1))
    return [mean[None] if per_position else mean for mean in (mean.to(model.hf.dtype) for mean in means)]


def fill_opener(model: Model, task: Task, fill: str) -> Callable[[list[int], AnswerTokens], list[Tensor]]:
    """A function that gives the fill of every head on some of the task's prompts, as something to take off z."""
    value = head_fill(model, task, fill)

    def values_of(rows: list[int], tokens: AnswerTokens) -> list[Tensor]:
        if fill == "corrupt":
            return z_of(model, [task.corrupt_ids[i] for i in rows], tokens)
        return [torch.zeros((), device=model.device)] * model.n_layers if value is None else value

    return values_of


def writer_fill(view: EdgeView, task: Task, fill: str) -> Tensor | None:
    """What every writer outside a circuit has, (W, T, D), or (W, 1, D) where it is the same at all positions; None
    where it comes from the corrupt run."""
    refuse_unknown_fill(task, fill)
    model = view.model
    if fill == "corrupt":
        return None
    if fill == "zero":
        width = view.blocks[0].output_HKD.shape[-1]
        return torch.zeros(len(view.graph().writers), 1, width, dtype=model.hf.dtype, device=model.device)

    def written(rows: list[int]) -> list[Tensor]:
        tokens = AnswerTokens.of(task, rows, model.device)
        return [writer_values(view, Streams.of(view, [task.clean_ids[i] for i in rows], tokens))]

    per_position = fill == "mean-position"
    (mean,) = _means(task, written, (0,) if per_position else (0, 2), tokens=EDGE_TOKENS)
    return (mean if per_position else mean[:, None]).to(model.hf.dtype)


@torch.no_grad()
def _means(
    task: Task, values_of: Callable[[list[int]], list[Tensor]], over: tuple[int, ...], tokens: int | None = None
) -> list[Tensor]:
    """Means of some tensors over the task's clean prompts, in double precision."""
    totals: list[Tensor] = []
    count = 0
    for rows in batches(task, tokens) if tokens else batches(task):
        values = values_of(rows)
        sums = [value.double().sum(dim=over) for value in values]
        totals = [a + b for a, b in zip(totals, sums, strict=True)] if totals else sums
        count += len(rows) * (1 if len(over) == 1 else len(task.clean_ids[rows[0]]))
    return [total / count for total in totals]
