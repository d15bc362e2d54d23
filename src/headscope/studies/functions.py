"""The function study: which heads serve a cognitive function, and what is lost without them.

1. Split the questions of each function; let the model answer them with every head in place.
2. Rank the heads of each function: by the probe, by exact ablation, by attribution.
3. For each ranking and K, let the model answer the test questions with the K best heads masked, and with K others drawn
   at random, several times. Mask each function's heads on the other functions' questions too.
4. Push the best heads the other way, towards how they are in correct answers.
5. Score all answers (and by COMET, where it is set up), draw the figure, write the tables.

Every step is a unit of the run folder, saved as it ends: a killed run resumes after the last finished one.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from headscope.errors import InputError
from headscope.functions.answers import Embedder, score_answers
from headscope.functions.builtin import builtin_questions
from headscope.functions.causal import CAUSAL, encode_prefix, encode_questions, telling_task
from headscope.functions.cogqa import read_cogqa
from headscope.functions.generation import Answer, Interventions, generate
from headscope.functions.masking import FACTOR, KS, choose, clipped, masks
from headscope.functions.probe import probe
from headscope.functions.pushing import pushes
from headscope.functions.questions import Question, QuestionSet, Split, chosen_functions, split
from headscope.functions.states import answer_states
from headscope.models import Model, load
from headscope.progress import bar
from headscope.records import Scores
from headscope.records.files import write_json
from headscope.runs.run import Run
from headscope.studies.heads import describe, distinct

RANKINGS = ("probe", *CAUSAL)


@dataclass(frozen=True)
class Settings:
    """What a function study may be asked for; what is not given is what the paper does, or what a small model needs."""

    data: str | None = None  # a file in CogQA's shape; the built-in questions if none
    functions: Sequence[str] | None = None
    rankings: Sequence[str] = ("probe", "attribution")
    ks: Sequence[int] = KS
    draws: int = 5
    n: int = 50  # test questions per function
    train: int = 100  # questions per function to find heads with, at most
    ablated: int = 8  # of these, for ablation and attribution
    shots: int = 4
    factor: float = FACTOR
    steps: str = "all"
    max_new_tokens: int = 8
    alphas: Sequence[float] = (-2.0, 2.0, 5.0)
    seed: int = 0

    def __post_init__(self) -> None:
        if unknown := [name for name in self.rankings if name not in RANKINGS]:
            raise InputError(f"Unknown ranking {unknown[0]!r}. Known: {', '.join(RANKINGS)}.")
        if self.steps not in ("all", "decode"):
            raise InputError(f"Unknown steps {self.steps!r}. Known: all, decode.")


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

    def say(self, part: str, acting: Interventions | None, title: str) -> list[list[Answer]]:
        """Answers to the questions of a part under every variant of what acts."""
        total = len(self.prompts[part]) * len(acting or Interventions())
        with bar(title, total, unit="answers") as shown:
            return generate(
                self.model, self.prompts[part], prefix=self.prefix, acting=acting, shown=shown,
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

    run: Run
    model: Model
    settings: Settings
    subjects: dict[str, Subject]
    rankings: dict[str, dict[str, Scores]]  # ranking -> function -> scores
    sweeps: dict[tuple[str, str, int], dict[str, Any]]  # ranking, function, k -> heads and texts
    crosses: dict[tuple[str, str], dict[str, list[str]]]  # ranking, function scored -> function masked -> texts
    pushed: dict[str, dict[str, Any]]  # function -> alphas and texts, or why not
    skipped: list[str]
    stray: dict[str, int]

    @property
    def ks(self) -> list[int]:
        return sorted({k for _, _, k in self.sweeps})

    @property
    def cross_k(self) -> int:
        """How many heads were masked for the cross table: the lower of the middle numbers."""
        return self.ks[(len(self.ks) - 1) // 2]


def prepare(model: Model, settings: Settings) -> tuple[dict[str, Subject], QuestionSet]:
    """The functions' questions, split and encoded for a model."""
    found = read_questions(settings.data)
    subjects = {}
    for name in chosen_functions(settings.functions, found):
        parts = split(
            found.questions[name], name, n=settings.n, train=settings.train, shots=settings.shots, seed=settings.seed
        )
        subjects[name] = Subject(model, parts, settings.max_new_tokens, settings.steps)
    return subjects, found


def check_answers(model: Model, *, n: int, seed: int = 0) -> list[dict[str, Any]]:
    """How well a model answers the built-in questions, a row per function; `accuracy` is the share of right answers."""
    subjects, _ = prepare(model, Settings(n=min(n, 100), seed=seed))
    rows = []
    for name, subject in subjects.items():
        texts = [answer.text for answer in subject.say("test", None, f"{model.name} on {name}")[0]]
        scores = score_answers(texts, subject.gold, texts)
        means = {score: float(scores[score].mean()) for score in ("match", "exact", "numeric", "rouge", "chrf")}
        rows.append({"task": name, "n": len(texts), "accuracy": means.pop("match"), **means})
    return rows


