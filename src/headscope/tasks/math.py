"""Math: a sum of three numbers with its working, after one example.

    prompt   2+1+5:2+1=3,3+5=8
             2+6+1:2+6=
    target   "8,8+1=9", against foils such as "7,7+1=8"

Two operations from left to right, written without spaces because many tokenizers spend a token on each; the target is
the rest of the working, several tokens long. Foils are workings with a mistake. The corrupt prompt is another sum
behind the same example.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from headscope.tasks.targets import Item, build_targets
from headscope.tasks.task import Task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Small enough for models of a hundred million parameters; no number on the way has two digits.
LARGEST = 9


def working(middle: int, sign: str, c: int, end: int) -> str:
    return f"{middle},{middle}{sign}{c}={end}"


def worked(rng: random.Random) -> tuple[str, str, tuple[str, ...]]:
    """A sum, the rest of its working, and workings with a mistake."""
    while True:
        a, b, c = (rng.randint(1, LARGEST) for _ in range(3))
        first, second = rng.choice("++-"), rng.choice("++-")
        middle = a + b if first == "+" else a - b
        end = middle + c if second == "+" else middle - c
        if 1 < middle < LARGEST and 1 < end < LARGEST:
            break
    asked = f"{a}{first}{b}{second}{c}:{a}{first}{b}="
    slips = [working(middle + slip, second, c, end + slip) for slip in (-1, 1)]
    slips += [working(middle, second, c, end + slip) for slip in (-1, 1)]
    return asked, working(middle, second, c, end), tuple(slips)


def draw(rng: random.Random, slot: int) -> Item:
    """One item behind an example."""
    (shown, shown_worked, _), (asked, target, slips), (other, other_target, _) = (worked(rng) for _ in range(3))
    example = f"{shown}{shown_worked}\n"
    usable = asked != shown and target != other_target
    return Item(example + asked, target, slips, example + other if usable else "")


def math(tokenizer: PreTrainedTokenizerBase, *, n: int = 100, seed: int = 0) -> Task:
    """A sum of three numbers with its working, after one example. (targets of several tokens)"""
    return build_targets("math", draw, tokenizer, n=n, seed=seed)
