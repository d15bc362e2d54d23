"""Path patching: what senders tell receivers directly, exact.

    score(u) = m(clean) - m(clean with u's fill on the way to the receivers alone)

after Wang et al. (2022), by edges: only what u writes into the stream that the receivers read is replaced; everything
between them stays clean, and what comes behind the receivers runs live. Cost: one run of an edge circuit per sender and
prompt.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from headscope.errors import InputError
from headscope.models.model import Model
from headscope.records import Scores
from headscope.running.edge_session import view_of
from headscope.running.fills import FillName, edge_session_opener
from headscope.running.measure import per_prompt
from headscope.running.targets import Targets
from headscope.tasks.task import Task


@torch.no_grad()
def path_patching(
    model: Model, task: Task, *, receivers: str | Sequence[str], senders: str | Sequence[str] | None = None,
    fill: FillName = "corrupt",
) -> Scores:  # fmt: skip
    """Exact: replace what one sender tells the receivers directly, and see what the answer loses.

    Args:
        receivers: heads ("L9.H6", or one of its inputs, "L9.H6.q"), MLPs ("M9") and "logits", reading together.
        senders: heads and MLPs, each alone; all heads unless given. Those not given score 0.
        fill: what receivers get instead: "corrupt", "mean", "zero" or "mean-position".
    Returns:
        Scores (L, H); with MLPs among the senders (L, H + 1), the MLP last.
    """
    receivers = [receivers] if isinstance(receivers, str) else list(receivers)
    graph = view_of(model).graph("qkv" if any(name[-2:] in (".q", ".k", ".v") for name in receivers) else "none")
    parts = {name: [place for place, reader in enumerate(graph.readers) if _is(reader, name)] for name in receivers}
    if unknown := [name for name, places in parts.items() if not places]:
        raise InputError(f"{model.name} has no receiver {unknown[0]!r}. Known: heads (L0.H0, L0.H0.q), M0, logits.")
    heads = [name for name in graph.writers if name.startswith("L")]
    asked = heads if senders is None else [senders] if isinstance(senders, str) else list(senders)
    if unknown := [name for name in asked if name not in graph.writers[1:]]:
        raise InputError(f"{model.name} has no sender {unknown[0]!r}. Known: heads (L0.H0) and MLPs (M0).")
    writer_E, reader_E = graph.ends
    heard_E = np.isin(reader_E, [place for places in parts.values() for place in places])
    places = [place for place in map(graph.writers.index, asked) if (heard_E & (writer_E == place)).any()]
    if not places:
        raise InputError(f"No sender writes before {', '.join(receivers)} reads: senders come first.")
    keep_CE = np.stack([~(heard_E & (writer_E == place)) for place in places]).astype(np.float32)
    open_session = edge_session_opener(model, task, graph, fill)
    per_layer = model.n_heads + 1

    def run(rows: Sequence[int], targets: Targets) -> Tensor:
        session = open_session(rows, targets)
        whole_1B = session.metrics(torch.ones(1, len(graph)))
        scores_BW = torch.zeros(len(rows), model.n_layers * per_layer)
        scores_BW[:, [place - 1 for place in places]] = (whole_1B - session.metrics(torch.from_numpy(keep_CE))).T.cpu()
        return scores_BW.unflatten(1, (-1, per_layer))

    title = f"Paths of {len(places)} senders of {model.name} to {', '.join(receivers)}"
    values = per_prompt(model, task, run, title, purpose="edge prompts", corrupt=True)
    told = {"receivers": receivers, "senders": asked if senders is not None else "heads", "fill": fill}
    if all(name in heads for name in asked):
        return Scores.of(model.name, task, "path-patching", values[..., :-1], **told)
    return Scores.of(model.name, task, "path-patching", values, axes=["layer", "component"], **told)


def _is(reader: str, name: str) -> bool:
    """Whether a reader is the receiver of that name, or one of a head's inputs where its name says none."""
    return reader == name or (reader[-2:] in (".q", ".k", ".v") and reader[:-2] == name)
