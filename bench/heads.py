"""What head methods cost, as multiples of one plain forward pass of the same prompts (all logits).

python bench/heads.py
"""

from __future__ import annotations

import torch
from rich.console import Console
from rich.table import Table
from shapes import gpt2_small, pairs, ratio

import headscope as hs


def main() -> None:
    model = gpt2_small()
    table = Table(
        "Work", "Pairs differ in", "Cost", "lowest to highest", "Bar", title="GPT-2-small shape, 16 pairs of 16"
    )
    for differ, bars in ((6, (24, 60, 5)), (16, (55, 115, 5))):
        task = pairs(differ)
        ids = torch.tensor(task.clean_ids)

        @torch.no_grad()
        def plain(ids: torch.Tensor = ids) -> None:
            model.hf(input_ids=ids, use_cache=False)

        works = {
            "patching, 144 heads": lambda task=task: hs.methods.patching(model, task),
        }
        for (name, work), bar in zip(works.items(), bars, strict=False):
            middle, low, high = ratio(plain, work)
            table.add_row(name, f"last {differ}", f"{middle:.1f}x", f"{low:.1f} to {high:.1f}", f"{bar}x")
    Console().print(table)


if __name__ == "__main__":
    main()
