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

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from headscope.errors import InputError
from headscope.methods.contrastive import Contrast, contrastive
from headscope.methods.gating import gating, preset_of
from headscope.models import Model, load
from headscope.records import ROLES, Ablation, Check, Roles, Scores, against_patching, agreement, head_name, spread
from headscope.report.figures.panels import FORMATS
from headscope.report.figures.roles import ablation_grid, role_map, score_distributions
from headscope.roles import ablate, head_effects
from headscope.runs.run import Run
from headscope.studies.heads import checked, describe, distinct, file_hashes, save_figures, unit, write_tables
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


def study_roles(
    models: list[str], tasks: list[str], *, out: Path, seeds: int = 3, preset: str = "cpu", n: int = 64,
    held_out: int = 24, compare: int = 8, forget: str | None = None, seed: int = 0,
    formats: Iterable[str] = ("png", "svg", "pdf"),
) -> RoleStudy:  # fmt: skip
    """Run the study, or go on with it, in the folder `out`."""
    formats = list(formats)
    preset_of(preset)
    if unknown := [name for name in formats if name not in FORMATS]:
        raise InputError(f"Unknown format {unknown[0]!r}. Known: {', '.join(FORMATS)}.")
    settings = {
        "models": models, "tasks": tasks, "seeds": seeds, "preset": preset, "n": n, "held_out": held_out,
        "compare": compare, "seed": seed, **({"forget": forget} if forget else {}), **file_hashes(tasks),
    }  # fmt: skip
    run = Run.open(out, command="roles", settings=settings)
    checks, all_roles, ablations, effects, contrasts = [], [], [], [], []
    for model, fitted, held, stem in split_subjects(run, models, tasks, n=n, held_out=held_out, seed=seed):
        found = checked(run, f"check-{stem}.json", model, held)
        checks.append(found)
        if not found.usable:
            continue
        place = run.path(f".fit-{stem}.safetensors")
        fit = lambda mo=model, t=fitted, p=place: gating(mo, t, seeds=seeds, preset=preset, checkpoint=p)  # noqa: E731
        roles = unit(run, f"roles-{stem}", Roles, fit)
        all_roles.append(roles)
        points = EVERY_K if preset == "paper" else None
        make = lambda mo=model, t=held, r=roles, k=points: ablate(mo, t, r, k=k)  # noqa: E731
        ablations.append(unit(run, f"ablation-{stem}", Ablation, make))
        if compare:
            make = lambda mo=model, t=held: head_effects(mo, t.take(slice(compare)))  # noqa: E731
            effects.append(unit(run, f"effects-{stem}", Scores, make))
        if forget is not None:
            other = split(make_task(forget, model.tokenizer, n=n + held_out, seed=seed), held_out)
            both = {"seeds": seeds, "preset": preset, "held_out": (held, other[1])}
            make = lambda mo=model, a=fitted, b=other[0], o=both: contrastive(mo, a, b, **o)  # noqa: E731
            contrasts.append(unit(run, f"contrast-{stem}", Contrast, make))
    study = RoleStudy(run.folder, checks, all_roles, ablations, effects, contrasts, [])
    study.figures.extend(_draw(run, study, formats))
    _write_tables(run, study)
    run.finish()
    return study


def split_subjects(
    run: Run, models: list[str], tasks: list[str], *, n: int, held_out: int, seed: int
) -> Iterator[tuple[Model, Task, Task, str]]:
    """Every model on every task: the prompts to fit on, the held-out ones, and the stem of their files."""
    for name, short in zip(models, distinct(models), strict=True):
        model = replace(load(name), name=short)
        run.note_model(name, describe(model))
        for task_name, title in zip(tasks, distinct(tasks), strict=True):
            task = replace(make_task(task_name, model.tokenizer, n=n + held_out, seed=seed), name=title)
            yield model, *split(task, held_out), f"{model.name}-{title}"


def split(task: Task, held_out: int) -> tuple[Task, Task]:
    """The task in two: the last `held_out` prompts apart from the others."""
    if len(task) <= held_out:
        raise InputError(
            f"Task {task.name} has {len(task)} prompts, of which {held_out} would be held out. Give more prompts, or "
            "hold out fewer."
        )
    cut = len(task) - held_out
    return task.take(slice(cut)), task.take(slice(cut, None))


def _draw(run: Run, study: RoleStudy, formats: list[str]) -> list[Path]:
    """The grid first, then the distributions, then a map for each model and task."""
    figures = {"ablation": ablation_grid(study.checks, study.ablations)}
    if study.roles:
        figures["scores"] = score_distributions(study.roles)
    figures |= {f"map-{r.model}-{r.task}": role_map(r) for r in study.roles}
    return save_figures(run, figures, formats)


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
