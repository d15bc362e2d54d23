"""Greater Than: a span of years must end after it began.

    clean    The war lasted from the year 1732 to the year 17
    corrupt  The war lasted from the year 1701 to the year 17
    answers  "33" ... "99", wrong "00" ... "32"

The metric is P(answers) - P(wrong). How a tokenizer splits a year decides where the prompt stops and what is compared:

    17|32    two and two digits (GPT-2, OLMo): as above.
    173|2    three and one (Llama 3, OLMo 2): the prompt ends "... to the year 173"; answers are the last digits above
             the start's, wrong those below or equal; the corrupt start year ends in 1.
    1|7|3|2  single digits (SmolLM2, Llama 2): the prompt ends "... to the year 17"; answers are the tens digits above
             the start's, wrong those below. An equal tens digit is in neither set: either kind of year may follow.

Years that the tokenizer splits in another way than most are not used, neither as start nor as answer, and no century
is used that loses most of its years so.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from headscope.errors import InputError
from headscope.tasks.items import Item, build
from headscope.tasks.task import Task, encode, tokenizer_name

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Split(NamedTuple):
    """How a year falls into tokens, and the task that goes with it."""

    sizes: tuple[int, ...]  # digits per token
    shown: int  # digits of the end year that the prompt gives away
    width: int  # digits of the answer token
    low: str  # last digits of the corrupt start year


PAIRS = Split((2, 2), shown=2, width=2, low="01")
TRIPLE = Split((3, 1), shown=3, width=1, low="1")
SINGLES = Split((1, 1, 1, 1), shown=2, width=1, low="01")
SPLITS = {split.sizes: split for split in (PAIRS, TRIPLE, SINGLES)}

YEARS = tuple(str(year) for year in range(1100, 2000))
CENTURY_MINIMUM = 50

SPANS = (
    "war siege strike reign drought famine plague truce rebellion campaign voyage expedition dynasty project "
    "blockade revolt conflict alliance crusade feud empire kingdom trial festival journey peace occupation "
    "construction partnership treaty"
).split()


@dataclass(frozen=True)
class Calendar:
    """The years that a tokenizer splits in one way, and those of them that can start a span."""

    split: Split
    years: frozenset[str]
    starts: tuple[str, ...]

    def ends(self, start: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Continuations that put the end after the start, and those that do not."""
        split = self.split
        shown, own = start[: split.shown], start[split.shown : split.shown + split.width]
        texts = [f"{number:0{split.width}}" for number in range(10**split.width)]
        whole = split.shown + split.width == len(start)
        if whole:
            texts = [text for text in texts if shown + text in self.years]
        return (
            tuple(text for text in texts if text > own),
            tuple(text for text in texts if text < own or (whole and text == own)),
        )


def calendar(split: Split, years: Collection[str]) -> Calendar:
    """Finds the start years: above their corrupt twin, all changed tokens differing, something on both sides."""
    known = frozenset(years)

    def fits(start: str) -> bool:
        corrupt = corrupted(start, split)
        before, after = pieces(start, split.sizes), pieces(corrupt, split.sizes)
        differing = sum(a != b for a, b in zip(before, after, strict=True))
        if corrupt not in known or start <= corrupt or differing != changed_tokens(split):
            return False
        return all(without_starts.ends(start))

    without_starts = Calendar(split, known, ())
    return Calendar(split, known, tuple(start for start in sorted(known) if fits(start)))


def corrupted(start: str, split: Split) -> str:
    return start[: -len(split.low)] + split.low


def changed_tokens(split: Split) -> int:
    return len(split.low) // split.width


def pieces(year: str, sizes: tuple[int, ...]) -> list[str]:
    """The year's digits in groups of the given sizes."""
    digits = iter(year)
    return ["".join(next(digits, "") for _ in range(size)) for size in sizes]


def draw(rng: random.Random, slot: int, calendar: Calendar) -> Item:
    """One pair from the calendar's years."""
    start, split = rng.choice(calendar.starts), calendar.split
    prompt = f"The {rng.choice(SPANS)} lasted from the year {{}} to the year {start[: split.shown]}"
    answers, wrong = calendar.ends(start)
    clean, corrupt = prompt.format(start), prompt.format(corrupted(start, split))
    return Item(clean, corrupt, answers, wrong, changed_tokens(split))


def read_calendar(tokenizer: PreTrainedTokenizerBase) -> Calendar:
    """Looks at how the tokenizer splits years after a word, and settles on the commonest way."""
    by_sizes: dict[tuple[int, ...], list[str]] = {}
    for year, ids in zip(YEARS, encode(tokenizer, [f"to the year {year}" for year in YEARS]), strict=True):
        digits = [re.sub(r"\D", "", token) for token in tokenizer.convert_ids_to_tokens(ids)]
        by_sizes.setdefault(tuple(len(piece) for piece in digits if piece), []).append(year)
    sizes = max(by_sizes, key=lambda sizes: len(by_sizes[sizes]))
    # A century of which few years remain would leave the probabilities to compare mostly outside both sets.
    per_century = Counter(year[:2] for year in by_sizes[sizes])
    years = [year for year in by_sizes[sizes] if per_century[year[:2]] >= CENTURY_MINIMUM]
    if sizes not in SPLITS or not years:
        example = by_sizes[sizes][0]
        raise InputError(
            f"Task greater-than needs years split as 17|32, 173|2 or 1|7|3|2, but the tokenizer "
            f"{tokenizer_name(tokenizer)} splits {example} as {'|'.join(pieces(example, sizes)) or 'no digits'}.\n"
            "Use another task for this model, or a JSONL file of your own."
        )
    return calendar(SPLITS[sizes], years)


def greater_than(tokenizer: PreTrainedTokenizerBase, *, n: int = 100, seed: int = 0) -> Task:
    """A span of years ends later than it began. (probability difference, greater against not greater)

    Args:
        tokenizer: of the model that is to be asked; prompts are chosen to fit it.
        n: how many prompt pairs.
        seed: of the prompts.

    Returns:
        The task: n prompts with their corrupt twins, targets and foils.
    """
    years = read_calendar(tokenizer)
    return build("greater-than", "prob-diff", lambda rng, slot: draw(rng, slot, years), tokenizer, n=n, seed=seed)
