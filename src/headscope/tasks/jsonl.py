"""A task of the user's own: a JSONL file with a pair of prompts per line.

    {"clean": "The cat sat on the", "corrupt": "The cat sang of the", "answers": [" mat"], "wrong": [" moon"]}

clean, corrupt  prompts with the same number of tokens
answers, wrong  a text or a list of texts, each one token when appended to the clean prompt as it stands ("answer" is
                accepted too); wrong may be missing if the metric is log-prob
metric          logit-diff, prob-diff or log-prob, the same on all lines; by default logit-diff where the first
                line has wrong answers, otherwise log-prob
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headscope.errors import InputError
from headscope.tasks.datasets import targets_from_rows
from headscope.tasks.metrics import METRICS
from headscope.tasks.pairs import Pair, refuse_lacking, task_of_pairs
from headscope.tasks.task import Task, refuse_closing_token

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Keys by which a line is known to hold a prompt with a target and not a pair.
TARGETS = {"target", "target_scores", "sentence_good", "choices", "question"}


def jsonl(path: str | Path, tokenizer: PreTrainedTokenizerBase, *, n: int | None = None) -> Task:
    """The task in the file, or its first n pairs: read every line, check it, encode it, check that again.

    Args:
        path: the file.
        tokenizer: of the model that is to be asked.
        n: only the first n; all of them where it is None.

    Returns:
        The task.
    """
    path = Path(path)
    if n is not None and n < 1:
        raise InputError(f"Task {path.name} needs at least 1 prompt, found n = {n}.")
    refuse_closing_token(tokenizer)
    rows = read_rows(path)
    if "clean" not in rows[0][1] and set(rows[0][1]) & TARGETS:
        return replace(targets_from_rows(path.name, [row for _, row in rows], tokenizer, n=n), name=path.stem)
    rows = rows[:n]
    metric = common_metric(path, rows)
    pairs = [read_pair(f"{path.name}, line {line}", row, metric) for line, row in rows]
    return task_of_pairs(path.stem, metric, pairs, tokenizer)


def read_rows(path: Path) -> list[tuple[int, dict[str, Any]]]:
    """Line number and object of every line that is not blank."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path.name}: expected UTF-8 text, found byte {error.start} that is not.") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error}).") from error
    rows: list[tuple[int, dict[str, Any]]] = []
    # Not splitlines: a string in JSON may hold other line separators of Unicode.
    for line, content in enumerate(text.split("\n"), start=1):
        if not content.strip():
            continue
        try:
            row = json.loads(content)
        except (json.JSONDecodeError, RecursionError) as error:
            raise InputError(
                f"{path.name}, line {line}: expected one JSON object, found bad JSON ({error})."
            ) from error
        if not isinstance(row, dict):
            raise InputError(f"{path.name}, line {line}: expected a JSON object, found {kind(row)}.")
        rows.append((line, row))
    if not rows:
        raise InputError(f"{path.name}: expected a JSON object per line, found an empty file.")
    return rows


def common_metric(path: Path, rows: list[tuple[int, dict[str, Any]]]) -> str:
    """The metric of the first line, after a look at the others."""
    first, row = rows[0]
    default = "logit-diff" if row.get("wrong") else "log-prob"
    metric = row.get("metric", default)
    for line, row in rows:
        named = row.get("metric", metric)
        if named not in tuple(METRICS):
            raise InputError(f"{path.name}, line {line}: metric must be one of {', '.join(METRICS)}, found {named!r}.")
        if named != metric:
            raise InputError(
                f"{path.name}, line {line}: all lines must have the same metric, found {named} after {metric} on line "
                f"{first}.\nPut them into separate files."
            )
    return metric


def read_pair(where: str, row: dict[str, Any], metric: str) -> Pair:
    """The line's texts, checked."""
    clean, corrupt = (read_prompt(where, row, field) for field in ("clean", "corrupt"))
    field = "answer" if "answer" in row and "answers" not in row else "answers"
    answers, wrong = read_texts(where, row, field), read_texts(where, row, "wrong")
    refuse_lacking(where, clean, corrupt, answers, wrong, metric)
    return Pair(where, clean, corrupt, answers, wrong)


def read_prompt(where: str, row: dict[str, Any], field: str) -> str:
    if field not in row:
        raise InputError(f'{where}: "{field}" is missing; found {", ".join(row) or "no fields"}.')
    value = row[field]
    if not isinstance(value, str):
        raise InputError(f'{where}: "{field}" must be a text, found {kind(value)}.')
    if not value:
        raise InputError(f'{where}: "{field}" must not be empty.')
    return value


def read_texts(where: str, row: dict[str, Any], field: str) -> tuple[str, ...]:
    """A field that holds a text or a list of texts; an absent one holds none."""
    value = row.get(field)
    texts = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise InputError(f'{where}: "{field}" must be a text or a list of texts, found {kind(value)}.')
    return tuple(dict.fromkeys(texts))


def kind(value: Any) -> str:
    """What JSON calls the value."""
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
