"""What a sparsifying step costs against the dense training step of the same model and batch: time as a ratio in one
run, each measurement between two of the dense step, and peak memory, each kind of step in a process of its own.

    python bench/sparsify.py
"""

from __future__ import annotations

import copy
import subprocess
import sys

import torch
from rich.console import Console
from rich.table import Table
from shapes import gpt2_small, peak_memory, ratio

from headscope.models.sparse_gate import CONFIG_KEY, Gates, deciding
from headscope.sparse.objective import cross_entropy, divergence, mean_fraction
from headscope.sparse.offsets import add_offsets

SEQUENCES, LENGTH, BAR = 4, 256, 1.6
KINDS = ("dense", "sparse, cross-entropy constraint", "sparse, divergence constraint")


def steps() -> dict:
    """A function per kind of step: forward, loss, backward, AdamW, all weights and offsets trained."""
    model = gpt2_small()
    ids_BT = torch.randint(0, 50257, (SEQUENCES, LENGTH), generator=torch.Generator().manual_seed(0))
    trained = copy.deepcopy(model.hf)
    setattr(trained.config, CONFIG_KEY, {"bias": 0.0})
    add_offsets(trained, model, None)
    optimizer = torch.optim.AdamW(trained.parameters(), lr=1e-6)

    def step(kind: str) -> None:
        optimizer.zero_grad()
        gates = Gates("open") if kind == "dense" else Gates("trained", noise=1.0)
        with deciding(gates):
            logits_BTV = trained(input_ids=ids_BT, use_cache=False).logits
        if kind == KINDS[2]:
            with torch.no_grad():
                dense_BTV = model.hf(input_ids=ids_BT, use_cache=False).logits
            loss = divergence(dense_BTV, logits_BTV)
        else:
            loss = cross_entropy(logits_BTV, ids_BT)
        if kind != "dense":
            loss = loss + mean_fraction(gates.expected)
        loss.backward()
        optimizer.step()

    return {"model": model, **{kind: lambda kind=kind: step(kind) for kind in KINDS}}


def main() -> None:
    if len(sys.argv) > 1:
        steps()[KINDS[int(sys.argv[1])]]()
        print(peak_memory())
        return
    memory = [float(subprocess.check_output([sys.executable, __file__, str(at)])) for at in range(len(KINDS))]
    work = steps()
    title = f"GPT-2-small shape, {SEQUENCES} sequences of {LENGTH} tokens, float32, {torch.get_num_threads()} threads"
    table = Table("Step", "Time", "lowest to highest", "Peak memory", "Bar", title=title)
    for kind, peak in zip(KINDS[1:], memory[1:], strict=True):
        middle, low, high = ratio(work["model"], work["dense"], work[kind])
        row = (kind, f"{middle:.2f}x", f"{low:.2f} to {high:.2f}", f"{peak / memory[0]:.2f}x ({peak:.1f} GiB)")
        table.add_row(*row, f"at most {BAR}x", style=None if max(middle, peak / memory[0]) <= BAR else "red")
    Console().print(table)


if __name__ == "__main__":
    main()
