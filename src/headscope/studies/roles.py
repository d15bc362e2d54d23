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
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from headscope.errors import InputError
from headscope.methods.contrastive import Contrast, contrastive
from headscope.methods.gating import gating
from headscope.records import ROLES, Ablation, Check, Roles, Scores, against_patching, agreement, head_name, spread
from headscope.report.figures.roles import ablation_grid, role_map, score_distributions
from headscope.roles import ablate, head_effects
from headscope.runs.names import file_names, short_hash
from headscope.runs.run import Run, open_run
from headscope.studies.series import save_figures, write_tables
from headscope.studies.settings import RoleSettings
from headscope.studies.subjects import Subject, content_hash, subjects
from headscope.tasks import Task, make_task

# Every k of the paper's figure; the quick preset runs some of them.
EVERY_K = list(range(51))


@dataclass(frozen=True)
class RoleStudy:
    """What the role study found. Roles, ablations and effects are of the models and tasks whose check is usable."""

    folder: Path
    checks: list[Check]
    roles: list[Roles]
    ablations: list[Ablation]
    effects: list[Scores]
    contrasts: list[Contrast]
    figures: list[Path]

    def as_dict(self) -> dict[str, Any]:
        """What the command prints as JSON."""
        return {
            "run": str(self.folder),
            "checks": [{**asdict(found), "usable": found.usable} for found in self.checks],
            "roles": [{"model": r.model, "task": r.task, **r.settings, "spread": spread(r)} for r in self.roles],
            "curves": [
                {"model": a.model, "task": a.task, "k": a.k.tolist(), **{role: curve_at(a, role) for role in ROLES}}
                for a in self.ablations
            ],
            "agreement": [{"task": t, "models": [a, b], **found} for t, a, b, found in self.agreements()],
            "patching": [{"model": m, "task": t, **found} for m, t, found in self.comparisons()],
            "contrasts": [c.summary() for c in self.contrasts],
            "figures": [str(path) for path in self.figures],
        }

    def agreements(self) -> list[tuple[str, str, str, dict[str, float]]]:
        """(task, model, other model, how alike) for every two models on a task."""
        return [(a.task, a.model, b.model, agreement(a, b)) for a, b in combinations(self.roles, 2) if a.task == b.task]

    def comparisons(self) -> list[tuple[str, str, dict[str, Any]]]:
        """(model, task, facilitation against exact patching)."""
        of = {(r.model, r.task): r for r in self.roles}
        return [(e.model, e.task, against_patching(of[e.model, e.task], e.values)) for e in self.effects]


def curve_at(ablation: Ablation, role: str) -> dict[str, list[float]]:
    by_seed = ablation.by_seed(role)
    return {"mean": by_seed.mean(0).tolist(), "low": by_seed.min(0).tolist(), "high": by_seed.max(0).tolist()}


def study_roles(settings: RoleSettings, *, out: Path) -> RoleStudy:
    """Run the study, or go on with it, in the folder `out`."""
    study = RoleStudy(out, [], [], [], [], [], [])
    how: dict[str, Any] = {"seeds": settings.seeds, "preset": settings.preset}
    with open_run(out, settings) as run:
        for fitted, held in split_subjects(run, settings):
            model, check = fitted.model, held.check()
            study.checks.append(check)
            if not check.usable:
                continue
            place = run.path(f".fit-{short_hash(fitted.key)}.safetensors")
            fit = partial(gating, model, fitted.task, checkpoint=place, **how)
            roles = fitted.unit("roles", Roles, fit, **how)
            study.roles.append(roles)
            points = EVERY_K if settings.preset == "paper" else None
            make = partial(ablate, model, held.task, roles, k=points)
            study.ablations.append(held.unit("ablation", Ablation, make, **how))
            if settings.compare:
                some = replace(held, task=held.task.take(slice(settings.compare)))
                study.effects.append(some.unit("effects", Scores, partial(head_effects, model, some.task)))
            if settings.forget is not None:
                study.contrasts.append(_contrast(fitted, held, settings, how))
        study.figures.extend(_draw(run, study, settings))
        _write_tables(run, study)
        run.finish()
    return study


def split_subjects(run: Run, settings: RoleSettings) -> Iterator[tuple[Subject, Subject]]:
    """Every model on every task, twice: on the prompts to fit on, and on the held-out ones."""
    n = settings.n + settings.held_out
    for subject in subjects(run, settings.models, settings.tasks, n=n, seed=settings.seed):
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


def _draw(run: Run, study: RoleStudy, settings: RoleSettings) -> list[Path]:
    """The grid first, then the distributions, then a map for each model and task."""
    figures = {"ablation": ablation_grid(study.checks, study.ablations)}
    if study.roles:
        figures["scores"] = score_distributions(study.roles)
    names = file_names(("map", r.model, r.task) for r in study.roles)
    figures |= {names["map", r.model, r.task]: role_map(r) for r in study.roles}
    return save_figures(run, figures, settings.formats)


def _write_tables(run: Run, study: RoleStudy) -> None:
    heads, shares, curves = [], [], []
    for r in study.roles:
        common, means = r.commonest, {role: getattr(r, role).mean(0) for role in ROLES}
        for layer, head in np.ndindex(*common.shape):
            scores = [f"{means[role][layer, head]:.6g}" for role in ROLES]
            name = ROLES[common[layer, head]] if common[layer, head] >= 0 else "none"
            heads.append((r.model, r.task, head_name(layer, head), layer, head, *scores, name))
        shares += [(r.model, r.task, role, *(f"{v:.6g}" for v in found.values())) for role, found in spread(r).items()]
    for a in study.ablations:
        for role in ROLES:
            found = curve_at(a, role)
            rows = zip(a.k.tolist(), found["mean"], found["low"], found["high"], strict=True)
            curves += [(a.model, a.task, role, k, *(f"{value:.6g}" for value in values)) for k, *values in rows]
    alike = [(task, a, b, what, value) for task, a, b, found in study.agreements() for what, value in found.items()]
    patching = [
        (m, t, f["rank correlation"], f["k"], f["shared"], f["by chance"], " ".join(f["heads"]))
        for m, t, f in study.comparisons()
    ]
    contrasts = [tuple(c.summary().values()) for c in study.contrasts]
    tables: dict[str, tuple[str, list[tuple]]] = {
        "roles.csv": ("model task head layer index facilitation irrelevance interference role", heads),
        "shares.csv": ("model task role share always sometimes never", shares),
        "ablation.csv": ("model task score k mean low high", curves),
        "agreement.csv": ("task model other what value", alike),
        "contrasts.csv": ("model keep forget kept forgotten plain_kept plain_forgotten share_open", contrasts),
        "patching.csv": ("model task rank_correlation k shared by_chance heads", patching),
    }
    write_tables(run, tables)
