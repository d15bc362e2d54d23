"""The Task record, and the builder that turns drawn pairs of texts into one.

A task's own file says how to draw a pair; `build` decides whether the tokenizer at hand can carry it:

1. Every slot (prompt number) draws a pair from its own random stream, so a larger n extends a smaller one.
2. All drawn pairs are encoded in one batch. A pair stays if both prompts have the same number of tokens, differ
   in exactly as many tokens as the task changed words, and each answer is one token after the prompt.
3. Slots whose pair was turned down draw again, up to `ATTEMPTS` times; then the commonest reason is reported.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from headscope.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

METRICS = ("logit-diff", "prob-diff", "log-prob")

ATTEMPTS = 30

# What a tokenizer makes of an answer depends on the few characters before it: looking answers up behind these
# instead of the whole prompt lets prompts share the lookup.
TAIL = 16

SEVERAL = -1


@dataclass(frozen=True)
class Pair:
    """A clean and a corrupt prompt as text, with the continuations that are right and wrong after the clean one."""

    clean: str
    corrupt: str
    answers: tuple[str, ...]
    wrong: tuple[str, ...]
    changed: int  # words (or digits) in which the prompts differ, each to be one token


class Row(NamedTuple):
    """A pair and what the tokenizer makes of it."""

    pair: Pair
    clean: list[int]
    corrupt: list[int]
    answered: list[int]  # the whole clean prompt with its first answer, to confirm what was looked up
    answers: list[int]
    wrong: list[int]


@dataclass(frozen=True)
class Task:
    """Token-aligned prompt pairs, the tokens that are right and wrong next, and the metric that compares them.

    metric is "logit-diff" (best answer's logit - best wrong one's), "prob-diff" (P(answers) - P(wrong)) or
    "log-prob" (log P(answers)). The ids are what `tokenizer(text)["input_ids"]` gives, special tokens included.

    A task of targets has, for each prompt, a target of one or more tokens and maybe foils, wrong targets to choose
    against; it may do without corrupt prompts. A task without targets has its answers as targets of one token.
    """

    name: str
    metric: str
    clean: list[str]
    corrupt: list[str]
    clean_ids: list[list[int]]
    corrupt_ids: list[list[int]]
    answers: list[list[int]]
    wrong: list[list[int]]
    tokenizer: str
    seed: int | None
    targets: list[list[int]] = field(default_factory=list)
    foils: list[list[list[int]]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.clean)

    @property
    def description(self) -> str:
        seed = "" if self.seed is None else f", seed {self.seed}"
        what = "prompts with targets" if self.targets else "pairs"
        return f"{self.name}: {len(self)} {what}, {self.metric}, tokenizer {self.tokenizer}{seed}"

    @property
    def digest(self) -> str:
        """Which prompts these are, in a few letters: the same for the same prompts in the same order."""
        prompts = json.dumps([self.clean_ids, self.corrupt_ids, self.answers])
        return hashlib.sha256(prompts.encode()).hexdigest()[:12]

    def take(self, which: slice | Iterable[int]) -> Task:
        """The task reduced to some of its pairs, given as a slice or as indices in the wanted order."""
        rows = range(len(self))[which] if isinstance(which, slice) else list(which)

        def pick(column: list[Any]) -> list[Any]:
            # (A task may have no corrupt prompts, or no targets.)
            return [column[row] for row in rows] if column else []

        return replace(
            self,
            clean=pick(self.clean),
            corrupt=pick(self.corrupt),
            clean_ids=pick(self.clean_ids),
            corrupt_ids=pick(self.corrupt_ids),
            answers=pick(self.answers),
            wrong=pick(self.wrong),
            targets=pick(self.targets),
            foils=pick(self.foils),
        )


def tokenizer_name(tokenizer: PreTrainedTokenizerBase) -> str:
    """The tokenizer's name for messages: a Hub id as it is, a local folder without the path to it."""
    name = str(getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__)
    return Path(name).name if Path(name).is_dir() else name


