"""How often an interval holds the truth, when the prompts are few: heads of `nano` on IOI, scored by attribution.

Again and again a few prompts are drawn, and three intervals made from them: over the prompts alone, as if their ranking
were given; crossfit, each half ranked by the other; and with the ranking drawn again. There are two truths to hold,
both measured on many other prompts:

* best: the curve of a ranking by those many. What "the circuit of the task" means.
* own: the curve of the very ranking that the few prompts gave (of crossfit, its two). What that ranking is worth.

Shown is the share of intervals that hold each (0.95 is what they say), over the points of the curve and for the
geometric mean of the heads needed, the mean width, and the mean of estimate less truth: above 0 flatters.

    python bench/coverage.py [PROMPTS] [ROUNDS]
"""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
from rich.console import Console
from rich.table import Table

import headscope as hs
from headscope.records import Curve
from headscope.records.curve import log_areas

MANY, POOL, DRAWS = 120, 240, 40


def estimates(model: hs.Model, few: hs.tasks.Task, many: hs.tasks.Task, seed: int) -> dict[str, tuple[Curve, Curve]]:
    """By kind of interval, the curve that the few prompts give, and that of its own ranking on the many."""
    score = hs.methods.attribution
    scores = score(model, few)
    own = hs.sweep(model, many, scores, resamples=0)
    fitted = hs.crossfit(model, few, score, seed=seed)
    assert fitted.half is not None
    halves = [few.take(np.flatnonzero(fitted.half == one).tolist()) for one in (0, 1)]
    apart = [hs.sweep(model, many, score(model, half), resamples=0) for half in halves]
    return {
        "prompts alone": (hs.sweep(model, few, scores, seed=seed), own),
        "crossfit": (fitted, replace(own, explained=np.mean([curve.explained for curve in apart], axis=0))),
        "ranking drawn again": (hs.sweep(model, few, scores, redraw=DRAWS, seed=seed), own),
    }


def judged(curve: Curve, truth: Curve, seed: int) -> tuple[float, float, float]:
    """Whether the interval holds the truth: at the points (share), at the mean of heads needed; and how far off."""
    inner = slice(1, -1)  # the ends are no heads and all, which no ranking changes
    holds = (curve.low <= truth.explained) & (truth.explained <= curve.high)
    low, high = np.percentile(log_areas(curve.k, curve.effects(1000, seed)), [2.5, 97.5])
    off = (curve.explained - truth.explained)[inner].mean()
    return holds[inner].mean(), float(low <= truth.log_area <= high), off


def main(prompts: int, rounds: int) -> None:
    model = hs.load("nano")
    pool = hs.tasks.ioi(model.tokenizer, n=MANY + POOL, seed=0)
    many = pool.take(range(MANY))
    best = hs.sweep(model, many, hs.methods.attribution(model, many), resamples=0)
    found: dict[str, list[tuple[float, ...]]] = {}
    for turn in range(rounds):
        rows = np.random.default_rng(turn).choice(np.arange(MANY, MANY + POOL), prompts, replace=False)
        for name, (curve, own) in estimates(model, pool.take(rows.tolist()), many, turn).items():
            width = (curve.high - curve.low)[1:-1].mean()
            found.setdefault(name, []).append((*judged(curve, best, turn), *judged(curve, own, turn), width))
    columns = ("best: curve", "mean", "off", "own: curve", "mean", "off", "width")
    table = Table("interval", *columns, title=f"{prompts} prompts, {rounds} rounds")
    for name, values in found.items():
        table.add_row(name, *(f"{value:.2f}" for value in np.mean(values, axis=0)))
    Console(width=120).print(table)


if __name__ == "__main__":
    main(*[int(word) for word in sys.argv[1:]] or (10, 60))
