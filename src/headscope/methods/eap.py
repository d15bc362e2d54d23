"""Edge attribution patching (EAP).

    score(u -> v) = sum over positions of (u_clean - fill_u) . d m(clean) / d input_v

after Syed, Rager and Conmy (2023), for all edges at once; fill_u is what u has in the corrupt
run, as in the paper, or its mean, or zero. Here positive means that the edge helps, as for heads; the
paper takes the difference the other way round. Cost: two forward passes and one backward, one matrix product.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from headscope.models.model import Model
from headscope.records import EdgeScores
from headscope.running.edge_gradients import edge_attribution
from headscope.running.edge_session import view_of
from headscope.running.fills import FillName, writer_fill
from headscope.running.gradients import GateGradient, gate_gradient, gate_settings
from headscope.running.measure import each_batch
from headscope.running.targets import Targets
from headscope.tasks.task import Task


def eap(
    model: Model,
    task: Task,
    *,
    split: str = "none",
    fill: FillName = "corrupt",
    gates: GateGradient = "hard",
    temperature: float = 1.0,
    per_prompt: bool = False,
) -> EdgeScores:
    """Edge attribution: gradient times difference, one backward pass for all edges.

    Args:
        model: the model.
        task: the prompts.
        split: "none" makes a head one reader, "qkv" three.
        fill: what an edge outside the circuit carries: "corrupt", "mean", "zero" or "mean-position".
        gates: of a sparse model, whether gradients see only what open gates let through ("hard"), or also gates open
            and close ("straight-through", at a temperature, as in training).
        temperature: of the gates' gradient.
        per_prompt: keep every prompt's scores as well, (N, E).

    Returns:
        One score for each edge, (E,), positive where the edge helps.
    """
    options: dict[str, Any] = {"split": split, "fill": fill, "gates": gates, "temperature": temperature}
    return attribute_edges(model, task, "eap", steps=0, per_prompt=per_prompt, **options)


def attribute_edges(
    model: Model,
    task: Task,
    method: str,
    *,
    split: str,
    steps: int,
    fill: FillName,
    gates: GateGradient,
    temperature: float,
    per_prompt: bool,
) -> EdgeScores:
    """Scores in batches, so that memory does not grow with the number of prompts."""
    view = view_of(model)
    graph, fill_WTD = view.graph(split), writer_fill(view, task, fill)
    total = np.zeros(len(graph))
    each = np.empty((len(task), len(graph)), np.float32) if per_prompt else None

    def run(rows: Sequence[int], targets: Targets) -> None:
        clean, corrupt = ([ids[i] for i in rows] for ids in (task.clean_rows, task.corrupt_rows))
        scores = edge_attribution(view, graph, clean, corrupt, targets, steps=steps, fill_WTD=fill_WTD).numpy()
        np.add(total, scores.sum(axis=0, dtype=np.float64), out=total)
        if each is not None:
            each[list(rows)] = scores

    title = f"{method} of {len(graph):,} edges of {model.name} on {task.name}"
    with gate_gradient(gates, temperature):
        each_batch(model, task, run, title, purpose="edge prompts", corrupt=True)
    options = {"fill": fill, **({"steps": steps} if steps else {}), **gate_settings(model, gates, temperature)}
    return EdgeScores.of(model.name, task, method, graph, total / len(task), each, **options)