def run_study(model_name: str, out: Path, settings: Settings) -> Outcome:
    """Steps 1 to 4, or what is missing of them, in the folder `out`."""
    found = read_questions(settings.data)
    chosen_functions(settings.functions, found)
    asked = {**asdict(settings), "model": model_name}
    if settings.data is not None:
        asked["sha256 of data"] = hashlib.sha256(Path(settings.data).read_bytes()).hexdigest()[:16]
    run = Run.open(out, command="functions", settings=asked)
    model = replace(load(model_name), name=distinct([model_name])[0])
    run.note_model(model_name, describe(model))
    subjects, found = prepare(model, settings)
    for subject in subjects.values():
        subject.answers = {part: _base(run, subject, part) for part in ("test", "train")}
    rankings = {ranking: _ranking(run, ranking, subjects, settings) for ranking in settings.rankings}
    ks = clipped(settings.ks, model.n_layers * model.n_heads)
    sweeps = {
        (ranking, name, k): _sweep(run, ranking, subject, rankings[ranking][name], k, settings)
        for ranking in rankings
        for name, subject in subjects.items()
        for k in ks
    }
    middle = ks[(len(ks) - 1) // 2]
    crosses = {
        (ranking, name): _cross(run, ranking, subject, by_function, middle, settings)
        for ranking, by_function in rankings.items()
        for name, subject in subjects.items()
    }
    first = rankings[settings.rankings[0]]
    pushed = {name: _push(run, subject, first[name], ks[0], settings) for name, subject in subjects.items()}
    return Outcome(run, model, settings, subjects, rankings, sweeps, crosses, pushed, found.skipped, found.stray)


def json_unit(run: Run, file: str, make: Callable[[], Any]) -> Any:
    """A JSON unit of the run: read if it is there, otherwise made and saved."""
    if run.has(file):
        try:
            return json.loads(run.path(file).read_text(encoding="utf-8"))
        except ValueError as error:
            raise InputError(f"{run.path(file)} is damaged: {error}. Delete it to have it made again.") from error
    began = time.perf_counter()
    value = make()
    write_json(run.path(file), value)
    run.add(file, time.perf_counter() - began)
    return value


def _base(run: Run, subject: Subject, part: str) -> list[Answer]:
    title = f"{subject.model.name} answers {subject.name} ({part})"
    rows = json_unit(
        run, f"answers-{subject.name}-{part}.json", lambda: [asdict(a) for a in subject.say(part, None, title)[0]]
    )
    return [Answer(**row) for row in rows]


def states(subject: Subject) -> Tensor:
    return answer_states(subject.model, subject.prompts["train"], subject.answers["train"], prefix=subject.prefix)


def _ranking(run: Run, ranking: str, subjects: dict[str, Subject], settings: Settings) -> dict[str, Scores]:
    files = {name: f"scores-{ranking}-{name}.safetensors" for name in subjects}
    missing = [name for name in subjects if not run.has(files[name])]
    made: dict[str, Scores] = {}
    began = time.perf_counter()
    if missing and ranking == "probe":
        if len(subjects) < 2:
            raise InputError("The probe tells functions apart and needs at least two; use --ranking ablation for one.")
        model = next(iter(subjects.values())).model
        # One probe for all functions, so all are made again where one is missing.
        made = probe(model.name, {name: states(s) for name, s in subjects.items()}, seed=settings.seed).scores
        missing = list(subjects)
    for name in missing:
        if ranking != "probe":
            began = time.perf_counter()
            subject = subjects[name]
            questions = subject.split.train[: settings.ablated]
            task = telling_task(subject.model, questions, prefix=subject.prefix, name=name, seed=settings.seed)
            made[name] = CAUSAL[ranking](subject.model, task, start=len(subject.prefix))
        made[name].save(run.path(files[name]))
        run.add(files[name], time.perf_counter() - began)
    return {name: made.get(name) or Scores.load(run.path(files[name])) for name in subjects}


def _sweep(run: Run, ranking: str, subject: Subject, scores: Scores, k: int, settings: Settings) -> dict[str, Any]:
    choice = choose(scores, k, draws=settings.draws, seed=settings.seed)
    title = f"{subject.name}: {k} heads masked, {ranking}"

    def make() -> dict[str, Any]:
        texts = subject.masked_texts([choice.top, *choice.random], settings.factor, title)
        return {"k": k, "top_heads": choice.top, "random_heads": choice.random, "top": texts[0], "random": texts[1:]}

    return json_unit(run, f"masked-{ranking}-{subject.name}-{k}.json", make)


def _cross(
    run: Run, ranking: str, subject: Subject, scores: dict[str, Scores], k: int, settings: Settings
) -> dict[str, list[str]]:
    def make() -> dict[str, list[str]]:
        sets = [by.ranked()[:k] for by in scores.values()]
        texts = subject.masked_texts(sets, settings.factor, f"{subject.name}: other functions' heads masked, {ranking}")
        return dict(zip(scores, texts, strict=True))

    return json_unit(run, f"cross-{ranking}-{subject.name}-{k}.json", make)


def _push(run: Run, subject: Subject, scores: Scores, k: int, settings: Settings) -> dict[str, Any]:
    def make() -> dict[str, Any]:
        texts = [answer.text for answer in subject.answers["train"]]
        right = score_answers(texts, [q.answer for q in subject.split.train], texts)["match"]
        about = {"k": k, "right": int(right.sum()), "wrong": int((1 - right).sum())}
        shifts = pushes(subject.model, states(subject), right, scores.ranked()[:k], settings.alphas)
        if shifts is None:
            return {**about, "texts": {}}
        acting = Interventions(shifts=shifts, steps=settings.steps)  # pyright: ignore[reportArgumentType]
        said = subject.say("test", acting, f"{subject.name}: {k} heads pushed")
        return {
            **about,
            "texts": {f"{a:g}": [answer.text for answer in s] for a, s in zip(settings.alphas, said, strict=True)},
        }

    return json_unit(run, f"pushed-{subject.name}.json", make)
