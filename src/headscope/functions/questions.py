"""Questions that ask for one cognitive function each, and the prompts they become.

A question stands in the text it is about (`context`), behind the sub-questions that were answered before it (`prior`):

    Mia has a red hat. Tom has a green bag.
    Question: What colour is Tom's bag?
    Answer:

In front of it stand few-shot examples of the same function, so that a small model sees what an answer looks like.
They are the same for all questions of a function: their keys and values are computed once.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from headscope.errors import InputError

# The eight functions, and how figures call them.
FUNCTIONS = {
    "retrieval": "Retrieval",
    "knowledge-recall": "Knowledge Recall",
    "semantic-understanding": "Semantic Understanding",
    "syntactic-understanding": "Syntactic Understanding",
    "math-calculation": "Math Calculation",
    "inference": "Inference",
    "logical-reasoning": "Logical Reasoning",
    "decision-making": "Decision-making",
}


@dataclass(frozen=True)
class Question:
    """One sub-question, the function it asks for and the answer that is right."""

    function: str
    text: str
    answer: str
    context: str = ""
    prior: tuple[tuple[str, str], ...] = ()

    @property
    def prompt(self) -> str:
        known = [f"{text} {answer}" for text, answer in self.prior]
        return "\n".join([*([self.context] if self.context else []), *known, f"Question: {self.text}", "Answer:"])

    @property
    def solved(self) -> str:
        return f"{self.prompt} {self.answer}"


@dataclass(frozen=True)
class QuestionSet:
    """Questions by function, in the order in which they were read, and what could not be read."""

    name: str
    questions: dict[str, list[Question]]
    skipped: list[str] = field(default_factory=list)
    stray: dict[str, int] = field(default_factory=dict)  # labels that are no function, and how often they occur

    def __len__(self) -> int:
        return sum(map(len, self.questions.values()))


@dataclass(frozen=True)
class Split:
    """The questions of one function: a few to show, some to find its heads with, others to test them on."""

    function: str
    shots: list[Question]
    train: list[Question]
    test: list[Question]

    @property
    def prefix(self) -> str:
        return "".join(f"{question.solved}\n\n" for question in self.shots)

    def __len__(self) -> int:
        return len(self.train) + len(self.test)


def split(
    questions: Sequence[Question],
    function: str,
    *,
    n: int = 50,
    train: int | None = None,
    shots: int = 4,
    seed: int = 0,
) -> Split:
    """Shuffle by `seed`, put `shots` questions in front, `n` into the test and the rest (at most `train`) into the
    training part. A question is never in two parts, and neither is its answer shown for itself."""
    order = list(dict.fromkeys(questions))
    random.Random(f"{seed} {function}").shuffle(order)
    needed = shots + n + 2
    if len(order) < needed:
        raise InputError(
            f"{FUNCTIONS[function]} has {len(order)} different questions; {n} to test, {shots} to show and 2 to find "
            f"its heads with need {needed}.\nTake fewer with --n, or leave this function out with --function."
        )
    examples = _distinct_answers(order, shots)
    rest = [question for question in order if question not in examples]
    return Split(function, examples, rest[n:][:train], rest[:n])


def _distinct_answers(order: list[Question], count: int) -> list[Question]:
    """The first questions whose answers differ: examples that all say the same would teach only that."""
    firsts = {question.answer: question for question in reversed(order)}
    chosen = [question for question in order if firsts[question.answer] is question][:count]
    return chosen + [question for question in order if question not in chosen][: count - len(chosen)]


def chosen_functions(names: Iterable[str] | None, there: QuestionSet) -> list[str]:
    """The functions asked for, or those of the figure that the set has (or all it has)."""
    if names is None:
        usual = ("retrieval", "knowledge-recall", "math-calculation", "inference")
        return [name for name in usual if there.questions.get(name)] or [n for n, q in there.questions.items() if q]
    chosen = []
    for name in names:
        if name not in FUNCTIONS:
            raise InputError(f"Unknown function {name!r}. Known: {', '.join(FUNCTIONS)}.")
        if not there.questions.get(name):
            known = ", ".join(n for n, q in there.questions.items() if q)
            raise InputError(f"{there.name} has no questions of {FUNCTIONS[name]}; it has {known}.")
        chosen.append(name)
    return list(dict.fromkeys(chosen))
