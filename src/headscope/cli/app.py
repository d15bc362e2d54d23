"""The command line. Thin: it reads options, calls studies, and prints what they found.

Nothing here imports torch until a command needs it, so that help and lists answer at once.
"""

from __future__ import annotations

import shlex
import sys
import time
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

import headscope
from headscope.cli import atlas as cli_atlas
from headscope.cli import doctor as cli_doctor
from headscope.cli import frontier as cli_frontier
from headscope.cli import functions as cli_functions
from headscope.cli import report as cli_report
from headscope.cli import reproduce as cli_reproduce
from headscope.cli import roles as cli_roles
from headscope.cli import sparse as cli_sparse
from headscope.cli.console import AsJson, err, out
from headscope.cli.console import plain as _plain
from headscope.cli.console import print_json as _print_json
from headscope.cli.findings import show, show_checks
from headscope.cli.options import Ending, add_study
from headscope.errors import HeadscopeError, InputError, SetupError
from headscope.progress import done
from headscope.stopping import Stopped, listening
from headscope.studies.settings import CheckSettings, EdgeSettings, HeadSettings

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Which attention heads does a language model use for a task, and how do we know?\n\n"
    "Start with `headscope heads smollm2-135m --task ioi`: it fetches a small real model, "
    "checks that it does the task, scores every head and draws the head map.",
)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"headscope {headscope.__version__}")
        raise typer.Exit


@app.callback()
def _whole(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """What stands before a command."""


def check(settings: CheckSettings, folder: Path) -> Ending:
    """Say how well a model does a task, before studying how it does it.

    Examples: `headscope check smollm2-135m --task ioi,greater-than`,
    `headscope check smollm2-135m --task functions` (its answers to the questions of `headscope functions`)
    """
    if settings.tasks == ("functions",):
        return cli_functions.check_functions(settings)

    from headscope.models import load
    from headscope.running.measure import check as run_check
    from headscope.tasks import make_task

    loaded = load(settings.model, **settings.loading)
    results = []
    for name in settings.tasks:
        began = time.monotonic()
        results.append(run_check(loaded, make_task(name, loaded.tokenizer, n=settings.n, seed=settings.seed)))
        done(f"{loaded.name} on {name}", time.monotonic() - began)
    return partial(show_checks, results, loaded.note, settings)


def heads(settings: HeadSettings, folder: Path) -> Ending:
    """Which heads does a model use, and how few of them are enough?

    Scores every head of one or more models on one or more tasks, sweeps the number of heads kept, and draws explained
    effect against heads kept with the multiplier between series, and head maps.
    A run that was stopped goes on where it was when the same command is given again.

    Examples: `headscope heads smollm2-135m --task ioi --n 50`,
    `headscope heads smollm2-135m --task ioi,docstring --ranking task,prompt`
    """
    from headscope.studies.heads import study_heads

    return partial(show, study_heads(settings, out=folder), settings)


def edges(settings: EdgeSettings, folder: Path) -> Ending:
    """Which edges between components does a model use, and how few of them are enough?

    Scores every edge (embedding, heads, MLPs, logits), sweeps the number of edges kept on a log axis, draws explained
    effect against edges kept, and runs, draws and exports the circuit that reaches the threshold (JSON, GraphML).
    A run that was stopped goes on where it was when the same command is given again.

    Example: `headscope edges smollm2-135m --task ioi --method eap-ig,random`
    """
    from headscope.studies.edges import study_edges

    return partial(show, study_edges(settings, out=folder), settings)


add_study(app, CheckSettings, check, out="")
add_study(app, HeadSettings, heads)
add_study(app, EdgeSettings, edges)
cli_roles.register(app)
cli_functions.register(app)
cli_sparse.register(app)
cli_frontier.register(app)
cli_atlas.register(app)
cli_report.register(app)
cli_reproduce.register(app)
cli_doctor.register(app)

listing = typer.Typer(no_args_is_help=True, help="What there is: models, tasks, methods.")
app.add_typer(listing, name="list")


@listing.command("models")
def list_models(as_json: AsJson = False) -> None:
    """Built-in models. Folders, GGUF files and hub ids work as well."""
    from headscope.models import BUILTIN

    _print_list("Model", {name: f"{row.about} ({row.licence})" for name, row in BUILTIN.items()}, as_json)


@listing.command("tasks")
def list_tasks(as_json: AsJson = False) -> None:
    """Built-in tasks. A .jsonl file of your own works as well."""
    from headscope.tasks import TASKS

    _print_list("Task", {name: _first_sentence(make.__doc__) for name, make in TASKS.items()}, as_json)


@listing.command("methods")
def list_methods(as_json: AsJson = False) -> None:
    """Methods that score heads, and edges."""
    from headscope.methods import EDGE_METHODS, METHODS
    from headscope.studies.chosen_methods import method_options

    rows = {}
    for which, methods in (("", METHODS), (" (edges)", EDGE_METHODS)):
        for name, score in methods.items():
            own = [f"{option}={default}" for option, (_, default) in method_options(score, ["split"]).items()]
            said = f" Options: {', '.join(own)}." if own else ""
            rows[f"{name}{which}"] = f"{_first_sentence(score.__doc__)}{said}"
    _print_list("Method", rows, as_json)


def main() -> None:
    """Entry point: errors meant for people become one or two lines on standard error and an exit code."""
    try:
        with listening(lambda text: err.print(_plain(text), soft_wrap=True, highlight=False)):
            _refuse_odd_words(sys.argv[1:])
            app()
    except HeadscopeError as error:
        err.print(f"[bold red]Error:[/] {_plain(error)}", soft_wrap=True, highlight=False)
        sys.exit(error.exit_code)
    except Stopped as stopped:
        err.print(_plain(_stopped(stopped)), soft_wrap=True, highlight=False)
        sys.exit(stopped.exit_code)
    except BrokenPipeError:
        sys.exit(1)
    except OSError as error:
        where = f" {error.filename}" if error.filename else ""
        err.print(f"[bold red]Error:[/] Cannot use{_plain(where)}: {error.strerror or error}.", soft_wrap=True)
        sys.exit(SetupError.exit_code)


def _refuse_odd_words(words: list[str]) -> None:
    """(A word in another encoding could not even be printed.)"""
    for place, word in enumerate(words, 1):
        try:
            word.encode()
        except UnicodeEncodeError:
            raise InputError(f"Word {place} of the command is not UTF-8: {ascii(word)[:100]}. Rename it.") from None


def _stopped(stopped: Stopped) -> str:
    said = f"Stopped by {stopped.signal.name}."
    if stopped.folder is None:
        return f"{said} Nothing was left half-written."
    again = shlex.join(["headscope", *sys.argv[1:]])
    return f"{said} What is finished is safe in {stopped.folder}. To go on, give the same command again:\n    {again}"


def _print_list(title: str, rows: dict[str, str], as_json: bool) -> None:
    if as_json:
        _print_json(rows)
        return
    table = Table(title, "What it is")
    for name, about in rows.items():
        table.add_row(name, about)
    out.print(table)


def _first_sentence(text: str | None) -> str:
    return " ".join((text or "").strip().split("\n\n")[0].split())


if __name__ == "__main__":
    main()
