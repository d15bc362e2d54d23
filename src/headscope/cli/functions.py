"""The commands about functional heads: `headscope functions`, `headscope comet setup`, and the check of the functions'
questions. `register` puts them on the command line."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from headscope.cli.console import out, plain
from headscope.cli.findings import show, show_answers
from headscope.cli.options import Ending, add_study
from headscope.studies.settings import CheckSettings, FunctionSettings


def register(app: typer.Typer) -> None:
    add_study(app, FunctionSettings, functions)
    comet = typer.Typer(no_args_is_help=True, help="COMET, which scores answers, in an environment of its own.")
    comet.command("setup")(comet_setup)
    app.add_typer(comet, name="comet")


def functions(settings: FunctionSettings, folder: Path) -> Ending:
    """Which heads serve a cognitive function, and what is lost without them?

    Finds the heads of Retrieval, Knowledge Recall, Math Calculation and Inference, masks the K best against K random
    ones while the model answers, and draws accuracy and COMET against the number of masked heads. Also masks each
    function's heads on the others' questions, and steers them towards correct answers. A run that was stopped goes on
    where it was when the same command is given again.

    Examples: `headscope functions smollm2-135m`, `headscope functions path/to/model --data cogqa.json --n 20`
    """
    from headscope.studies.function_tables import study_functions

    return partial(show, study_functions(settings, out=folder), settings)


def check_functions(settings: CheckSettings) -> Ending:
    """How well a model answers the built-in questions of each function, before any masking."""
    from headscope.models import load
    from headscope.studies.functions import check_answers

    loaded = load(settings.model, **settings.loading)
    rows = check_answers(loaded, n=settings.n, seed=settings.seed)
    return partial(show_answers, loaded.name, rows, settings)


def comet_setup(
    checkpoint: Annotated[
        str,
        typer.Option(help="Checkpoint to fetch and use from now on: hub id, .ckpt file or folder; none: no fetching."),
    ] = "Unbabel/wmt22-comet-da",
) -> None:
    """Make the environment that COMET needs (about 1.4 GB in the cache), and fetch its checkpoint.

    The checkpoint is a pickle and is opened by Unbabel's package in a process of its own: name only one you trust.
    """
    from headscope.functions.comet import setup
    from headscope.progress import display

    with display():
        environment = setup(None if checkpoint == "none" else checkpoint)
    said = environment.missing or f"ready, with checkpoint {environment.checkpoint}"
    out.print(f"COMET in {plain(environment.folder)}: {plain(said)}", soft_wrap=True, highlight=False)
