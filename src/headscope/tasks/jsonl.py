"""A task of the user's own: a JSONL file with a pair of prompts per line.

    {"clean": "The cat sat on the", "corrupt": "The cat sang of the", "answers": [" mat"], "wrong": [" moon"]}

clean, corrupt  prompts with the same number of tokens
answers, wrong  a text or a list of texts, each one token when appended to the clean prompt as it stands ("answer" is
                accepted too); wrong may be missing if the metric is log-prob
metric          logit-diff, prob-diff or log-prob, the same on all lines; by default logit-diff where the first
                line has wrong answers, otherwise log-prob
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headscope.errors import InputError
from headscope.schema import TEXT, TEXTS, checked, kind, parse, read_bytes
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
    data = read_bytes(path)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{path.name}: expected UTF-8 text, found byte {error.start} that is not.") from error
    rows: list[tuple[int, dict[str, Any]]] = []
    # Not splitlines: a string in JSON may hold other line separators of Unicode.
    for line, content in enumerate(text.split("\n"), start=1):
        if not content.strip():
            continue
        where = f"{path.name}, line {line}"
        row = parse(content, where=where, expected="one JSON object")
        if not isinstance(row, dict):
            raise InputError(f"{where}: expected a JSON object, found {kind(row)}.")
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


@dataclass(frozen=True)
class Line:
    """A line of the file; "answers" may be called "answer"."""

    clean: TEXT
    corrupt: TEXT
    answers: TEXTS = field(default_factory=list)
    wrong: TEXTS = field(default_factory=list)


def read_pair(where: str, row: dict[str, Any], metric: str) -> Pair:
    """The line's texts, checked."""
    named = {**row, "answers": row["answer"]} if "answer" in row and "answers" not in row else row
    line: Line = checked(named, Line, where=where)
    answers, wrong = tuple(line.answers), tuple(line.wrong)
    refuse_lacking(where, line.clean, line.corrupt, answers, wrong, metric)
    return Pair(where, line.clean, line.corrupt, answers, wrong)
