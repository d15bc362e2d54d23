"""Makes `nano-sparse`, the sparse variant of `nano` inside the package: an adapter to it, trained in a few minutes.

    python tools/train_nano_sparse.py [--out FOLDER] [--steps N] [--penalty-weight X] [--seed S] [--start ADAPTER]

1. Draw lines from the tasks' templates, as `train_nano.py` does, without its held-out prompts. A sequence is one line
   from its beginning and others behind it, as many as fit.
2. `headscope sparsify` on those sequences: gates with learned offsets, a fixed weight on open edges per query, a
   falling rate and temperature, averaged weights. Then again from there, shorter and with a third of the weight: what
   was closed too hard opens, and the model recovers.
3. Keep the adapter, and print what was reached on the held-out prompts.
"""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from train_nano import DRAW, END, HELD_OUT, line

import headscope as hs
from headscope.tasks import TASKS

FOLDER = Path(__file__).parents[1] / "src" / "headscope" / "models" / "nano-sparse"
LENGTH = 88  # the longest prompt of the four tasks has 86 tokens
SHARES = {"ioi": 4, "ioi-long": 2, "greater-than": 2, "docstring": 2}  # of lines that begin a sequence


def sequences(model: hs.Model, count: int, held_out: set[str], rng: random.Random) -> torch.Tensor:
    """Windows of lines, (N, T)."""
    kinds, weights = list(SHARES), list(SHARES.values())
    end = model.tokenizer.get_vocab()[END]
    rows = []
    for _ in range(count):
        row: list[int] = []
        while len(row) < LENGTH:
            (kind,) = rng.choices(kinds, weights)
            row += [*model.tokenizer("".join(line(kind, rng, held_out)))["input_ids"], end]  # pyright: ignore[reportGeneralTypeIssues]
        rows.append(row[:LENGTH])
    return torch.tensor(rows)


def sparsify(nano: hs.Model, out: Path, held_out: set[str], *, steps: int, seed: int, **options: Any) -> list[dict]:
    """A run on sequences of its own, each read once."""
    out.mkdir(parents=True)
    text = out.with_suffix(".safetensors")
    save_file({"ids": sequences(nano, 16 * steps + 128, held_out, random.Random(seed)).int()}, text)
    return hs.sparsify(
        nano, out=out, text=str(text), sequences=16 * steps, length=LENGTH, steps=steps, seed=seed, positions=1.0,
        penalty="edges", rate=0.0, average=50, every=100, **options,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the package's small sparse model.")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder to write")
    parser.add_argument("--steps", type=int, default=700)
    parser.add_argument("--penalty-weight", type=float, default=0.15)
    parser.add_argument("--start", type=Path, help="an adapter to begin the second run from, instead of the first run")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    torch.set_num_threads(1)
    nano = hs.load("nano")
    tasks = {name: TASKS[name](nano.tokenizer, n=HELD_OUT, seed=0) for name in DRAW}
    held_out = {prompt for task in tasks.values() for prompt in task.clean}
    with tempfile.TemporaryDirectory() as folder:
        begun = options.start
        if begun is None:
            begun = Path(folder, "down", "adapter")
            sparsify(
                nano, Path(folder, "down"), held_out, steps=options.steps, seed=options.seed,
                penalty_weight=options.penalty_weight, lr=2e-3, lr_end=5e-5, temperature=1.0, temperature_end=0.5,
                offset_lr=5.0,
            )  # fmt: skip
        history = sparsify(
            nano, Path(folder, "again"), held_out, steps=options.steps // 3, seed=options.seed + 1, start=str(begun),
            penalty_weight=options.penalty_weight / 3, lr=1e-3, lr_end=3e-5, temperature=0.5, temperature_end=0.5,
            offset_lr=2.0,
        )  # fmt: skip
        shutil.rmtree(options.out, ignore_errors=True)
        shutil.copytree(Path(folder, "again", "adapter"), options.out)
    last = history[-1]
    print(f"{last['edges_per_query']:.2f} open edges per query and head, divergence {last['kl']:.3f}")
    sparse = hs.load(options.out)
    for name, task in tasks.items():
        dense, found = (hs.check(model, task).accuracy for model in (nano, sparse))
        print(f"{name:13s} accuracy on held-out prompts {found:.3f}, dense {dense:.3f}")


if __name__ == "__main__":
    main()
