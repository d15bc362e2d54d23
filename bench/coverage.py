"""How often an interval holds the truth, when the prompts are few: heads of `nano` on IOI, scored by attribution.

The truth is the curve of many prompts, ranked by all of them. Again and again a few other prompts are drawn, and three
intervals made from them: over the prompts alone, as if their ranking were given; crossfit, each half ranked by the
other; and with the ranking drawn again. Shown is the share of intervals that hold the truth (0.95 is what they say),
over the points of the curve and for the geometric mean of the heads needed.

    python bench/coverage.py [PROMPTS] [ROUNDS]
"""

from __future__ import annotations

import sys

import numpy as np
from rich.console import Console
from rich.table import Table

import headscope as hs
from headscope.records import Curve
from headscope.records.curve import log_areas

MANY, POOL, DRAWS = 240, 240, 40


def curves(model: hs.Model, task: hs.tasks.Task, seed: int) -> dict[str, Curve]:
    scores = hs.methods.attribution(model, task)
    return {
        "prompts alone": hs.sweep(model, task, scores, seed=seed),
        "crossfit": hs.crossfit(model, task, hs.methods.attribution, seed=seed),
        "ranking drawn again": hs.sweep(model, task, scores, redraw=DRAWS, seed=seed),
    }


def main(prompts: int, rounds: int) -> None:
    model = hs.load("nano")
    pool = hs.tasks.ioi(model.tokenizer, n=MANY + POOL, seed=0)
    many = pool.take(range(MANY))
    truth = hs.sweep(model, many, hs.methods.attribution(model, many), resamples=0)
    held: dict[str, list[tuple[float, float, float]]] = {}
    for turn in range(rounds):
        rows = np.random.default_rng(turn).choice(np.arange(MANY, MANY + POOL), prompts, replace=False)
        for name, curve in curves(model, pool.take(rows.tolist()), turn).items():
            # (The ends are 0 heads and all: no ranking changes them.)
            inside = ((curve.low <= truth.explained) & (truth.explained <= curve.high))[1:-1].mean()
            low, high = np.percentile(log_areas(curve.k, curve.effects(1000, turn)), [2.5, 97.5])
            width = (curve.high - curve.low)[1:-1].mean()
            held.setdefault(name, []).append((inside, float(low <= truth.log_area <= high), width))
    table = Table("interval", "holds the curve", "holds the mean of heads needed", "width", title=f"{prompts} prompts")
    for name, values in held.items():
        table.add_row(name, *(f"{value:.2f}" for value in np.mean(values, axis=0)))
    Console().print(table)


if __name__ == "__main__":
    main(*[int(word) for word in sys.argv[1:]] or (10, 60))
