"""Pairs of prompts that the user has in memory: as lists, dicts, a pandas DataFrame or a `datasets.Dataset`.

    clean, corrupt  prompts with the same number of tokens; corrupt may be left out, then nothing can be patched
    answers, wrong  of each prompt a text or several, each one token behind the clean prompt as it stands
    anything else   goes to a metric of one's own, as `asked.fields`

A task from a JSONL file is made here too; `jsonl.py` reads its lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headscope.errors import InputError
from headscope.tasks.metrics import ANSWERING, COMPARING, Metric, metric_of, name_of
from headscope.tasks.task import Task, encode, refuse_closing_token, tokenizer_name

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

COLUMNS = ("clean", "corrupt", "answers", "wrong")
# Tokens shown on either side of the place where two prompts part.
SHOWN = 6


@dataclass(frozen=True)
class Pair:
    """A row's texts, checked, and where it came from."""

    where: str
    clean: str
    corrupt: str  # empty where there is none
    answers: tuple[str, ...]
    wrong: tuple[str, ...]
    fields: dict[str, Any] = field(default_factory=dict)


def pairs(
    tokenizer: PreTrainedTokenizerBase,
    rows: Any = None,
    *,
    clean: str | Sequence[str] | None = None,
    corrupt: str | Sequence[str] | None = None,
    answers: str | Sequence[str | Sequence[str]] | None = None,
    wrong: str | Sequence[str | Sequence[str]] | None = None,
    metric: str | Metric | None = None,
    name: str = "pairs",
) -> Task:
    """A task from prompts in memory.

    Args:
        tokenizer: of the model that will be asked.
        rows: a list of dicts, a pandas DataFrame or a `datasets.Dataset` with the columns clean, corrupt, answers and
            wrong; or leave it out and give these by name.
        clean, corrupt: a prompt each, or a list of them; corrupt may be left out.
        answers, wrong: what should and should not follow each prompt: a text, or several that would do.
        metric: a name in `METRICS` or a function of one's own; by default logit-diff where there are wrong answers,
            otherwise log-prob.
        name: of the task, in records and figures.
    Returns:
        The task, its pairs token-aligned.
    """
    columns = {"clean": clean, "corrupt": corrupt, "answers": answers, "wrong": wrong}
    given = {key: value for key, value in columns.items() if value is not None}
    if rows is not None and given:
        raise InputError(f"Give rows, or {', '.join(given)} by name, not both.")
    table = _rows(rows) if rows is not None else _columns(given)
    if not table:
        raise InputError("Expected at least one prompt, found none.")
    if metric is None:
        metric = "logit-diff" if _texts("row 1", table[0], "wrong") else "log-prob"
    read = [_pair(f"{name}, row {place}", row, metric) for place, row in enumerate(table, start=1)]
    return task_of_pairs(name, metric, read, tokenizer)


def _rows(rows: Any) -> list[Mapping[str, Any]]:
    """Dicts from whatever holds them. (pandas and datasets are not imported: their objects bring what is asked.)"""
    if hasattr(rows, "to_dict") and hasattr(rows, "columns"):
        rows = rows.to_dict("records")
    elif isinstance(rows, Mapping):
        rows = [rows]
    table: list[Any] = list(rows) if isinstance(rows, Iterable) and not isinstance(rows, str) else [rows]
    wrong = next((row for row in table if not isinstance(row, Mapping)), None)
    if wrong is not None:
        raise InputError(
            f"Rows are dicts with {', '.join(COLUMNS)}: a list of them, a DataFrame or a Dataset; found "
            f"{type(wrong).__name__}."
        )
    return table


def _columns(given: dict[str, Any]) -> list[Mapping[str, Any]]:
    """Dicts from columns of one length; a single text is a column of one."""
    if "clean" not in given:
        raise InputError('Expected prompts: "clean" is missing.')
    # Of a single prompt everything may come bare.
    if isinstance(given["clean"], str):
        answers = {key for key in ("answers", "wrong") if key in given and all(isinstance(t, str) for t in given[key])}
        given = {key: [v] if key in answers or isinstance(v, str) else v for key, v in given.items()}
    if isinstance(bare := next((v for v in given.values() if isinstance(v, str)), None), str):
        raise InputError(f"Several prompts need a list for each column, found the text {bare!r}.")
    lists = {key: list(value) for key, value in given.items()}
    count = len(lists["clean"])
    for key, column in lists.items():
        if len(column) != count:
            raise InputError(f'"{key}" needs an entry for each of {count} prompts, found {len(column)}.')
    return [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]


def _pair(where: str, row: Mapping[str, Any], metric: str | Metric) -> Pair:
    clean, corrupt = _prompt(where, row, "clean"), _prompt(where, row, "corrupt", needed=False)
    answers, wrong = _texts(where, row, "answers"), _texts(where, row, "wrong")
    answers = answers or _texts(where, row, "answer")
    refuse_lacking(where, clean, corrupt, answers, wrong, metric)
    fields = {str(key): value for key, value in row.items() if key not in (*COLUMNS, "answer")}
    return Pair(where, clean, corrupt, answers, wrong, fields)


def _prompt(where: str, row: Mapping[str, Any], column: str, *, needed: bool = True) -> str:
    value = row.get(column)
    if not needed and (value is None or value != value or value == ""):
        return ""
    if not isinstance(value, str) or not value:
        found = "nothing" if value is None or value == "" else type(value).__name__
        raise InputError(f'{where}: "{column}" must be a text, found {found}; it has {", ".join(map(str, row))}.')
    return value


