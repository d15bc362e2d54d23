"""What the benchmarks share: a GPT-2-small-shaped model with random weights, prompt pairs, and fair timing."""

from __future__ import annotations

import os
import resource
import statistics
import sys
import time
from collections.abc import Callable

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from headscope.models import Model
from headscope.models.attention import install
from headscope.running.session import engine_of
from headscope.tasks import Task

PAIRS, TOKENS = 16, 16
ROUNDS = int(os.environ.get("ROUNDS", "3"))


def gpt2_small() -> Model:
    """12 x 12 heads, width 768, 50,257 tokens, float32, random."""
    torch.manual_seed(0)
    hf = GPT2LMHeadModel(GPT2Config()).eval()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel({"a": 0}, unk_token="a")), pad_token="a")
    return Model("gpt2-small-shape", hf, tokenizer, install(hf))


def pairs(differ: int) -> Task:
    """Random pairs whose last `differ` tokens differ."""
    draw = torch.Generator().manual_seed(0)
    clean = torch.randint(0, 50257, (PAIRS, TOKENS), generator=draw)
    corrupt = clean.clone()
    corrupt[:, -differ:] = torch.randint(0, 50257, (PAIRS, differ), generator=draw)
    texts = [""] * PAIRS
    return Task(
        f"last {differ} differ", "logit-diff", texts, texts, clean.tolist(), corrupt.tolist(),
        [[11]] * PAIRS, [[12]] * PAIRS, "none", 0,
    )  # fmt: skip


def ratio(
    model: Model, plain: Callable[[], object], work: Callable[[], object], rounds: int = ROUNDS
) -> tuple[float, float, float]:
    """Median, lowest and highest of work's time over plain's, each measurement of work between two of plain."""
    # (The engine checks a model at its first session; nobody pays for that twice.)
    plain()
    engine_of(model)

    def seconds(run: Callable[[], object]) -> float:
        began = time.perf_counter()
        run()
        return time.perf_counter() - began

    ratios = []
    before = seconds(plain)
    for _ in range(rounds):
        middle = seconds(work)
        after = seconds(plain)
        ratios.append(middle / ((before + after) / 2))
        before = after
    return statistics.median(ratios), min(ratios), max(ratios)


def peak_memory() -> float:
    """The largest resident memory this process has had, in GiB. (Linux counts in KiB, macOS in bytes.)"""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform != "darwin" else 2**30)
