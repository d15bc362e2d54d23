"""`headscope roles`: which heads facilitate a task, interfere with it, or are irrelevant."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.table import Table

from headscope.cli.console import out, plain, print_json, print_places, warn_unusable
from headscope.cli.options import add_study
from headscope.studies.settings import RoleSettings

if TYPE_CHECKING:
    from headscope.records import Ablation, Roles
    from headscope.studies.roles import RoleStudy


def register(app: typer.Typer) -> None:
    add_study(app, RoleSettings, roles)


def roles(settings: RoleSettings, folder: Path) -> None:
    """Which heads facilitate a task, which interfere with it, and which are irrelevant?

    Fits a gate to every head (causal head gating), tells each head's role and how it varies over seeds, takes heads
    away in the order of each score on held-out prompts, and draws the curves in a grid, a row per task and a column per
    model. A task that a model does not do is named and left out.
    A run that was stopped goes on where it was when the same command is given again.

    Example: `headscope roles smollm2-135m --task syntax,common-sense,math`
    """
    from headscope.progress import shown
    from headscope.studies.roles import study_roles

    with shown():
        study = study_roles(settings, out=folder)
    if settings.as_json:
        print_json(study.as_dict())
        return
    _print(study)


def _print(study: RoleStudy) -> None:
    for found in study.roles:
        out.print(_shares(found))
    for found in study.ablations:
        out.print(_curves(found))
    for model, task, found in study.comparisons():
        line = (
            f"{model} on {task}: facilitation against patching: rank correlation {found['rank correlation']:.2f}, "
            f"{found['shared']} of the best {found['k']} heads shared ({found['by chance']:.1f} by chance)"
        )
        out.print(plain(line), soft_wrap=True, highlight=False)
    for c in (contrast.summary() for contrast in study.contrasts):
        line = (
            f"{c['model']}, gates that keep {c['keep']} and forget {c['forget']}: accuracy {c['kept']:.2f} (plain "
            f"{c['plain kept']:.2f}) and {c['forgotten']:.2f} (plain {c['plain forgotten']:.2f})"
        )
        out.print(plain(line), soft_wrap=True, highlight=False)
    warn_unusable(study.checks)
    print_places(study.figures, study.folder)


def _shares(roles: Roles) -> Table:
    from headscope.records import spread

    table = Table("Role", "Heads", "In all seeds", "In some", "In none", title=f"{roles.model} on {roles.task}")
    for role, found in spread(roles).items():
        table.add_row(role, *(f"{found[key]:.1%}" for key in ("share", "always", "sometimes", "never")))
    return table


def _curves(ablation: Ablation, columns: int = 7) -> Table:
    """At the largest k, as many as fit beside each other; the CSV has all."""
    from headscope.records import ROLES

    title = f"{ablation.model} on {ablation.task}: change of log P(target) when k heads are ablated"
    table = Table("Score, by k", *(str(int(k)) for k in ablation.k[-columns:]), title=title)
    for role in ROLES:
        table.add_row(role, *(f"{value:+.2f}" for value in ablation.mean(role)[-columns:]))
    return table
