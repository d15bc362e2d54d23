"""Published sets of prompts and targets, read from a file or from the Hugging Face hub.

    BLiMP            {"sentence_good", "sentence_bad"}: what both share in front is the prompt, the rest of the good
                     sentence the target, that of the bad one the foil (CC BY 4.0)
    CommonsenseQA    {"question", "choices": {"label", "text"}, "answer" or "answerKey"}: the answer's words are the
                     target, the other choices foils (MIT)
    GSM8K            {"question", "answer"}: the worked solution is the target, without its calculator marks (MIT)
    BIG-bench        a .json file with "examples": {"input", "target"} or {"input", "target_scores"}: the best-scored
                     continuation is the target, the others foils (Apache-2.0)
    one's own        {"prompt", "target"} and maybe "corrupt" and "foils", as they stand

None of them comes with Headscope; the licences are those that their authors state. Questions get one example in front,
which is the first row of the file and is not asked itself. From the hub (`hub:OWNER/NAME`, then if needed `:CONFIG` and
`:SPLIT`) rows come through the package `datasets`, which has to be installed for that.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headscope.errors import InputError, SetupError
from headscope.schema import checked, kind, parse, read_bytes
from headscope.tasks.items import Item, from_items
from headscope.tasks.task import Task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

HUB = "hub:"


def targets_from_rows(
    name: str, rows: Sequence[dict[str, Any]], tokenizer: PreTrainedTokenizerBase, *, n: int | None = None
) -> Task:
    """The task in rows of one of the known forms, or its first n items."""
    if not rows:
        raise InputError(f"{name}: expected rows with prompts and targets, found none.")
    form = form_of(name, rows[0])
    items = []
    for number, row in enumerate(rows, 1):
        checked(row, ROWS[form], where=f"{name}, row {number}, of {form}")
        try:
            items.append(READERS[form](row))
        except (KeyError, ValueError, IndexError) as error:
            raise InputError(f"{name}, row {number}: expected a row of {form}, found {error!r}.") from error
    if form in ASKED and len(items) > 1:
        shown, *items = items
        example = f"{shown.clean}{shown.targets[0]}\n"
        items = [replace(item, clean=example + item.clean) for item in items]
    return from_items(name, items, tokenizer, n=n)


def form_of(name: str, row: dict[str, Any]) -> str:
    for form, needed in FORMS.items():
        if all(any(key in row for key in keys.split("|")) for keys in needed.split()):
            return form
    known = "; ".join(f"{form} ({needed.replace('|', ' or ')})" for form, needed in FORMS.items())
    raise InputError(
        f"{name}: rows have {', '.join(map(str, row)) or 'nothing'}, which is no known form of prompts and targets.\n"
        f"Known: {known}."
    )


FORMS = {
    "BLiMP": "sentence_good sentence_bad",
    "CommonsenseQA": "question choices answer|answerKey",
    "GSM8K": "question answer",
    "BIG-bench": "input target|target_scores",
    "prompts and targets": "prompt target",
}
# Forms that are questions, before which an example is put.
ASKED = ("CommonsenseQA", "GSM8K", "BIG-bench")


def read_blimp(row: dict[str, Any]) -> Item:
    good, bad = row["sentence_good"], row["sentence_bad"]
    differ = next((at for at, (a, b) in enumerate(zip(good, bad, strict=False)) if a != b), min(len(good), len(bad)))
    # Cut before a word, so that the target starts with its space.
    cut = max(good[:differ].rfind(" "), 0)
    return Item(good[:cut], "", (good[cut:],), (bad[cut:],))


def read_commonsense_qa(row: dict[str, Any]) -> Item:
    labels, texts = row["choices"]["label"], row["choices"]["text"]
    right = labels.index(row.get("answerKey", row.get("answer")))
    foils = tuple(f" {text}" for place, text in enumerate(texts) if place != right)
    return Item(f"Question: {row['question']}\nAnswer:", "", (f" {texts[right]}",), foils)


def read_gsm8k(row: dict[str, Any]) -> Item:
    solution = re.sub(r"<<.*?>>", "", row["answer"]).replace("\n#### ", "\nThe answer is ")
    return Item(f"Question: {row['question']}\nAnswer:", "", (f" {solution}",))


def read_big_bench(row: dict[str, Any]) -> Item:
    if "target_scores" in row:
        scores = row["target_scores"]
        right = max(scores, key=lambda text: scores[text])
        foils = tuple(f" {text}" for text in scores if text != right)
    else:
        right, foils = row["target"], ()
        right = right if isinstance(right, str) else right[0]
    return Item(f"{row['input']}\nAnswer:", "", (f" {right}",), foils)


def read_own(row: dict[str, Any]) -> Item:
    return Item(row["prompt"], row.get("corrupt", ""), (row["target"],), tuple(row.get("foils", ())))


@dataclass
class Blimp:
    sentence_good: str
    sentence_bad: str


@dataclass
class Choices:
    label: list[str]
    text: list[str]


@dataclass
class CommonsenseQA:
    question: str
    choices: Choices
    answer: str = ""
    answerKey: str = ""


@dataclass
class GSM8K:
    question: str
    answer: str


@dataclass
class BigBench:
    input: str
    target: str | list[str] = ""
    target_scores: dict[str, float] = field(default_factory=dict)


@dataclass
class Own:
    prompt: str
    target: str
    corrupt: str = ""
    foils: list[str] = field(default_factory=list)


ROWS = {
    "BLiMP": Blimp,
    "CommonsenseQA": CommonsenseQA,
    "GSM8K": GSM8K,
    "BIG-bench": BigBench,
    "prompts and targets": Own,
}
READERS = {
    "BLiMP": read_blimp,
    "CommonsenseQA": read_commonsense_qa,
    "GSM8K": read_gsm8k,
    "BIG-bench": read_big_bench,
    "prompts and targets": read_own,
}


def big_bench(path: str | Path, tokenizer: PreTrainedTokenizerBase, *, n: int | None = None) -> Task:
    """A BIG-bench task file: one JSON object with a list of examples.

    Args:
        path: the file.
        tokenizer: of the model that is to be asked.
        n: only the first n; all of them where it is None.

    Returns:
        The task.
    """
    path = Path(path)
    found = parse(read_bytes(path), where=path.name, expected='a JSON object with "examples"')
    if not isinstance(found, dict) or "examples" not in found:
        raise InputError(f'{path.name}: expected a JSON object with "examples", found {kind(found)} without.')
    examples = checked(found["examples"], list[dict[str, Any]], where=f"{path.name}: examples")
    return targets_from_rows(path.name, examples, tokenizer, n=n)


def hub(name: str, tokenizer: PreTrainedTokenizerBase, *, n: int | None = None) -> Task:
    """A set from the hub, by hub:OWNER/NAME:CONFIG:SPLIT, of which config and split may be left out.

    Args:
        name: as above.
        tokenizer: of the model that is to be asked.
        n: only the first n; all of them where it is None.

    Returns:
        The task.
    """
    owner_name, *rest = name.removeprefix(HUB).split(":")
    try:
        from datasets import load_dataset  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise SetupError(
            f"{name} needs the package datasets to be read from the hub.\nInstall it (pip install datasets), or give "
            "the path of a .jsonl file."
        ) from error
    config, split = (rest[0] if len(rest) > 1 else None), (rest[-1] if rest else "validation")
    try:
        rows = [dict(row) for row in load_dataset(owner_name, config, split=split)]
    except Exception as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise SetupError(f"{owner_name} could not be read from the hub: {first}.") from error
    return targets_from_rows(owner_name, rows, tokenizer, n=n)
