"""Which gradient of a gate ranks the edges of a sparse model best: against exact edge patching, for eap and eap-ig,
with hard gates and with straight-through ones at some temperatures.

    python bench/gates.py PROMPTS MODEL [BASE]        MODEL: a sparse model's name or folder, or an adapter and its base

Rank correlation and overlap of the best tenth are by absolute score; "edges for 0.9" and the geometric mean of the
edges needed over all thresholds are of the curve that keeps the best edges, run exactly.
"""

from __future__ import annotations

import sys

import numpy as np
from rich.console import Console
from rich.table import Table

import headscope as hs
from headscope.records import correlation, ranks

WAYS = [{"gates": "hard"}, *({"gates": "straight-through", "temperature": t} for t in (0.25, 0.5, 1.0))]


def main(prompts: int, name: str, base: str | None) -> None:
    model = hs.load(name, base=base)
    for task in (hs.tasks.ioi, hs.tasks.greater_than):
        try:
            pairs = task(model.tokenizer, n=prompts, seed=0)
        except hs.InputError as error:
            print(error)
            continue
        exact = hs.methods.edge_patching(model, pairs)
        top = len(exact.values) // 10
        table = Table(
            "ranking", "gates", "correlation", f"best {top} in common", "edges for 0.9", "stays", "mean edges"
        )
        for method in (hs.methods.eap, hs.methods.eap_ig, None):
            for way in WAYS if method else [{"gates": ""}]:
                scores = method(model, pairs, **way) if method else exact
                common = len(set(scores.ranked()[:top]) & set(exact.ranked()[:top])) / top
                curve = hs.sweep(model, pairs, scores, resamples=0)
                first, stays = (hs.needed(curve, stays=stays, resamples=0).k for stays in (False, True))
                table.add_row(
                    scores.method, " ".join(str(value) for value in way.values()),
                    f"{correlation(*(ranks(np.abs(each.values)) for each in (scores, exact))):.3f}", f"{common:.2f}",
                    *("never" if k is None else f"{k:.1f}" for k in (first, stays)), f"{np.exp(curve.log_area):.1f}",
                )  # fmt: skip
        table.title = f"{model.name}, {pairs.name}, {prompts} prompts, {len(exact.values)} edges"
        Console(width=120).print(table)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else None)
