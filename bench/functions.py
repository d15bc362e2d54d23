"""How many answers a second generation under masks gives, against the plain loop (one prompt and one mask at a time,
transformers' own generate with its cache), measured in one run with every measurement between two of the plain loop.

    python bench/functions.py
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table
from shapes import ROUNDS, gpt2_small

import headscope as hs
from headscope.functions.generation import Interventions, generate
from headscope.functions.masking import masks

# A shared prefix of solved examples, questions of several lengths, short answers: as `headscope functions` has them.
PREFIX, LENGTHS, NEW, PROMPTS, MASKS, PLAIN = 90, (12, 27), 8, 50, 3, 6
BAR = 5.0


def main() -> None:
    model = gpt2_small()
    draw = torch.Generator().manual_seed(0)

    def tokens(count: int) -> list[int]:
        return torch.randint(0, 50000, (count,), generator=draw).tolist()

    prefix = tokens(PREFIX)
    prompts = [tokens(int(torch.randint(*LENGTHS, (1,), generator=draw))) for _ in range(PROMPTS)]
    sets = [[(i, h) for i in range(12) for h in (mask, mask + 4)] for mask in range(MASKS)]
    mask_CLH = masks((12, 12), sets)

    @torch.no_grad()
    def plain() -> None:
        for i in range(PLAIN):
            ids = torch.tensor([prefix + prompts[i]])
            with hs.gated(model, mask_CLH[i % MASKS]):
                model.hf.generate(  # pyright: ignore[reportCallIssue]
                    input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW, min_new_tokens=NEW,
                    do_sample=False, pad_token_id=0,
                )  # fmt: skip

    def together() -> None:
        generate(model, prompts, prefix=prefix, acting=Interventions(mask_CLH), max_new_tokens=NEW, stop=())

    def each(run: Callable[[], None], answers: int) -> float:
        began = time.perf_counter()
        run()
        return (time.perf_counter() - began) / answers

    each(plain, 1)
    ratios, rates = [], []
    before = each(plain, PLAIN)
    for _ in range(ROUNDS):
        middle, after = each(together, PROMPTS * MASKS), each(plain, PLAIN)
        ratios.append((before + after) / 2 / middle)
        rates.append((1 / middle, 2 / (before + after)))
        before = after
    title = f"GPT-2-small shape, {PREFIX} + {LENGTHS[0]} to {LENGTHS[1] - 1} tokens, {torch.get_num_threads()} threads"
    table = Table("Generation under masks", "Answers/s", "plain loop", "Ratio", "lowest to highest", "Bar", title=title)
    ratio = statistics.median(ratios)
    row = (f"{PROMPTS} prompts, {MASKS} masks", f"{rates[-1][0]:.1f}", f"{rates[-1][1]:.1f}", f"{ratio:.1f}x")
    band = f"{min(ratios):.1f} to {max(ratios):.1f}"
    table.add_row(*row, band, f"at least {BAR:.0f}x", style=None if ratio >= BAR else "red")
    Console().print(table)


if __name__ == "__main__":
    main()
