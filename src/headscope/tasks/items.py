"""From drawn texts to a task: the builder that every task's own file calls.

A task's file says how to draw an `Item`; `build` decides whether the tokenizer at hand can carry it:

1. Every slot (prompt number) draws from its own random stream, and slots are settled in order, so that a larger n
   extends a smaller one.
2. An item stays if its corrupt prompt has as many tokens, which differ in exactly as many places as the task changed
   words (where it says), and if each target and foil leaves the prompt's tokens as they are; with a metric that
   compares tokens, each is one token long.
3. A slot whose item was turned down draws again, up to `ATTEMPTS` times; then the commonest reason is reported.
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

# Many: of items whose words are of different lengths, few stand beside one of the same length.
ATTEMPTS = 150


@dataclass(frozen=True)
class Item:
    """What is asked of a model, as text: a prompt and its corrupt twin (empty: this draw has none), the continuations
    that are right after it and those that are wrong."""

    clean: str
    corrupt: str
    targets: tuple[str, ...]  # several only where each is one token
    foils: tuple[str, ...] = ()
    changed: int | None = None  # words (or digits) in which the prompts differ, each to be one token


@dataclass(frozen=True)
class Encoded:
    """What the tokenizer makes of an item, and why it cannot be used (an empty string if it can)."""

    item: Item
    clean: list[int]
    corrupt: list[int]
    targets: list[list[int]]
    foils: list[list[int]]
    fault: str


def single_tokens(
    task: str, tokenizer: PreTrainedTokenizerBase, words: Sequence[str], *, after: str, least: int
) -> list[str]:
    """Those of the task's words that are one token when they follow `after` and a space, of which it needs some."""
    refuse_closing_token(tokenizer)
    before, *joined = encode(tokenizer, [after, *(f"{after} {word}" for word in words)])
    kept = [word for word, ids in zip(words, joined, strict=True) if ids[:-1] == before]
    if len(kept) < least:
        raise InputError(
            f"Task {task} needs {least} of its words as single tokens, found {len(kept)} of {len(words)} in the "
            f"tokenizer {tokenizer_name(tokenizer)}.\nUse another task for this model, or a JSONL file of your own."
        )
    return kept


def build(
    name: str,
    metric: str,
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
    single = metric != "log-prob"
    rows: list[Encoded] = []
    seen: set[str] = set()
    reasons: Counter[str] = Counter()
    # First draws are encoded in one batch; slots are then settled in order, so that none depends on a later one.
    first = encode_items([draw(random.Random(f"{seed} {slot} 0"), slot) for slot in range(n)], tokenizer, single=single)
    for slot, row in enumerate(first):
        for attempt in range(1, ATTEMPTS):
            reason = "the same prompt came up again" if row.item.clean in seen else row.fault
            if not row.item.corrupt:
                reason = "no other prompt stands beside it"
            if not reason:
                break
            reasons[reason] += 1
            (row,) = encode_items([draw(random.Random(f"{seed} {slot} {attempt}"), slot)], tokenizer, single=single)
        else:
            raise InputError(
                f"Task {name} found {slot} of {n} prompts for the tokenizer {tokenizer_name(tokenizer)}; "
                f"most often {reasons.most_common(1)[0][0]}.\nAsk for fewer prompts, or use another task."
            )
        seen.add(row.item.clean)
        rows.append(row)
    return task_of(name, metric, rows, tokenizer, seed)


def from_items(name: str, items: Sequence[Item], tokenizer: PreTrainedTokenizerBase, *, n: int | None = None) -> Task:
    """The first n of the given items that the tokenizer can carry (all of them if n is None)."""
    refuse_closing_token(tokenizer)
    if n is not None and n < 1:
        raise InputError(f"Task {name} needs at least 1 prompt, found n = {n}.")
    rows = encode_items(items[: None if n is None else 2 * n], tokenizer, single=False)
    kept = [row for row in rows if not row.fault][:n]
    if not kept:
        why = f"most often {Counter(row.fault for row in rows).most_common(1)[0][0]}" if rows else "it is empty"
        raise InputError(
            f"Task {name} has no prompt with a target that the tokenizer {tokenizer_name(tokenizer)} can carry; {why}."
        )
    return task_of(name, "log-prob", kept, tokenizer, None)


def encode_items(items: Sequence[Item], tokenizer: PreTrainedTokenizerBase, *, single: bool) -> list[Encoded]:
    """single: targets and foils are to be one token each."""
    behind = [[item.clean + text for text in item.targets + item.foils] for item in items]
    texts = [[item.clean, item.corrupt, *wholes] for item, wholes in zip(items, behind, strict=True)]
    ids = iter(encode(tokenizer, [text for row in texts for text in row]))
    rows = []
    for item, row in zip(items, texts, strict=True):
        clean, corrupt, *wholes = (next(ids) for _ in row)
        tails = [whole[len(clean) :] for whole in wholes]
        fault = fault_of(item, clean, corrupt, wholes, single)
        targets, foils = tails[: len(item.targets)], tails[len(item.targets) :]
        rows.append(Encoded(item, clean, corrupt if item.corrupt else [], targets, foils, fault))
    return rows


def fault_of(item: Item, clean: list[int], corrupt: list[int], wholes: list[list[int]], single: bool) -> str:
    """Why the tokenizer cannot carry the item, or an empty string. wholes: the prompt with each target and foil."""
    right, wrong = wholes[: len(item.targets)], wholes[len(item.targets) :]
    if not item.clean or not item.targets[0]:
        return "a prompt or a target is empty"
    if item.corrupt and len(clean) != len(corrupt):
        return "clean and corrupt prompt differ in length"
    if item.changed is not None and sum(a != b for a, b in zip(clean, corrupt, strict=True)) != item.changed:
        return "a changed word is not one token"
    if single and any(whole[:-1] != clean for whole in wholes):
        return "an answer is not one token after the prompt"
    if any(whole[: len(clean)] != clean for whole in wholes):
        return "the target runs together with the end of the prompt"
    if any(len(whole) == len(clean) for whole in wholes):
        return "the target becomes no token at all"
    if any(whole in wrong for whole in right):
        return "a right and a wrong target are the same"
    return ""


def task_of(
    name: str, metric: str, rows: Sequence[Encoded], tokenizer: PreTrainedTokenizerBase, seed: int | None
) -> Task:
    """The task of some encoded items: of answers where its metric compares single tokens, of targets otherwise."""
    paired, single = all(row.corrupt for row in rows), metric != "log-prob"
    return Task(
        name=name,
        metric=metric,
        clean=[row.item.clean for row in rows],
        corrupt=[row.item.corrupt for row in rows] if paired else [],
        clean_ids=[row.clean for row in rows],
        corrupt_ids=[row.corrupt for row in rows] if paired else [],
        answers=[[target[0] for target in row.targets] for row in rows],
        wrong=[[foil[0] for foil in row.foils] if single else [] for row in rows],
        tokenizer=tokenizer_name(tokenizer),
        seed=seed,
        targets=[] if single else [row.targets[0] for row in rows],
        foils=[] if single else [row.foils for row in rows],
    )
