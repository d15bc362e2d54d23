"""`headscope roles`: which heads facilitate a task, interfere with it, or are irrelevant."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import typer

from headscope.cli.findings import show
from headscope.cli.options import Ending, add_study
from headscope.studies.settings import RoleSettings


def register(app: typer.Typer) -> None:
    add_study(app, RoleSettings, roles)


def roles(settings: RoleSettings, folder: Path) -> Ending:
    """Which heads facilitate a task, which interfere with it, and which are irrelevant?

    Fits a gate to every head (causal head gating), tells each head's role and how it varies over seeds, takes heads
    away in the order of each score on held-out prompts, and draws the curves in a grid, a row per task and a column per
    model. A task that a model does not do is named and left out.
    A run that was stopped goes on where it was when the same command is given again.

    Example: `headscope roles smollm2-135m --task syntax,common-sense,math`
    """
    from headscope.studies.roles import study_roles

    return partial(show, study_roles(settings, out=folder), settings)
