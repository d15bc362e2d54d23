"""IOI Long: IOI with a long distractor between the two names and the question.

    clean    One day, Mary and John went to the park. The sun was warm and the sky was blue. ... Then John gave a
             ball to
    corrupt  the same with Peter in John's second place
    answer   " Mary", wrong " John"

The distractor is a handful of sentences without any name, in random order.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headscope.tasks.ioi import ACTIONS, fill, usable_names
from headscope.tasks.items import Item, build
from headscope.tasks.task import Task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Chosen by trying: over this distance SmolLM2-135M mixed up the names after "Today {a} and {b} met ..." and after a
# text that begins with a name, but not after these. Why was not looked into.
OPENINGS = (
    "One day, {a} and {b} went to the {place}.",
    "Yesterday, {a} and {b} went to the {place} together.",
    "In the morning, {a} and {b} walked to the {place}.",
    "On a fine day, {a} and {b} played at the {place}.",
    "This morning, {a} and {b} met at the {place}.",
)

DISTRACTORS = (
    "The sun was warm and the sky was blue.",
    "A small bird sang in a tall tree.",
    "There were many red flowers on the ground.",
    "The wind was cold, but it did not rain.",
    "A big brown dog ran after a stick.",
    "It was very quiet, and the air smelled sweet.",
    "Some people sat on a bench and ate bread.",
    "A little boat moved slowly over the water.",
    "The grass was wet and soft after the night.",
    "Far away a bell began to ring.",
    "The old door was open, and there was light inside.",
    "Two cats were asleep under a green table.",
)

LEADS = ("Then", "Later", "In the end,", "After a while,")


def draw(rng: random.Random, slot: int, names: Sequence[str]) -> Item:
    """One pair from the given names."""
    distractor = " ".join(rng.sample(DISTRACTORS, rng.choice((5, 6))))
    return fill(f"{rng.choice(OPENINGS)} {distractor} {rng.choice(LEADS)} {rng.choice(ACTIONS)}", rng, slot, names)


def ioi_long(tokenizer: PreTrainedTokenizerBase, *, n: int = 100, seed: int = 0) -> Task:
    """IOI with a long distractor between the names and the question. (logit difference)

    Args:
        tokenizer: of the model that is to be asked; prompts are chosen to fit it.
        n: how many prompt pairs.
        seed: of the prompts.

    Returns:
        The task: n prompts with their corrupt twins, targets and foils.
    """
    names = usable_names("ioi-long", tokenizer)
    return build("ioi-long", "logit-diff", lambda rng, slot: draw(rng, slot, names), tokenizer, n=n, seed=seed)
