"""What goes through a model at once: how much for each purpose, and less when memory runs out.

`in_parts` is the one loop over things that share a pass (masks, circuits, gate matrices, prompts). A part that does not
fit in memory is halved and tried again, and what comes after it is as small; loops nest, so that where a single mask
does not fit with all its prompts, the prompts are halved.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from headscope.models.model import Model
from headscope.tasks.task import Task

T = TypeVar("T")

# Tokens in a pass: enough to keep a CPU busy, few enough for a laptop's memory.
BUDGETS: dict[str, dict[str, int]] = {
    "prompts": {"cpu": 2048, "cuda": 2048},
    # Prompts under masks.
    "masks": {"cpu": 2048, "cuda": 65536},
    # Edges keep what every writer wrote, which is much more for each token.
    "edge prompts": {"cpu": 320, "cuda": 320},
    "circuits": {"cpu": 512, "cuda": 16384},
    # Forward and backward.
    "gates": {"cpu": 1024, "cuda": 32768},
    # Answers, of which tokens are not counted.
    "states": {"cpu": 32, "cuda": 32},
    "generation": {"cpu": 160, "cuda": 160},
}

# What torch's allocators say in a plain RuntimeError: the CPU's on Linux and macOS, the CPU's on Windows, others.
_ALLOCATORS = ("DefaultCPUAllocator", "not enough memory", "out of memory")


def out_of_memory(error: BaseException) -> bool:
    """Whether a pass failed because it was too large, so that a smaller one may do."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _ALLOCATORS)


def budget(model: Model, purpose: str) -> int:
    """Tokens in a pass of this model for a purpose; fewer once memory has run out."""
    usual = BUDGETS[purpose].get(model.device.type, BUDGETS[purpose]["cuda"])
    return min(usual, _found_out(model).get(purpose, usual))


def _found_out(model: Model) -> dict[str, int]:
    return model.kept.setdefault("budgets", {})


def in_parts(
    model: Model, purpose: str, items: Sequence[T], run: Callable[[Sequence[T]], None], *, each: int, whole: int = 1
) -> None:
    """`run` on consecutive parts of the items. It has to leave nothing behind where it fails.

    each: tokens of one item. whole: as many items stay together while memory lasts.
    """
    done = 0
    while done < len(items):
        size = max(1, budget(model, purpose) // each)
        if purpose not in _found_out(model):
            size = max(1, size // whole) * whole
        part = items[done : done + size]
        try:
            run(part)
        except (RuntimeError, MemoryError) as error:
            if len(part) == 1 or not out_of_memory(error):
                raise
            _found_out(model)[purpose] = each * (len(part) // 2)
        else:
            done += len(part)


def same_length(model: Model, purpose: str, lengths: Sequence[int]) -> list[list[int]]:
    """Places in groups of one length, which needs no padding, at most about a budget of tokens in each. Their order
    within a length stays."""
    by_length: dict[int, list[int]] = defaultdict(list)
    for place, length in enumerate(lengths):
        by_length[length].append(place)
    groups = []
    for length, members in sorted(by_length.items()):
        size = max(1, budget(model, purpose) // length)
        groups += [members[i : i + size] for i in range(0, len(members), size)]
    return groups


def batches(model: Model, task: Task, purpose: str = "prompts") -> list[list[int]]:
    """Prompt numbers in groups whose rows (prompt and target) have one length. Prompts whose pair differs late stand
    together, because what comes before need not be run again."""

    def first_difference(i: int) -> int:
        if not task.corrupt_ids:
            return 0
        pair = zip(task.clean_ids[i], task.corrupt_ids[i], strict=True)
        return next((at for at, (a, b) in enumerate(pair) if a != b), 0)

    order = sorted(range(len(task)), key=first_difference)
    groups = same_length(model, purpose, [len(task.clean_rows[i]) for i in order])
    return [[order[place] for place in group] for group in groups]
