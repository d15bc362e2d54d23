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

from collections.abc import Callable, Sequence
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from headscope.errors import InputError
from headscope.models.model import Model
from headscope.records import Graph
from headscope.running.batching import batches, in_parts
from headscope.running.edge_session import EdgeSession, view_of
from headscope.running.edge_view import EdgeView, Streams, writer_values
from headscope.running.gradients import z_of
from headscope.running.measure import per_prompt
from headscope.running.session import Session
from headscope.running.targets import Targets, refuse_unfit
from headscope.tasks.task import Task

FillName = Literal["corrupt", "mean", "zero", "mean-position"]
FILLS: tuple[FillName, ...] = get_args(FillName)


Opener = Callable[[Sequence[int], Targets], Session]


def session_opener(model: Model, task: Task, fill: str, *, start: int = 0) -> Opener:
    """A function that opens a session on some of the task's clean prompts, with closed heads filled as asked.

    start: positions before it are left as they are.
    """
    value = head_fill(model, task, fill)

    def open_session(rows: Sequence[int], targets: Targets) -> Session:
        clean = [task.clean_rows[i] for i in rows]
        other = [task.corrupt_rows[i] for i in rows] if fill == "corrupt" else None
        return Session(model, clean, targets, other_ids=other, fill=value, start=start)

    return open_session


def edge_session_opener(
    model: Model, task: Task, graph: Graph, fill: str
) -> Callable[[Sequence[int], Targets], EdgeSession]:
    """A function that opens an edge session on some of the task's pairs, with writers outside a circuit filled."""
    view = view_of(model)
    value = writer_fill(view, task, fill)

    def open_session(rows: Sequence[int], targets: Targets) -> EdgeSession:
        clean, corrupt = ([ids[i] for i in rows] for ids in (task.clean_rows, task.corrupt_rows))
        return EdgeSession(view, clean, corrupt, targets, graph, fill_WTD=value)

    return open_session


def refuse_unknown_fill(task: Task, fill: str) -> None:
    if fill not in FILLS:
        raise InputError(f"Unknown fill {fill!r}. Known: {', '.join(FILLS)}.")
    lengths = sorted({len(ids) for ids in task.clean_rows})
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

    def recorded(rows: Sequence[int]) -> list[Tensor]:
        return z_of(model, [task.clean_rows[i] for i in rows], Targets.of(task, rows, model.device))

    means = _means(model, task, recorded, (0,) if per_position else (0, 1))
    return [mean[None] if per_position else mean for mean in (mean.to(model.hf.dtype) for mean in means)]


def fill_opener(model: Model, task: Task, fill: str) -> Callable[[Sequence[int], Targets], list[Tensor]]:
    """A function that gives the fill of every head on some of the task's prompts, as something to take off z."""
    value = head_fill(model, task, fill)

    def values_of(rows: Sequence[int], targets: Targets) -> list[Tensor]:
        if fill == "corrupt":
            return z_of(model, [task.corrupt_rows[i] for i in rows], targets)
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

    def written(rows: Sequence[int]) -> list[Tensor]:
        targets = Targets.of(task, rows, model.device)
        return [writer_values(view, Streams.of(view, [task.clean_rows[i] for i in rows], targets))]

    per_position = fill == "mean-position"
    (mean,) = _means(model, task, written, (0,) if per_position else (0, 2), purpose="edge prompts")
    return (mean if per_position else mean[:, None]).to(model.hf.dtype)


@torch.no_grad()
def _means(
    model: Model, task: Task, values_of: Callable[[Sequence[int]], list[Tensor]], over: tuple[int, ...], *,
    purpose: str = "prompts",
) -> list[Tensor]:  # fmt: skip
    """Means of some tensors over the task's clean prompts, in double precision."""
    refuse_unfit(model, task)
    totals: list[Tensor] = []
    count = 0

    def add(rows: Sequence[int]) -> None:
        nonlocal totals, count
        sums = [value.double().sum(dim=over) for value in values_of(rows)]
        totals = [a + b for a, b in zip(totals, sums, strict=True)] if totals else sums
        count += len(rows) * (1 if len(over) == 1 else len(task.clean_rows[rows[0]]))

    for group in batches(model, task, purpose):
        in_parts(model, purpose, group, add, each=len(task.clean_rows[group[0]]))
    return [total / count for total in totals]


@torch.no_grad()
def effects(model: Model, task: Task, open_session: Opener, title: str, *, corrupt: bool = False) -> np.ndarray:
    """What the metric of every prompt loses when one head is closed, for each head, (N, L, H)."""
    L, H = model.n_layers, model.n_heads
    all_but_one = 1 - torch.eye(L * H).view(L * H, L, H)

    def run(rows: Sequence[int], targets: Targets) -> Tensor:
        session = open_session(rows, targets)
        return (session.metric_B - session.metrics(all_but_one)).T.unflatten(1, (L, H))

    return per_prompt(model, task, run, f"{title} {L * H} heads of {model.name} on {task.name}", corrupt=corrupt)
