"""The commands about functional heads: `headscope functions`, `headscope comet setup`, and the check of the functions'
questions. `register` puts them on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from headscope.cli.console import out, plain, print_json
from headscope.cli.findings import show
from headscope.cli.options import add_study
from headscope.studies.settings import CheckSettings, FunctionSettings

if TYPE_CHECKING:
    pass


def register(app: typer.Typer) -> None:
    add_study(app, FunctionSettings, functions)
    comet = typer.Typer(no_args_is_help=True, help="COMET, which scores answers, in an environment of its own.")
    comet.command("setup")(comet_setup)
    app.add_typer(comet, name="comet")


def functions(settings: FunctionSettings, folder: Path) -> None:
    """Which heads serve a cognitive function, and what is lost without them?

    Finds the heads of Retrieval, Knowledge Recall, Math Calculation and Inference, masks the K best against K random
    ones while the model answers, and draws accuracy and COMET against the number of masked heads. Also masks each
    function's heads on the others' questions, and steers them towards correct answers. A run that was stopped goes on
    where it was when the same command is given again.

    Examples: `headscope functions smollm2-135m`, `headscope functions path/to/model --data cogqa.json --n 20`
    """
    from headscope.progress import display
    from headscope.studies.function_tables import study_functions

    with display():
        study = study_functions(settings, out=folder)
    show(study, as_json=settings.as_json)


def check_functions(settings: CheckSettings) -> None:
    """How well a model answers the built-in questions of each function, before any masking."""
    from headscope.models import load
    from headscope.progress import display
    from headscope.studies.functions import check_answers

    with display():
        loaded = load(settings.model)
        rows = check_answers(loaded, n=settings.n, seed=settings.seed)
    if settings.as_json:
        print_json([{"model": loaded.name, **row} for row in rows])
        return
    table = Table("Function", "Questions", "Accuracy", "ROUGE-1", "chrF", title=f"{loaded.name}: how well it answers")
    for row in rows:
        table.add_row(row["task"], str(row["n"]), *(f"{row[name]:.3f}" for name in ("accuracy", "rouge", "chrf")))
    out.print(table)


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
