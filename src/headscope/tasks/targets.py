"""Tasks of prompts and targets: the target is a text of one or more tokens that should follow the prompt.

A task's own file says how to draw an `Item`; `build_targets` decides whether the tokenizer at hand can carry it:

1. Every slot draws from its own random stream, so a larger n extends a smaller one.
2. An item stays if the tokens of prompt + target start with those of the prompt and go on for at least one more, the
   same for every foil, and if its corrupt prompt (where it has one) has as many tokens as the prompt.
3. Slots whose item was turned down draw again, up to `ATTEMPTS` times; then the commonest reason is reported.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headscope.errors import InputError
from headscope.tasks.task import Task, encode, refuse_closing_token, tokenizer_name

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# More than pairs get: of items whose words are of different lengths, few stand beside one of the same length.
ATTEMPTS = 150


@dataclass(frozen=True)
class Item:
    """A prompt and its target as text; foils are wrong targets to choose against; corrupt is another item's prompt."""

    prompt: str
    target: str
    foils: tuple[str, ...] = ()
    corrupt: str = ""


@dataclass(frozen=True)
class Encoded:
    """What the tokenizer makes of an item, and why it cannot be used (an empty string if it can)."""

    item: Item
    prompt: list[int]
    target: list[int]
    foils: list[list[int]]
    corrupt: list[int]
    fault: str


def build_targets(
    name: str,
    draw: Callable[[random.Random, int], Item],
    tokenizer: PreTrainedTokenizerBase,
    *,
    n: int,
    seed: int,
) -> Task:
    """Draws n items that the tokenizer can carry; `draw` gets a random stream and the slot's number."""
    if n < 1:
        raise InputError(f"Task {name} needs at least 1 prompt, found n = {n}.")
    refuse_closing_token(tokenizer)
    rows: list[Encoded] = []
    seen: set[str] = set()
    reasons: Counter[str] = Counter()
    # First draws are encoded in one batch; slots are then settled in order, so that none depends on a later one.
    first = encode_items([draw(random.Random(f"{seed} {slot} 0"), slot) for slot in range(n)], tokenizer)
    for slot, row in enumerate(first):
        for attempt in range(1, ATTEMPTS):
            reason = "the same prompt came up again" if row.item.prompt in seen else row.fault
            if not row.item.corrupt:
                reason = "no other prompt stands beside it"
            if not reason:
                break
            reasons[reason] += 1
            (row,) = encode_items([draw(random.Random(f"{seed} {slot} {attempt}"), slot)], tokenizer)
        else:
            raise InputError(
                f"Task {name} found {slot} of {n} prompts for the tokenizer {tokenizer_name(tokenizer)}; "
                f"most often {reasons.most_common(1)[0][0]}.\nAsk for fewer prompts, or use another task."
            )
        seen.add(row.item.prompt)
        rows.append(row)
    return target_task(name, rows, tokenizer, seed)


def from_items(name: str, items: Sequence[Item], tokenizer: PreTrainedTokenizerBase, *, n: int | None = None) -> Task:
    """The first n of the given items that the tokenizer can carry (all of them if n is None)."""
    refuse_closing_token(tokenizer)
    if n is not None and n < 1:
        raise InputError(f"Task {name} needs at least 1 prompt, found n = {n}.")
    rows = encode_items(items[: None if n is None else 2 * n], tokenizer)
    kept = [row for row in rows if not row.fault][:n]
    if not kept:
        why = f"most often {Counter(row.fault for row in rows).most_common(1)[0][0]}" if rows else "it is empty"
        raise InputError(
            f"Task {name} has no prompt with a target that the tokenizer {tokenizer_name(tokenizer)} can carry; {why}."
        )
    return target_task(name, kept, tokenizer, None)


def encode_items(items: Sequence[Item], tokenizer: PreTrainedTokenizerBase) -> list[Encoded]:
    texts = [
        text for i in items for text in (i.prompt, i.corrupt, i.prompt + i.target, *(i.prompt + f for f in i.foils))
    ]
    ids = iter(encode(tokenizer, texts))
    rows = []
    for item in items:
        prompt, corrupt, whole = next(ids), next(ids), next(ids)
        foils = [next(ids) for _ in item.foils]
        fault = fault_of(item, prompt, corrupt, [whole, *foils])
        tails = [row[len(prompt) :] for row in (whole, *foils)]
        rows.append(Encoded(item, prompt, tails[0], tails[1:], corrupt if item.corrupt else [], fault))
    return rows


def fault_of(item: Item, prompt: list[int], corrupt: list[int], wholes: list[list[int]]) -> str:
    if not item.target or not item.prompt:
        return "a prompt or a target is empty"
    if any(whole[: len(prompt)] != prompt for whole in wholes):
        return "the target runs together with the end of the prompt"
    if any(len(whole) == len(prompt) for whole in wholes):
        return "the target becomes no token at all"
    if any(whole == wholes[0] for whole in wholes[1:]):
        return "a right and a wrong target are the same"
    if item.corrupt and len(corrupt) != len(prompt):
        return "clean and corrupt prompt differ in length"
    return ""


def target_task(name: str, rows: list[Encoded], tokenizer: PreTrainedTokenizerBase, seed: int | None) -> Task:
    """The task of some encoded items. What reads one token only (patching, curves) reads the target's first."""
    paired = all(row.corrupt for row in rows)
    return Task(
        name=name,
        metric="log-prob",
        clean=[row.item.prompt for row in rows],
        corrupt=[row.item.corrupt for row in rows] if paired else [],
        clean_ids=[row.prompt for row in rows],
        corrupt_ids=[row.corrupt for row in rows] if paired else [],
        answers=[row.target[:1] for row in rows],
        wrong=[[] for _ in rows],
        tokenizer=tokenizer_name(tokenizer),
        seed=seed,
        targets=[row.target for row in rows],
        foils=[row.foils for row in rows],
    )
