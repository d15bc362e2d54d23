"""Reading questions in the shape in which CogQA is published: a JSON list of

    {"question": ..., "answer": ..., "generated": [{"subquestion": ..., "answer": ..., "cognitive_skill": ...}, ...]}

Every sub-question becomes a question of the function that its label names, behind the question as context and the
sub-questions before it as prior knowledge. Labels are matched loosely ("math", "Knowledge recall"); others are counted
as stray. Items that cannot be used are counted and named, and stop nothing.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from pathlib import Path
from typing import Any

from headscope.errors import InputError
from headscope.functions.questions import FUNCTIONS, Question, QuestionSet
from headscope.schema import parse, read_bytes

# Other words for the functions, as annotators write them; letters only, in lower case.
ALIASES = {
    "recall": "knowledge-recall", "knowledge": "knowledge-recall", "factrecall": "knowledge-recall",
    "math": "math-calculation", "calculation": "math-calculation", "mathcalculation": "math-calculation",
    "mathematicalcalculation": "math-calculation", "arithmetic": "math-calculation",
    "semantics": "semantic-understanding", "semantic": "semantic-understanding",
    "syntax": "syntactic-understanding", "syntactic": "syntactic-understanding",
    "logic": "logical-reasoning", "logical": "logical-reasoning", "reasoning": "logical-reasoning",
    "decision": "decision-making", "inferencing": "inference", "informationretrieval": "retrieval",
}  # fmt: skip
LABELS = {re.sub("[^a-z]", "", name): name for name in FUNCTIONS} | ALIASES


def read_cogqa(path: str | Path) -> QuestionSet:
    """The questions in a file."""
    path = Path(path)
    items = parse(read_bytes(path), where=path.name, expected="a JSON list of questions")
    if not isinstance(items, list):
        found = f"an object with {', '.join(map(repr, items))[:80]}" if isinstance(items, dict) else _kind(items)
        raise InputError(f"{path.name}: expected a JSON list of questions, found {found}.")
    found = questions_of(items, path.stem)
    if not found.questions:
        why = found.skipped[0] if found.skipped else f"labels {', '.join(found.stray)}" if found.stray else "no items"
        raise InputError(
            f"{path.name}: expected items with question, answer and generated sub-questions, found none that can be "
            f"used ({why[:200]}).\nKnown labels: {', '.join(FUNCTIONS.values())}."
        )
    return found


def questions_of(items: list[Any], name: str) -> QuestionSet:
    """The questions in items that have been read already."""
    questions: dict[str, list[Question]] = {}
    skipped: list[str] = []
    stray: Counter[str] = Counter()
    for number, item in enumerate(items, 1):
        where = f"item {number}"
        try:
            context, parts = _item(item)
        except ValueError as error:
            skipped.append(f"{where}: {error}")
            continue
        prior: list[tuple[str, str]] = []
        for place, part in enumerate(parts, 1):
            try:
                text, answer, label = _part(part)
            except ValueError as error:
                skipped.append(f"{where}, sub-question {place}: {error}")
                continue
            function = LABELS.get(re.sub("[^a-z]", "", label.lower()))
            if function is None:
                stray[label] += 1
            else:
                about = "" if context == text else context
                questions.setdefault(function, []).append(Question(function, text, answer, about, tuple(prior)))
            # (A sub-question with a stray label is still known to those after it.)
            prior.append((text, answer))
    ordered = {function: questions[function] for function in FUNCTIONS if function in questions}
    return QuestionSet(name, ordered, skipped, dict(stray))


def _item(item: Any) -> tuple[str, list[Any]]:
    if not isinstance(item, dict):
        raise ValueError(f"expected an object, found {_kind(item)}")
    question = item.get("question", "")
    if not isinstance(question, str):
        raise ValueError(f"question must be a text, found {_kind(question)}")
    parts = item.get("generated")
    if not isinstance(parts, list) or not parts:
        raise ValueError(f"generated must be a list of sub-questions, found {_kind(parts)}")
    return " ".join(question.split()), parts


def _part(part: Any) -> tuple[str, str, str]:
    if not isinstance(part, dict):
        raise ValueError(f"expected an object, found {_kind(part)}")
    text, label = part.get("subquestion"), part.get("cognitive_skill")
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"subquestion must be a text, found {_kind(text)}")
    if not isinstance(label, str):
        raise ValueError(f"cognitive_skill must be a text, found {_kind(label)}")
    return " ".join(text.split()), _answer(part.get("answer")), " ".join(label.split())


def _answer(value: Any) -> str:
    """Answers are texts, numbers, or true and false; all become text on one line."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float) and math.isfinite(value) and value == int(value):
        value = int(value)
    if isinstance(value, (int, float)) or (isinstance(value, str) and value.strip()):
        return " ".join(str(value).split())
    raise ValueError(f"answer must be a text or a number, found {_kind(value)}")


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "an empty text", bool: "true or false", type(None): "nothing"}
    if isinstance(value, str) and value.strip():
        return "a text"
    return names.get(type(value), "a number")
