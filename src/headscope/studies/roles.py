"""The role study: which heads facilitate a task, interfere with it or are irrelevant, and what taking them away does.

1. Load each model once; make each task with its tokenizer; split its prompts into those that gates are fitted on and
   held-out ones; check on the held-out ones how well the model does. A task that it does not do ends here, and says so.
2. Fit the gates by causal head gating, all seeds at once; save the roles.
3. Ablate heads in the order of each score on the held-out prompts; save the curves.
4. Patch every head exactly on some held-out prompts, to set beside facilitation.
5. On request, fit gates that keep each task and forget another, and say how well both are still done.
6. Draw the grid of curves (a row per task, a column per model), the distributions of scores, and role maps.

Every record is a unit of the run folder, and a fit keeps a checkpoint: a killed run resumes where it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from headscope.errors import InputError
from headscope.methods.contrastive import contrastive
from headscope.methods.gating import gating
from headscope.records import Ablation, Contrast, Roles, Scores
from headscope.report.outputs import write
from headscope.report.outputs.roles import HeadRoles
from headscope.roles import ablate, head_effects
from headscope.runs.names import short_hash
from headscope.runs.run import Run, open_run
from headscope.studies.settings import RoleSettings
from headscope.studies.subjects import Subject, content_hash, subjects
from headscope.tasks import Task, make_task

# Every k of the paper's figure; the quick preset runs some of them.
EVERY_K = list(range(51))


def study_roles(settings: RoleSettings, *, out: Path) -> HeadRoles:
    """Run the study, or go on with it, in the folder `out`."""
    how: dict[str, Any] = {"seeds": settings.seeds, "preset": settings.preset}
    with open_run(out, settings) as run:
        for fitted, held in split_subjects(run, settings):
            model = fitted.model
            if not held.check().usable:
                continue
            place = run.path(f".fit-{short_hash(fitted.key)}.safetensors")
            fit = partial(gating, model, fitted.task, checkpoint=place, **how)
            roles = fitted.unit("roles", Roles, fit, **how)
            points = EVERY_K if settings.preset == "paper" else None
            make = partial(ablate, model, held.task, roles, k=points)
            held.unit("ablation", Ablation, make, **how)
            if settings.compare:
                some = replace(held, task=held.task.take(slice(settings.compare)))
                some.unit("effects", Scores, partial(head_effects, model, some.task))
            if settings.forget is not None:
                _contrast(fitted, held, settings, how)
        return write(run, HeadRoles)


def split_subjects(run: Run, settings: RoleSettings) -> Iterator[tuple[Subject, Subject]]:
    """Every model on every task, twice: on the prompts to fit on, and on the held-out ones."""
    units = 3 + bool(settings.compare) + (settings.forget is not None)
    for subject in subjects(run, settings, n=settings.n + settings.held_out, units=units):
        fitted, held = (replace(subject, task=part) for part in split(subject.task, settings.held_out))
        yield fitted, held


def _contrast(fitted: Subject, held: Subject, settings: RoleSettings, how: dict[str, Any]) -> Contrast:
    n = settings.n + settings.held_out
    other = make_task(settings.forget or "", fitted.model.tokenizer, n=n, seed=settings.seed)
    forgotten, forgotten_held = split(other, settings.held_out)
    both = {"held_out": (held.task, forgotten_held), **how}
    make = partial(contrastive, fitted.model, fitted.task, forgotten, **both)
    return fitted.unit("contrast", Contrast, make, forget=content_hash(other), **how)


def split(task: Task, held_out: int) -> tuple[Task, Task]:
    """The task in two: the last `held_out` prompts apart from the others."""
    if len(task) <= held_out:
        raise InputError(
            f"Task {task.name} has {len(task)} prompts, of which {held_out} would be held out. Give more prompts, or "
            "hold out fewer."
        )
    cut = len(task) - held_out
    return task.take(slice(cut)), task.take(slice(cut, None))
