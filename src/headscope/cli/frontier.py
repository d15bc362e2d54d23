"""The command that draws the sparsity frontier."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import typer

from headscope.cli.findings import show
from headscope.cli.options import Ending, add_study
from headscope.studies.settings import FrontierSettings


def register(app: typer.Typer) -> None:
    add_study(app, FrontierSettings, sparsity_frontier)


def sparsity_frontier(settings: FrontierSettings, folder: Path) -> Ending:
    """What a model loses, and how small its circuits get, as its attention edges close.

    Measures the dense model, every adapter that `sparsify` kept on its way down, and the last one.

    Example: `headscope sparsity-frontier nano sparse --task ioi`
    """
    from headscope.studies.frontier import study_frontier

    return partial(show, study_frontier(settings, out=folder), settings)