def encode(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[list[int]]:
    """Ids of each text, exactly as the tokenizer gives them for one text alone."""
    return [list(ids) for ids in tokenizer(list(texts))["input_ids"]] if texts else []  # type: ignore[arg-type]


def refuse_closing_token(tokenizer: PreTrainedTokenizerBase) -> None:
    """A tokenizer that ends every text with a special token leaves no place for an answer."""
    ids = encode(tokenizer, ["word"])[0]
    if ids and ids[-1] in tokenizer.all_special_ids and ids[-1] != tokenizer.unk_token_id:
        raise InputError(
            f"The tokenizer {tokenizer_name(tokenizer)} puts {tokenizer.convert_ids_to_tokens(ids[-1])!r} at the end "
            "of every text, so that no prompt can be continued.\nLoad it with that turned off (add_eos_token=False)."
        )


class Continuations:
    """Looks up which single token a text becomes after a prompt, SEVERAL where it is not exactly one."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        refuse_closing_token(tokenizer)
        self.tokenizer = tokenizer
        self.known: dict[tuple[str, str], int] = {}

    def learn(self, wanted: Iterable[tuple[str, str]]) -> None:
        """Encodes the (prompt, text) combinations whose tail has not been met, in one batch."""
        new = [key for key in {(prompt[-TAIL:], text): None for prompt, text in wanted} if key not in self.known]
        tails = list(dict.fromkeys(tail for tail, _ in new))
        ids_of = dict(zip(tails, encode(self.tokenizer, tails), strict=True))
        joined = encode(self.tokenizer, [tail + text for tail, text in new])
        for (tail, text), ids in zip(new, joined, strict=True):
            single = len(ids) > 0 and ids[:-1] == ids_of[tail]
            self.known[tail, text] = ids[-1] if single else SEVERAL

    def __call__(self, prompt: str, text: str) -> int:
        return self.known[prompt[-TAIL:], text]


def single_tokens(
    task: str, tokenizer: PreTrainedTokenizerBase, words: Sequence[str], *, after: str, least: int
) -> list[str]:
    """Those of the task's words that are one token when they follow `after` and a space, of which it needs some."""
    lookup = Continuations(tokenizer)
    lookup.learn((after, " " + word) for word in words)
    kept = [word for word in words if lookup(after, " " + word) != SEVERAL]
    if len(kept) < least:
        raise InputError(
            f"Task {task} needs {least} of its words as single tokens, found {len(kept)} of {len(words)} in the "
            f"tokenizer {tokenizer_name(tokenizer)}.\nUse another task for this model, or a JSONL file of your own."
        )
    return kept


def build(
    name: str,
    metric: str,
    draw: Callable[[random.Random, int], Pair],
    tokenizer: PreTrainedTokenizerBase,
    *,
    n: int,
    seed: int,
) -> Task:
    """Draws n pairs that the tokenizer can carry; `draw` gets a random stream and the slot's number."""
    if n < 1:
        raise InputError(f"Task {name} needs at least 1 prompt, found n = {n}.")
    lookup = Continuations(tokenizer)
    rows: dict[int, Row] = {}
    seen: set[str] = set()
    reasons: Counter[str] = Counter()
    for attempt in range(ATTEMPTS):
        empty = [slot for slot in range(n) if slot not in rows]
        if not empty:
            break
        pairs = [draw(random.Random(f"{seed} {slot} {attempt}"), slot) for slot in empty]
        for slot, row in zip(empty, encode_pairs(pairs, tokenizer, lookup), strict=True):
            reason = "the same prompt came up again" if row.pair.clean in seen else fault(row)
            if reason:
                reasons[reason] += 1
            else:
                seen.add(row.pair.clean)
                rows[slot] = row
    if len(rows) < n:
        raise InputError(
            f"Task {name} found {len(rows)} of {n} prompts for the tokenizer {tokenizer_name(tokenizer)}; "
            f"most often {reasons.most_common(1)[0][0]}.\nAsk for fewer prompts, or use another task."
        )
    kept = [rows[slot] for slot in range(n)]
    return Task(
        name=name,
        metric=metric,
        clean=[row.pair.clean for row in kept],
        corrupt=[row.pair.corrupt for row in kept],
        clean_ids=[row.clean for row in kept],
        corrupt_ids=[row.corrupt for row in kept],
        answers=[row.answers for row in kept],
        wrong=[row.wrong for row in kept],
        tokenizer=tokenizer_name(tokenizer),
        seed=seed,
    )


def encode_pairs(pairs: Sequence[Pair], tokenizer: PreTrainedTokenizerBase, lookup: Continuations) -> list[Row]:
    lookup.learn((pair.clean, text) for pair in pairs for text in pair.answers + pair.wrong)
    ids = encode(tokenizer, [text for p in pairs for text in (p.clean, p.corrupt, p.clean + p.answers[0])])
    return [
        Row(
            pair,
            clean=ids[3 * i],
            corrupt=ids[3 * i + 1],
            answered=ids[3 * i + 2],
            answers=[lookup(pair.clean, text) for text in pair.answers],
            wrong=[lookup(pair.clean, text) for text in pair.wrong],
        )
        for i, pair in enumerate(pairs)
    ]


def fault(row: Row) -> str:
    """Why the tokenizer cannot carry the pair, or an empty string."""
    if len(row.clean) != len(row.corrupt):
        return "clean and corrupt prompt differ in length"
    if sum(a != b for a, b in zip(row.clean, row.corrupt, strict=True)) != row.pair.changed:
        return "a changed word is not one token"
    if SEVERAL in row.answers + row.wrong or row.answered != [*row.clean, row.answers[0]]:
        return "an answer is not one token after the prompt"
    if set(row.answers) & set(row.wrong):
        return "a right and a wrong answer begin with the same token"
    return ""
