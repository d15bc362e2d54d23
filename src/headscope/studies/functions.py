"""The function study: which heads serve a cognitive function, and what is lost without them.

1. Split the questions of each function; let the model answer them with every head in place.
2. Rank the heads of each function: by the probe, by exact ablation, by attribution.
3. For each ranking and K, let the model answer the test questions with the K best heads masked, and with K others drawn
   at random, several times. Mask each function's heads on the other functions' questions too.
4. Steer the best heads the other way, towards how they are in correct answers.
5. Score all answers (and by COMET, where it is set up), draw the figure, write the tables.

Every step is a unit of the run folder, saved as it ends: a killed run resumes after the last finished one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from headscope.errors import InputError
from headscope.functions.answers import Embedder, score_answers
from headscope.functions.builtin import builtin_questions
from headscope.functions.causal import CAUSAL, encode_prefix, encode_questions, surprisal_task
from headscope.functions.cogqa import read_cogqa
from headscope.functions.generation import Answer, Interventions, generate
from headscope.functions.masking import choose, clipped, default_ks, masks
from headscope.functions.probe import probe
from headscope.functions.questions import Question, QuestionSet, Split, chosen_functions, split
from headscope.functions.states import answer_states
from headscope.functions.steering import steering_vectors
from headscope.models import Model
from headscope.progress import bar
from headscope.records import Scores
from headscope.runs.run import Run
from headscope.studies.settings import FunctionSettings
from headscope.studies.subjects import content_hash, distinct, load_noted


def read_questions(data: str | None) -> QuestionSet:
    return builtin_questions() if data is None else read_cogqa(data)


@dataclass
class Subject:
    """One function of one model: its questions as tokens, and what the model answers with every head in place."""

    model: Model
    split: Split
    max_new_tokens: int
    steps: str = "all"
    answers: dict[str, list[Answer]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.prefix = encode_prefix(self.model, self.split.prefix)
        self.prompts = {
            part: encode_questions(self.model, [question.prompt for question in self.questions(part)])
            for part in ("train", "test")
        }

    @property
    def name(self) -> str:
        return self.split.function

    def questions(self, part: str) -> list[Question]:
        return self.split.train if part == "train" else self.split.test

    @property
    def gold(self) -> list[str]:
        return [question.answer for question in self.split.test]

    @property
    def unmasked(self) -> list[str]:
        return [answer.text for answer in self.answers["test"]]

    @property
    def cut(self) -> int:
        """How many of these ended at the token limit."""
        return sum(answer.cut for answer in self.answers["test"])

    def say(self, part: str, acting: Interventions | None, title: str) -> list[list[Answer]]:
        """Answers to the questions of a part under every variant of what acts."""
        total = len(self.prompts[part]) * len(acting or Interventions())
        with bar(title, total, unit="answers") as progress:
            return generate(
                self.model, self.prompts[part], prefix=self.prefix, acting=acting, progress=progress,
                max_new_tokens=self.max_new_tokens,
            )  # fmt: skip

    def masked_texts(self, sets: Sequence[Any], factor: float, title: str) -> list[list[str]]:
        """The test questions' answers with each set of heads masked."""
        shape = (self.model.n_layers, self.model.n_heads)
        acting = Interventions(masks(shape, sets, factor=factor), steps=self.steps)  # pyright: ignore[reportArgumentType]
        return [[answer.text for answer in answers] for answers in self.say("test", acting, title)]

    def scores(self, texts: Sequence[str], embed: Embedder | None = None) -> dict[str, np.ndarray]:
        return score_answers(texts, self.gold, self.unmasked, embed=embed)


