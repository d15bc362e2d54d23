"""IOI, indirect object identification: of two people, who is meant when the other one acts?

    clean    When Mary and John went to the store, John gave a drink to
    corrupt  When Mary and John went to the store, Peter gave a drink to
    answer   " Mary", wrong " John"

The subject (John) is named twice, the indirect object (Mary) once: the answer is the name that was not repeated.
Even slots introduce the indirect object first (ABBA), odd ones the subject (BABA). The corrupt prompt puts a third
name where the subject is repeated, so that nothing tells the two apart and exactly one token changes.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headscope.tasks.items import Item, build, single_tokens
from headscope.tasks.task import Task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Short, common names; those that a tokenizer splits are left out for it.
NAMES = (
    "Tom Ben Tim Sam Max Anna Lily Lucy Jack John Mary Bob Amy Jane Jim Kate Emma Leo Dan Sue Billy Mia Sara Mark "
    "Peter Paul David James Alice Joe Mike Bill Fred George Charlie Harry Henry Sarah Laura Susan Anne Adam Alex "
    "Simon Steve Frank Maria Kevin Ryan Nick Rose Grace Helen Lisa Ruth Luke Tommy Jimmy Bobby Ruby"
).split()

PLACES = "store park school beach garden house farm zoo forest market kitchen lake river library hospital".split()

THINGS = "drink ball book toy cake gift hat flower cookie kite doll box ring present sandwich balloon".split()

OPENINGS = (
    "When {a} and {b} went to the {place},",
    "While {a} and {b} were at the {place},",
    "After {a} and {b} came to the {place},",
    "One day, {a} and {b} went to the {place}, and",
    "Then {a} and {b} had a long talk at the {place}, and",
    "Yesterday, {a} and {b} played together at the {place}, and",
)

ACTIONS = (
    "{s} gave a {thing} to",
    "{s} wanted to give a {thing} to",
    "{s} handed a {thing} to",
    "{s} brought a {thing} to",
)


def draw(rng: random.Random, slot: int, names: Sequence[str]) -> Item:
    """One pair from the given names."""
    opening, action = rng.choice(OPENINGS), rng.choice(ACTIONS)
    return fill(f"{opening} {action}", rng, slot, names)


def fill(template: str, rng: random.Random, slot: int, names: Sequence[str]) -> Item:
    """Puts names, a place and a thing into a template with the fields a, b, place, s and thing."""
    indirect, subject, third = rng.sample(names, 3)
    place, thing = rng.choice(PLACES), rng.choice(THINGS)
    a, b = (indirect, subject) if slot % 2 == 0 else (subject, indirect)
    clean = template.format(a=a, b=b, place=place, s=subject, thing=thing)
    corrupt = template.format(a=a, b=b, place=place, s=third, thing=thing)
    return Item(clean, corrupt, (f" {indirect}",), (f" {subject}",), changed=1)


def usable_names(task: str, tokenizer: PreTrainedTokenizerBase) -> list[str]:
    return single_tokens(task, tokenizer, NAMES, after="One day,", least=3)


def ioi(tokenizer: PreTrainedTokenizerBase, *, n: int = 100, seed: int = 0) -> Task:
    """Indirect object identification: of two people, who is meant when the other one acts? (logit difference)

    Args:
        tokenizer: of the model that is to be asked; prompts are chosen to fit it.
        n: how many prompt pairs.
        seed: of the prompts.

    Returns:
        The task: n prompts with their corrupt twins, targets and foils.
    """
    names = usable_names("ioi", tokenizer)
    return build("ioi", "logit-diff", lambda rng, slot: draw(rng, slot, names), tokenizer, n=n, seed=seed)
