"""What head methods cost, as multiples of one plain forward pass of the same prompts (all logits), measured in one run
with every measurement between two of the plain pass.

    python bench/heads.py
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table
from shapes import PAIRS, TOKENS, gpt2_small, pairs, ratio

import headscope as hs

# Name of the work, and the most it may cost where the pairs differ in the last six tokens and in all of them.
BARS = {"patching, all 144 heads": (24, 55), "sweep, all 145 points": (60, 115), "attribution, all heads": (5, 5)}


def main() -> None:
    model = gpt2_small()
    title = f"GPT-2-small shape, {PAIRS} pairs of {TOKENS} tokens, float32, {torch.get_num_threads()} threads"
    table = Table("Work", "Pairs differ in", "Cost", "lowest to highest", "Bar", title=title)
    for place, differ in enumerate((6, TOKENS)):
        task = pairs(differ)
        ids = torch.tensor(task.clean_ids)
        scores = hs.methods.random(model, task)

        @torch.no_grad()
        def plain(ids: torch.Tensor = ids) -> None:
            model.hf(input_ids=ids, use_cache=False)

        works: list[Callable[[], object]] = [
            lambda task=task: hs.methods.patching(model, task),
            lambda task=task, scores=scores: hs.sweep(model, task, scores, resamples=0),
            lambda task=task: hs.methods.attribution(model, task),
        ]
        for (name, bars), work in zip(BARS.items(), works, strict=True):
            middle, low, high = ratio(model, plain, work)
            row = (name, f"the last {differ}", f"{middle:.1f}x", f"{low:.1f} to {high:.1f}", f"at most {bars[place]}x")
            table.add_row(*row, style=None if middle <= bars[place] else "red")
    Console().print(table)


if __name__ == "__main__":
    main()
