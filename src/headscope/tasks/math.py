"""Math: a small word problem with its working, after one example.

    prompt   Jon has 4 coins and gets 4 more. How many coins does Jon have now?
             Answer: 4 + 4 = 8. Jon has 8 coins.

             Una has 7 hats and loses 4. How many hats does Una have now?
             Answer:
    target   " 7 - 4 = 3. Una has 3 hats.", against foils such as " 7 - 4 = 2. Una has 2 hats."

One addition or subtraction of numbers below ten; the target is the whole working, several tokens long. Foils are
workings with a wrong result. The corrupt prompt is another problem behind the same example.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from headscope.tasks.items import Item, build
from headscope.tasks.task import Task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

NAMES = "Ann Ben Cara Dan Eva Finn Gus Ida Jon Kim Leo Mia Ned Ola Pam Ray Sue Tom Una Vic".split()
THINGS = "apples books coins cups hats keys maps nuts pears pens".split()

# Small enough for models of a hundred million parameters: no number has two digits.
LARGEST = 9


def worked(rng: random.Random) -> tuple[str, str, tuple[str, ...]]:
    """A problem, its working, and workings with a wrong result."""
    who, things = rng.choice(NAMES), rng.choice(THINGS)
    while True:
        had, change, sign = rng.randint(2, 7), rng.randint(1, 5), rng.choice("+-")
        now = had + change if sign == "+" else had - change
        if 1 < now < LARGEST:
            break
    event = f"gets {change} more" if sign == "+" else f"loses {change}"
    asked = f"{who} has {had} {things} and {event}. How many {things} does {who} have now?\nAnswer:"

    def working(result: int) -> str:
        return f" {had} {sign} {change} = {result}. {who} has {result} {things}."

    return asked, working(now), tuple(working(now + slip) for slip in (-2, -1, 1, 2))


def draw(rng: random.Random, slot: int) -> Item:
    """One item behind an example."""
    (shown, shown_worked, _), (asked, target, slips), (other, other_target, _) = (worked(rng) for _ in range(3))
    example = f"{shown}{shown_worked}\n\n"
    usable = asked != shown and target != other_target
    return Item(example + asked, example + other if usable else "", (target,), slips)


def math(tokenizer: PreTrainedTokenizerBase, *, n: int = 100, seed: int = 0) -> Task:
    """A small word problem with its working, after one example. (targets of several tokens)

    Args:
        tokenizer: of the model that is to be asked; prompts are chosen to fit it.
        n: how many prompt pairs.
        seed: of the prompts.

    Returns:
        The task: n prompts with their corrupt twins, targets and foils.
    """
    return build("math", "log-prob", draw, tokenizer, n=n, seed=seed)
