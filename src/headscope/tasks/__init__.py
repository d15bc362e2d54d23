"""Tasks: prompt pairs that show a behaviour and its absence. One file per task; a new one adds an entry to TASKS."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from headscope.errors import InputError
from headscope.tasks.common_sense import common_sense, common_sense_letters
from headscope.tasks.datasets import HUB, big_bench, hub
from headscope.tasks.docstring import docstring
from headscope.tasks.greater_than import greater_than
from headscope.tasks.ioi import ioi
from headscope.tasks.ioi_long import ioi_long
from headscope.tasks.jsonl import jsonl
from headscope.tasks.math import math
from headscope.tasks.pairs import pairs
from headscope.tasks.syntax import syntax
from headscope.tasks.task import Task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = [
    "TASKS", "Task", "big_bench", "common_sense", "common_sense_letters", "docstring", "greater_than", "hub", "ioi",
    "ioi_long", "is_task", "jsonl", "make_task", "math", "pairs", "syntax",
]  # fmt: skip

TASKS: dict[str, Callable[..., Task]] = {
    "ioi": ioi,
    "ioi-long": ioi_long,
    "greater-than": greater_than,
    "docstring": docstring,
    "syntax": syntax,
    "common-sense": common_sense,
    "common-sense-letters": common_sense_letters,
    "math": math,
}


def make_task(
    name_or_path: str | Path, tokenizer: PreTrainedTokenizerBase, *, n: int | None = 100, seed: int = 0
) -> Task:
    """The task of that name with n pairs, or the first n pairs of a JSONL file (all of them if n is None).

    Args:
        name_or_path: a known name, a file (.jsonl, BIG-bench .json) or a set on the hub.
        tokenizer: of the model that is to be asked.
        n: how many prompts; of a file all where it is None.
        seed: of the prompts of a known task.

    Returns:
        The task.
    """
    name = str(name_or_path)
    if name in TASKS:
        return TASKS[name](tokenizer, seed=seed) if n is None else TASKS[name](tokenizer, n=n, seed=seed)
    if name.endswith(".jsonl"):
        return jsonl(name, tokenizer, n=n)
    if name.endswith(".json"):
        return big_bench(name, tokenizer, n=n)
    if name.startswith(HUB):
        return hub(name, tokenizer, n=n)
    raise InputError(
        f"Unknown task {name!r}. The known tasks are {', '.join(TASKS)}.\n"
        "For a task of your own give the path of a JSONL file (ending in .jsonl), of a BIG-bench file (.json), or "
        "hub:OWNER/NAME."
    )


def is_task(name: str) -> bool:
    """Whether `make_task` would try: a known name, a file by its ending, or a set on the hub.

    Args:
        name: what was given as a task.

    Returns:
        Whether it can be one.
    """
    return name in TASKS or name.endswith((".jsonl", ".json")) or name.startswith(HUB)