def _texts(where: str, row: Mapping[str, Any], column: str) -> tuple[str, ...]:
    """A text or several; none where the column is absent. (pandas says NaN for that, and keeps lists as arrays.)"""
    value = row.get(column)
    if value is None or (isinstance(value, float) and value != value):
        return ()
    texts: list[Any] = [value] if isinstance(value, str) else list(value) if isinstance(value, Iterable) else [value]
    if not all(isinstance(text, str) for text in texts):
        raise InputError(f'{where}: "{column}" must be a text or a list of texts, found {value!r}.')
    return tuple(dict.fromkeys(texts))


def refuse_lacking(
    where: str, clean: str, corrupt: str, answers: Sequence[str], wrong: Sequence[str], metric: str | Metric
) -> None:
    """A pair that is the same text twice, or has not what its metric reads."""
    if clean == corrupt:
        raise InputError(f"{where}: clean and corrupt must differ, found the same text twice.")
    if metric_of(metric) in ANSWERING and not answers:
        raise InputError(f'{where}: "answers" is missing or empty; give the text that should follow the clean prompt.')
    if not wrong and metric_of(metric) in COMPARING:
        raise InputError(
            f'{where}: "wrong" is missing or empty, which the metric {name_of(metric)} needs.\n'
            'Add a text that should not follow, or set "metric" to "log-prob" on all lines.'
        )


def task_of_pairs(name: str, metric: str | Metric, rows: Sequence[Pair], tokenizer: PreTrainedTokenizerBase) -> Task:
    """The task of some pairs: encoded, token-aligned, each answer one token behind its prompt."""
    refuse_closing_token(tokenizer)
    paired = [row for row in rows if row.corrupt]
    if paired and len(paired) < len(rows):
        lacking = next(row for row in rows if not row.corrupt)
        raise InputError(f'{lacking.where}: "corrupt" is missing, which other rows have. Give it for all or for none.')
    clean_ids = encode(tokenizer, [row.clean for row in rows])
    corrupt_ids = encode(tokenizer, [row.corrupt for row in paired])
    for row, clean, corrupt in zip(paired, clean_ids, corrupt_ids, strict=False):
        if len(clean) != len(corrupt):
            raise InputError(
                f"{row.where}: clean and corrupt must have the same number of tokens, found {len(clean)} and "
                f"{len(corrupt)} with the tokenizer {tokenizer_name(tokenizer)}.\n{_parting(tokenizer, clean, corrupt)}"
                "\nReword one of them."
            )
    answers, wrong = [], []
    for row, clean in zip(rows, clean_ids, strict=True):
        right, others = (_next_tokens(row, tokenizer, clean, texts) for texts in (row.answers, row.wrong))
        if both := set(right) & set(others):
            tokens = tokenizer.convert_ids_to_tokens(sorted(both))
            raise InputError(f"{row.where}: answers and wrong must not share a token, found {tokens} in both.")
        answers.append(right)
        wrong.append(others)
    return Task(
        name=name,
        metric=metric,
        clean=[row.clean for row in rows],
        corrupt=[row.corrupt for row in paired],
        clean_ids=clean_ids,
        corrupt_ids=corrupt_ids,
        answers=answers,
        wrong=wrong,
        tokenizer=tokenizer_name(tokenizer),
        seed=None,
        fields=[row.fields for row in rows] if any(row.fields for row in rows) else [],
    )


def _parting(tokenizer: PreTrainedTokenizerBase, clean: list[int], corrupt: list[int]) -> str:
    """Both prompts token by token, with a caret under the place where they part."""
    apart = next(
        (at for at, (a, b) in enumerate(zip(clean, corrupt, strict=False)) if a != b), min(len(clean), len(corrupt))
    )
    start = max(0, apart - SHOWN)
    before = "... |" if start else ""
    lines = []
    for label, ids in (("clean", clean), ("corrupt", corrupt)):
        tokens = [str(tokenizer.decode([token])).replace("\n", "\\n") for token in ids]
        tail = "| ..." if len(ids) > apart + SHOWN else ""
        lines.append(f"  {label:<9}" + before + "|".join(tokens[start : apart + SHOWN]) + tail)
    shared = "".join(f"{tokenizer.decode([token])}|".replace("\n", "\\n") for token in clean[start:apart])
    return "\n".join([*lines, " " * (11 + len(before) + len(shared)) + "^"])


def _next_tokens(row: Pair, tokenizer: PreTrainedTokenizerBase, ids: list[int], texts: tuple[str, ...]) -> list[int]:
    """The one token that each text becomes after the clean prompt."""
    chosen: list[int] = []
    for text, joined in zip(texts, encode(tokenizer, [row.clean + text for text in texts]), strict=True):
        if joined[:-1] != ids:
            shared = next((i for i, (a, b) in enumerate(zip(ids, joined, strict=False)) if a != b), len(ids))
            tokens = tokenizer.convert_ids_to_tokens(joined[shared:])
            raise InputError(
                f"{row.where}: {text!r} must add exactly one token to the clean prompt, found {tokens} with the "
                f"tokenizer {tokenizer_name(tokenizer)}.\nMost tokenizers want a space at the start of the answer, "
                "none at the end of the prompt."
            )
        chosen.append(joined[-1])
    return chosen
