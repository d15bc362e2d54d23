"""What scores by position cost: patching every head at every position against the same number of masks at all positions
at once, and attribution by position against attribution; both in one run, in turns, in processor time.

    python bench/positions.py            # of a middle and the last layer, every fifth position
    SAMPLE=all python bench/positions.py
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table
from shapes import PAIRS, ROUNDS, TOKENS, gpt2_small, pairs

import headscope as hs
from headscope.running.session import Session
from headscope.running.targets import Targets

BARS = {"patching": 1.5, "attribution": 1.05}


def seconds(run: Callable[[], object]) -> float:
    began = time.process_time()
    run()
    return time.process_time() - began


@torch.no_grad()
def patching(model: hs.Model) -> float:
    """Time of position masks over that of as many whole ones."""
    task, H = pairs(TOKENS), model.n_heads
    session = Session(model, task.clean_ids, Targets.of(task, range(PAIRS), model.device), other_ids=task.corrupt_ids)
    everything = os.environ.get("SAMPLE") == "all"
    layers = range(model.n_layers) if everything else (model.n_layers // 2, model.n_layers - 1)
    one_HH, step = 1 - torch.eye(H), 1 if everything else 5
    by_position, whole = 0.0, 0.0
    for layer in layers:
        for position in range(0, TOKENS, step):
            keep_HTH = torch.ones(H, TOKENS, H)
            keep_HTH[:, position] = one_HH
            keep_HLH = torch.ones(H, model.n_layers, H)
            keep_HLH[:, layer] = one_HH
            by_position += seconds(lambda layer=layer, keep=keep_HTH: session.metrics_at(layer, keep))
            whole += seconds(lambda keep=keep_HLH: session.metrics(keep))
    return by_position / whole


def attribution(model: hs.Model) -> float:
    """Time of attribution by position over that of attribution, each between two of the other."""
    task = pairs(TOKENS)

    def at_once() -> float:
        return seconds(lambda: hs.methods.attribution(model, task))

    at_once()
    ratios, before = [], at_once()
    for _ in range(5 * ROUNDS):
        each = seconds(lambda: hs.methods.attribution(model, task, positions="each"))
        after = at_once()
        ratios.append(2 * each / (before + after))
        before = after
    return statistics.median(ratios)


def main() -> None:
    model = gpt2_small()
    title = f"GPT-2-small shape, {PAIRS} pairs of {TOKENS} tokens, float32, {torch.get_num_threads()} threads"
    table = Table("By position", "Times as long as at all positions at once", "Bar", title=title)
    for name, ratio in (("patching", patching(model)), ("attribution", attribution(model))):
        table.add_row(name, f"{ratio:.2f}", f"at most {BARS[name]}", style=None if ratio <= BARS[name] else "red")
    Console().print(table)


if __name__ == "__main__":
    main()