@dataclass(frozen=True)
class Outcome:
    """What the steps before scoring found: everything that the tables and the figure are made of."""

    kept: Kept
    model: Model
    settings: FunctionSettings
    subjects: dict[str, Subject]
    rankings: dict[str, dict[str, Scores]]  # ranking -> function -> scores
    sweeps: dict[tuple[str, str, int], dict[str, Any]]  # ranking, function, k -> heads and texts
    crosses: dict[tuple[str, str], dict[str, list[str]]]  # ranking, function scored -> function masked -> texts
    steered: dict[str, dict[str, Any]]  # function -> alphas and texts, or why not
    skipped: list[str]
    stray: dict[str, int]

    @property
    def ks(self) -> list[int]:
        return sorted({k for _, _, k in self.sweeps})

    @property
    def cross_k(self) -> int:
        """How many heads were masked for the cross table: the lower of the middle numbers."""
        return self.ks[(len(self.ks) - 1) // 2]


def prepare(model: Model, settings: FunctionSettings) -> tuple[dict[str, Subject], QuestionSet]:
    """The functions' questions, split and encoded for a model."""
    questions = read_questions(settings.data)
    subjects = {}
    for name in chosen_functions(settings.functions or None, questions):
        parts = split(
            questions.questions[name],
            name,
            n=settings.n,
            train=settings.train,
            shots=settings.shots,
            seed=settings.seed,
        )
        subjects[name] = Subject(model, parts, settings.max_new_tokens, settings.steps)
    return subjects, questions


def check_answers(model: Model, *, n: int, seed: int = 0) -> list[dict[str, Any]]:
    """How well a model answers the built-in questions, a row per function; `accuracy` is the share of right answers."""
    subjects, _ = prepare(model, FunctionSettings(model=model.name, n=min(n, 100), seed=seed))
    rows = []
    for name, subject in subjects.items():
        subject.answers["test"] = subject.say("test", None, f"{model.name} on {name}")[0]
        texts = subject.unmasked
        scores = score_answers(texts, subject.gold, texts)
        means = {score: float(scores[score].mean()) for score in ("match", "exact", "numeric", "rouge", "chrf")}
        rows.append({"task": name, "n": len(texts), "accuracy": means.pop("match"), **means, "cut": subject.cut})
    return rows


@dataclass(frozen=True)
class Kept:
    """The run's units: what a unit depends on besides its own settings is the model, and a function's questions."""

    run: Run
    model: Model
    sha256: str
    settings: FunctionSettings

    def unit(
        self, name: Sequence[Any], subject: Subject, make: Callable[[], Any], *, kind: Any = None, **of: Any
    ) -> Any:
        key = {
            "model": {"name": self.model.name, "sha256": self.sha256},
            "task": {"name": subject.name, "sha256": content_hash(subject.split)},
            "settings": {name: getattr(self.settings, name) for name in ("max_new_tokens", "factor", "steps")} | of,
        }
        return self.run.unit(list(map(str, name)), make, kind, **key)

    def answers(self, subject: Subject, part: str) -> list[Answer]:
        title = f"{subject.model.name} answers {subject.name} ({part})"
        make = lambda: [asdict(answer) for answer in subject.say(part, None, title)[0]]  # noqa: E731
        return [Answer(**row) for row in self.unit(("answers", subject.name, part), subject, make)]


def run_study(run: Run, settings: FunctionSettings) -> Outcome:
    """Steps 1 to 4, or what is missing of them."""
    model, sha256 = load_noted(run, settings.model, distinct([settings.model])[0], settings)
    kept = Kept(run, model, sha256, settings)
    subjects, questions = prepare(model, settings)
    total = model.n_layers * model.n_heads
    ks = clipped(settings.ks or default_ks(total), total)
    run.plan(len(subjects) * (3 + len(settings.rankings) * (2 + len(ks))))
    for subject in subjects.values():
        subject.answers = {part: kept.answers(subject, part) for part in ("test", "train")}
    rankings = {ranking: _ranking(kept, ranking, subjects) for ranking in settings.rankings}
    sweeps = {
        (ranking, name, k): _sweep(kept, ranking, subject, rankings[ranking][name], k)
        for ranking in rankings
        for name, subject in subjects.items()
        for k in ks
    }
    middle = ks[(len(ks) - 1) // 2]
    crosses = {
        (ranking, name): _cross(kept, ranking, subject, by_function, middle)
        for ranking, by_function in rankings.items()
        for name, subject in subjects.items()
    }
    first = rankings[settings.rankings[0]]
    steered = {name: _steer(kept, subject, first[name], ks[0]) for name, subject in subjects.items()}
    return Outcome(
        kept, model, settings, subjects, rankings, sweeps, crosses, steered, questions.skipped, questions.stray
    )


def states(subject: Subject) -> Tensor:
    return answer_states(subject.model, subject.prompts["train"], subject.answers["train"], prefix=subject.prefix)


def _ranking(kept: Kept, ranking: str, subjects: dict[str, Subject]) -> dict[str, Scores]:
    settings = kept.settings
    if ranking == "probe" and len(subjects) < 2:
        raise InputError("The probe tells functions apart and needs at least two; use --ranking ablation for one.")
    probed: dict[str, Scores] = {}

    def make(subject: Subject) -> Scores:
        if ranking == "probe":
            # One probe for all functions.
            if not probed:
                all_states = {name: states(other) for name, other in subjects.items()}
                probed.update(probe(subject.model.name, all_states, seed=settings.seed).scores)
            return probed[subject.name]
        questions = subject.split.train[: settings.ablated]
        task = surprisal_task(subject.model, questions, prefix=subject.prefix, name=subject.name, seed=settings.seed)
        return CAUSAL[ranking](subject.model, task, start=len(subject.prefix))

    how = {"functions": list(subjects)} if ranking == "probe" else {"ablated": settings.ablated}
    return {
        name: kept.unit(("scores", ranking, name), subject, partial(make, subject), kind=Scores, **how)
        for name, subject in subjects.items()
    }


def _sweep(kept: Kept, ranking: str, subject: Subject, scores: Scores, k: int) -> dict[str, Any]:
    settings = kept.settings
    choice = choose(scores, k, draws=settings.draws, seed=settings.seed)
    title = f"{subject.name}: {k} heads masked, {ranking}"

    def make() -> dict[str, Any]:
        texts = subject.masked_texts([choice.top, *choice.random], settings.factor, title)
        return {"k": k, "top_heads": choice.top, "random_heads": choice.random, "top": texts[0], "random": texts[1:]}

    return kept.unit(("masked", ranking, subject.name, k), subject, make, draws=settings.draws, seed=settings.seed)


def _cross(kept: Kept, ranking: str, subject: Subject, scores: dict[str, Scores], k: int) -> dict[str, list[str]]:
    def make() -> dict[str, list[str]]:
        sets = [by.ranked()[:k] for by in scores.values()]
        title = f"{subject.name}: other functions' heads masked, {ranking}"
        return dict(zip(scores, subject.masked_texts(sets, kept.settings.factor, title), strict=True))

    return kept.unit(("cross", ranking, subject.name, k), subject, make, functions=list(scores))


def _steer(kept: Kept, subject: Subject, scores: Scores, k: int) -> dict[str, Any]:
    alphas, steps = kept.settings.alphas, kept.settings.steps

    def make() -> dict[str, Any]:
        texts = [answer.text for answer in subject.answers["train"]]
        right = score_answers(texts, [q.answer for q in subject.split.train], texts)["match"]
        about = {"k": k, "right": int(right.sum()), "wrong": int((1 - right).sum())}
        shifts = steering_vectors(subject.model, states(subject), right, scores.ranked()[:k], alphas)
        if shifts is None:
            return {**about, "texts": {}}
        said = subject.say("test", Interventions(shifts=shifts, steps=steps), f"{subject.name}: {k} heads steered")
        by_alpha = zip(alphas, said, strict=True)
        return {**about, "texts": {f"{alpha:g}": [answer.text for answer in answers] for alpha, answers in by_alpha}}

    return kept.unit(("steered", subject.name), subject, make, k=k, alphas=alphas)
