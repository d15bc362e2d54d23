"""How near attribution comes to exact patching: eap and eap-ig of a model's edges, for the fill asked for; on a sparse
model with hard gates and with straight-through ones at some temperatures.

    FILL=corrupt SEED=0 python bench/attribution.py [PROMPTS] [MODEL] [BASE]

MODEL: a name or folder, or an adapter with the folder of its BASE; `nano` unless given. Rank correlation and overlap of
the best tenth are by absolute score. "Edges for 0.9" and the geometric mean of the edges needed over all thresholds are
of the curve that keeps the best edges, run exactly; it starts at the empty circuit.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import headscope as hs
from headscope.models.sparse_gate import CONFIG_KEY
from headscope.records import EdgeScores, correlation, ranks

FILL: Any = os.environ.get("FILL", "corrupt")
SEED = int(os.environ.get("SEED", "0"))
SPARSE = [{"gates": "hard"}, *({"gates": "straight-through", "temperature": t} for t in (0.25, 0.5, 1.0))]


def main(prompts: int = 8, name: str = "nano", base: str | None = None) -> None:
    model = hs.load(name, base=base)
    ways: list[dict[str, Any]] = SPARSE if hasattr(model.hf.config, CONFIG_KEY) else [{}]
    for make in (hs.tasks.ioi, hs.tasks.greater_than):
        try:
            task = make(model.tokenizer, n=prompts, seed=SEED)
        except hs.InputError as error:
            print(error)
            continue
        exact = hs.methods.edge_patching(model, task, fill=FILL)
        columns = ("ranking", "gates", "correlation", "best tenth in common", "edges for 0.9", "stays", "mean edges")
        title = f"{model.name}, {task.name}, {prompts} prompts of seed {SEED}, fill {FILL}, {len(exact.values)} edges"
        table = Table(*columns, title=title)
        table.add_row(*compared(model, task, exact, exact, ""))
        for method in (hs.methods.eap, hs.methods.eap_ig):
            for way in ways:
                scores, gates = method(model, task, fill=FILL, **way), " ".join(map(str, way.values()))
                table.add_row(*compared(model, task, scores, exact, gates))
        Console(width=120).print(table)


def compared(model: hs.Model, task: hs.tasks.Task, scores: EdgeScores, exact: EdgeScores, gates: str) -> list[str]:
    top = len(exact.values) // 10
    common = len(set(scores.ranked()[:top]) & set(exact.ranked()[:top])) / top
    near = correlation(*(ranks(np.abs(each.values)) for each in (scores, exact)))
    curve = hs.sweep(model, task, scores, fill=FILL, baseline="empty", resamples=0)
    needed = [hs.needed(curve, stays=stays, resamples=0).k for stays in (False, True)]
    counts = ["never" if k is None else f"{k:.1f}" for k in needed]
    return [scores.method, gates, f"{near:.3f}", f"{common:.2f}", *counts, f"{np.exp(curve.log_area):.1f}"]


if __name__ == "__main__":
    main(*(int(word) if word.isdigit() else word for word in sys.argv[1:]))  # pyright: ignore[reportArgumentType]
