"""What studies have in common: every model on every task, by names that tell them apart and hashes that name them
exactly."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from headscope.errors import InputError
from headscope.models import Model, load
from headscope.records import Check, Record
from headscope.running.measure import check
from headscope.runs.run import Run
from headscope.runs.settings import Loaded
from headscope.studies.settings import RoleSettings, Swept
from headscope.tasks import Task, make_task

R = TypeVar("R", bound=Record)


@dataclass(frozen=True)
class Subject:
    """A model on a task, in a run."""

    run: Run
    model: Model
    sha256: str  # of the model's weights
    task: Task

    @cached_property
    def key(self) -> dict[str, Any]:
        return {
            "model": {"name": self.model.name, "sha256": self.sha256},
            "task": {"name": self.task.name, "sha256": content_hash(self.task)},
        }

    def unit(
        self, what: str, kind: type[R], make: Callable[[], R], *, method: str = "", named: Sequence[Any] = (),
        **settings: Any,
    ) -> R:  # fmt: skip
        """A record about this subject. named: what else its file's name says."""
        name = (what, self.model.name, self.task.name, method, *map(str, named))
        return self.run.unit(name, make, kind, **self.key, method=method, settings=settings)

    def check(self) -> Check:
        """How well the model does the task."""
        name = ("check", self.model.name, self.task.name)
        return Check(**self.run.unit(name, lambda: asdict(check(self.model, self.task)), **self.key))


def subjects(run: Run, settings: Swept | RoleSettings, *, n: int, units: int) -> Iterator[Subject]:
    """Every model on every task, each with so many units. Models are loaded once."""
    titles = distinct(settings.tasks)
    run.plan(len(settings.models) * len(titles) * units)
    for name, short in zip(settings.models, distinct(settings.models), strict=True):
        model, sha256 = load_noted(run, name, short, settings)
        for task_name, title in zip(settings.tasks, titles, strict=True):
            task = make_task(task_name, model.tokenizer, n=n, seed=settings.seed)
            yield Subject(run, model, sha256, replace(task, name=title))


def load_noted(run: Run, name: str, short: str, settings: Loaded) -> tuple[Model, str]:
    """A model, called `short`, and the hash of its weights; the run notes both."""
    model = replace(load(name, **settings.loading), name=short)
    facts = model.describe()
    run.note_model(name, facts)
    return model, facts["sha256"]


def distinct(names: Sequence[str]) -> list[str]:
    """Short names that tell models (or tasks) apart: the last part of a path, more of it where that is not enough."""
    if twice := [name for name in names if names.count(name) > 1]:
        raise InputError(f"{twice[0]} is named twice. Name everything once.")
    bare = [name.removeprefix("hub:").replace(":", "-").removesuffix(".gguf") for name in names]
    paths = [Path(name.removesuffix(".jsonl").removesuffix(".json")) for name in bare]
    for depth in range(1, max((len(path.parts) for path in paths), default=0) + 1):
        short = ["-".join(path.parts[-depth:]).strip("-/") for path in paths]
        if len(set(short)) == len(names):
            return short
    if names:
        raise InputError(f"{' and '.join(names)} cannot be told apart by their names. Rename one.")
    return []


def content_hash(value: Any) -> str:
    """SHA-256 of what a task (or any other dataclass) holds, prompts and tokens included."""

    def plain(one: Any) -> Any:
        # (A function is known by its name: where it lies in memory says nothing.)
        return one.tolist() if hasattr(one, "tolist") else getattr(one, "__qualname__", type(one).__name__)

    return hashlib.sha256(json.dumps(asdict(value), default=plain).encode()).hexdigest()
