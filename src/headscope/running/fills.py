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
from headscope.running.gradients import values_of
from headscope.running.measure import per_prompt
from headscope.running.session import Session
from headscope.running.sites import Positions, Site, positions_of, site_of
from headscope.running.targets import Targets, asked_of, refuse_unfit
from headscope.tasks.task import Task

FillName = Literal["corrupt", "mean", "zero", "mean-position"]
FILLS: tuple[FillName, ...] = get_args(FillName)


Opener = Callable[[Sequence[int], Targets], Session]


def session_opener(model: Model, task: Task, fill: str, *, start: int = 0, site: str | None = None) -> Opener:
    """A function that opens a session on some of the task's clean prompts, with closed heads filled as asked.

    start: positions before it are left as they are. site: where heads, or other components, are closed.
    """
    value = site_fill(model, task, fill, site_of(model, site))

    def open_session(rows: Sequence[int], targets: Targets) -> Session:
        clean = [task.clean_rows[i] for i in rows]
        other = [task.corrupt_rows[i] for i in rows] if fill == "corrupt" else None
        return Session(model, clean, targets, other_ids=other, fill=value, start=start, site=site)

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
    return (site_fill(model, task, fill, site_of(model, "z")) or {}).get("z")


def site_fill(model: Model, task: Task, fill: str, site: Site) -> dict[str, list[Tensor]] | None:
    """The same for every part of a site, per layer (X, W) or (1, T, X, W)."""
    refuse_unknown_fill(task, fill)
    if not fill.startswith("mean"):
        return None
    if site.name == "pattern":
        raise InputError(f"A pattern has no mean over prompts, found fill {fill!r}. Use corrupt or zero.")
    per_position = fill == "mean-position"

    def values(rows: Sequence[int]) -> list[Tensor]:
        targets = asked_of(model, task, rows)
        kept = values_of(model, [task.clean_rows[i] for i in rows], targets, site.columns)
        return [value for part in site.columns for value in kept[part]]

    means = iter(_means(model, task, values, (0,) if per_position else (0, 1)))
    layers = range(model.n_layers)
    by_part = {part: [next(means).to(model.hf.dtype) for _ in layers] for part in site.columns}
    return {part: [mean[None] for mean in by_part[part]] if per_position else by_part[part] for part in by_part}


def fill_opener(
    model: Model, task: Task, fill: str, site: Site
) -> Callable[[Sequence[int], Targets], dict[str, list[Tensor]]]:
    """A function that gives the fill at a site on some of the task's prompts, as something to take off its values."""
    value = site_fill(model, task, fill, site)
    nothing = [torch.zeros((), device=model.device)] * model.n_layers

    def fill_of(rows: Sequence[int], targets: Targets) -> dict[str, list[Tensor]]:
        if fill == "corrupt":
            return values_of(model, [task.corrupt_rows[i] for i in rows], targets, site.columns)
        return dict.fromkeys(site.columns, nothing) if value is None else value

    return fill_of


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
        targets = asked_of(model, task, rows)
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
def effects(
    model: Model, task: Task, open_session: Opener, title: str, *, corrupt: bool = False, site: str | None = None,
    positions: Positions = None,
) -> np.ndarray:  # fmt: skip
    """What the metric of every prompt loses when one head is closed, for each head, (N, L, H); where a layer has one,
    (N, L); and for each position, (..., T)."""
    here, chosen = site_of(model, site), positions_of(task, positions)
    one_X = 1 - torch.eye(here.width)

    def run(rows: Sequence[int], targets: Targets) -> Tensor:
        session = open_session(rows, targets)
        T = len(session.ids[0])
        keep_CTX = one_X[:, None]
        if positions is not None:
            keep_CTX = torch.ones(here.width, T, here.width)
            keep_CTX[:, chosen if chosen is not None else slice(None)] = one_X[:, None]
        if positions == "each":
            # What stands before the first difference has no effect.
            at_T = torch.arange(session.start, T)
            keep_CTX = torch.where(torch.eye(T)[at_T, None, :, None] == 1, keep_CTX, 1.0).flatten(0, 1)
        by_layer = [session.metric_B - session.metrics_at(layer, keep_CTX) for layer in range(model.n_layers)]
        lost_BLC = torch.stack(by_layer, dim=0).permute(2, 0, 1)
        if positions == "each":
            lost_BLXT = lost_BLC.unflatten(2, (-1, here.width)).transpose(2, 3)
            lost_BLC = torch.nn.functional.pad(lost_BLXT, (session.start, 0))
        return lost_BLC if here.axis else lost_BLC[:, :, 0]

    what = f"{model.n_layers * here.width} {'heads' if here.axis == 'head' else f'places ({here.name})'}"
    return per_prompt(model, task, run, f"{title} {what} of {model.name} on {task.name}", corrupt=corrupt)
