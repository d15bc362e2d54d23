"""What edge methods cost, as multiples of one plain forward pass of the same prompts (all logits), measured in one run
with every measurement between two of the plain pass; and the peak memory of the process at the end.

    python bench/edges.py
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table
from shapes import PAIRS, TOKENS, gpt2_small, pairs, peak_memory, ratio

import headscope as hs
from headscope.running.edge_session import EdgeSession, view_of
from headscope.running.targets import Targets


def main() -> None:
    model, task = gpt2_small(), pairs(TOKENS)
    view = view_of(model)
    graph = view.graph("qkv")
    ids = torch.tensor(task.clean_ids)
    keep_1E = (torch.rand(len(graph), generator=torch.Generator().manual_seed(0)).argsort() < 1000).float()[None]
    tokens = Targets.of(task, list(range(len(task))), model.device)

    @torch.no_grad()
    def plain() -> None:
        model.hf(input_ids=ids, use_cache=False)

    @torch.no_grad()
    def one_circuit() -> None:
        EdgeSession(view, task.clean_ids, task.corrupt_ids, tokens, graph).metrics(keep_1E)

    works: dict[str, tuple[Callable[[], object], int]] = {
        f"eap, all {len(graph):,} edges": (lambda: hs.methods.eap(model, task, split="qkv"), 6),
        "eap-ig, 5 steps": (lambda: hs.methods.eap_ig(model, task, split="qkv"), 16),
        "one circuit of 1,000 edges": (one_circuit, 4),
    }
    title = f"GPT-2-small shape, {PAIRS} pairs of {TOKENS} tokens, float32, {torch.get_num_threads()} threads"
    table = Table("Work", "Cost", "lowest to highest", "Bar", title=title)
    for name, (work, bar) in works.items():
        middle, low, high = ratio(model, plain, work)
        row = (name, f"{middle:.1f}x", f"{low:.1f} to {high:.1f}", f"at most {bar}x")
        table.add_row(*row, style=None if middle <= bar else "red")
    Console().print(table)
    print(f"Peak resident memory of all of it: {peak_memory():.2f} GiB (bar for eap: 2.5 GiB)")


if __name__ == "__main__":
    main()
