"""The command line. Thin: it reads options, calls studies, and prints what they found.

Nothing here imports torch until a command needs it, so that help and lists answer at once.
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

import headscope
from headscope.cli import frontier as cli_frontier
from headscope.cli import functions as cli_functions
from headscope.cli import report as cli_report
from headscope.cli import reproduce as cli_reproduce
from headscope.cli import roles as cli_roles
from headscope.cli import sparse as cli_sparse
from headscope.cli.console import AsJson, err, out, print_places
from headscope.cli.console import plain as _plain
from headscope.cli.console import print_json as _print_json
from headscope.cli.console import warn_unusable as _warn_unusable
from headscope.cli.options import add_study
from headscope.errors import HeadscopeError
from headscope.studies.settings import CheckSettings, EdgeSettings, HeadSettings

if TYPE_CHECKING:
    from headscope.records import EdgeScores, Scores
    from headscope.studies.edges import EdgeStudy
    from headscope.studies.heads import HeadStudy

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


def check(settings: CheckSettings, folder: Path) -> None:
    """Say how well a model does a task, before studying how it does it.

    Examples: `headscope check smollm2-135m --task ioi,greater-than`,
    `headscope check smollm2-135m --task functions` (its answers to the questions of `headscope functions`)
    """
    if settings.tasks == ("functions",):
        cli_functions.check_functions(settings)
        return

    from headscope.models import load
    from headscope.progress import shown
    from headscope.running.measure import check as run_check
    from headscope.tasks import make_task

    with shown():
        loaded = load(settings.model)
        made = (make_task(name, loaded.tokenizer, n=settings.n, seed=settings.seed) for name in settings.tasks)
        results = [run_check(loaded, task) for task in made]
    if settings.as_json:
        rows = [{**asdict(result), "usable": result.usable} for result in results]
        _print_json(rows[0] if len(rows) == 1 else rows)
        return
    table = Table("Task", "Prompts", "Accuracy", "Metric", "Clean", "Corrupt", title=f"{loaded.name}: how well it does")
    for r in results:
        row = (r.task, str(r.n), f"{r.accuracy:.3f}", r.metric_name, f"{r.metric:.3f}", f"{r.corrupt_metric:.3f}")
        table.add_row(*row, style=None if r.usable else "yellow")
    out.print(table)
    _warn_unusable(results)


def heads(settings: HeadSettings, folder: Path) -> None:
    """Which heads does a model use, and how few of them are enough?

    Scores every head of one or more models on one or more tasks, sweeps the number of heads kept, and draws explained
    effect against heads kept with the multiplier between series, and head maps.
    A run that was stopped goes on where it was when the same command is given again.

    Examples: `headscope heads smollm2-135m --task ioi --n 50`,
    `headscope heads smollm2-135m --task ioi,docstring --ranking task,prompt`
    """
    from headscope.progress import shown
    from headscope.studies.heads import study_heads
    from headscope.studies.series import summary

    with shown():
        study = study_heads(settings, out=folder)
    curves = [summary(curve, settings.threshold) for curve in study.curves + study.bands]
    if settings.as_json:
        _print_json(_study_as_dict(study, curves, settings.top, "head"))
        return
    _print_study(study, curves, settings.top, settings.threshold, "head")


def edges(settings: EdgeSettings, folder: Path) -> None:
    """Which edges between components does a model use, and how few of them are enough?

    Scores every edge (embedding, heads, MLPs, logits), sweeps the number of edges kept on a log axis, draws explained
    effect against edges kept, and runs, draws and exports the circuit that reaches the threshold (JSON, GraphML).
    A run that was stopped goes on where it was when the same command is given again.

    Example: `headscope edges smollm2-135m --task ioi --method eap-ig,random`
    """
    from headscope.progress import shown
    from headscope.studies.edges import study_edges
    from headscope.studies.series import summary

    with shown():
        study = study_edges(settings, out=folder)
    curves = [summary(curve, settings.threshold) for curve in study.curves]
    if settings.as_json:
        _print_json({**_study_as_dict(study, curves, settings.top, "edge"), "circuits": study.circuits})
        return
    _print_study(study, curves, settings.top, settings.threshold, "edge")
    for c in study.circuits:
        line = (
            f"Circuit of {c['model']} on {c['task']}, {c['method']}, {c['choice']}: {c['chosen']:,} edges, "
            f"{c['connected']:,} of them connected{' and kept' if c['kept'] < c['chosen'] else ''}; run by itself, it "
            f"explains {c['explained']:.3f} [{c['low']:.3f}, {c['high']:.3f}]"
        )
        out.print(_plain(line), soft_wrap=True, highlight=False)


add_study(app, CheckSettings, check, out="")
add_study(app, HeadSettings, heads)
add_study(app, EdgeSettings, edges)
cli_roles.register(app)
cli_functions.register(app)
cli_sparse.register(app)
cli_frontier.register(app)
cli_report.register(app)
cli_reproduce.register(app)

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
        app()
    except HeadscopeError as error:
        err.print(f"[bold red]Error:[/] {_plain(error)}", soft_wrap=True, highlight=False)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.exit(1)


def _print_study(study: HeadStudy | EdgeStudy, curves: list[dict], top: int, threshold: float, what: str) -> None:
    for scores in study.scores:
        if "random" not in scores.method:
            out.print(_top(scores, top, what))
    out.print(_curve_table(curves, threshold, what))
    for c in study.multipliers:
        line = f"{c.task}: {c.first} against {c.against}: {c.found}"
        out.print(_plain(line), soft_wrap=True, highlight=False)
    _warn_unusable(study.checks)
    print_places(study.figures, study.folder)


def _top(scores: Scores | EdgeScores, top: int, what: str) -> Table:
    title = f"{scores.model} on {scores.task}: the {what}s that matter most"
    caption = f"{scores.method}, {scores.settings['n']} prompts"
    table = Table("Rank", what.capitalize(), "Score", "", title=title, caption=caption)
    rows = scores.top(top)
    largest = max(abs(score) for _, score in rows) or 1.0
    for rank, (name, score) in enumerate(rows, 1):
        colour, length = ("dark_orange", "medium_purple")[score < 0], round(24 * abs(score) / largest)
        table.add_row(str(rank), name, f"{score:+.3f}", f"[{colour}]{'█' * length}")
    return table


def _curve_table(curves: list[dict], threshold: float, what: str) -> Table:
    from headscope.records import Needed

    order = "ranking" if what == "head" else "choice"
    # As in MIB: CPR is for a ranking by signed score, CMD for one by absolute score.
    measure = "cpr" if curves[0]["signed"] else "cmd"
    caption = {
        "cpr": "CPR: area under the curve at MIB's sizes, ranked by signed score",
        "cmd": "CMD: area between the curve and 1 at MIB's sizes, ranked by absolute score (--signed gives CPR)",
    }
    columns = ("Model", "Task", "Method", order.capitalize(), f"{what.capitalize()}s for {threshold:g}", "of", "Area")
    table = Table(*columns, measure.upper(), title=f"Explained effect against {what}s kept", caption=caption[measure])
    for c in curves:
        need = Needed(c["k_at_threshold"], c["k_low"], c["k_high"])
        row = (c["model"], c["task"], c["method"], c[order], str(need), str(c["total"]), f"{c['area']:.3f}")
        table.add_row(*row, f"{c[measure]:.3f}")
    return table


def _study_as_dict(study: HeadStudy | EdgeStudy, curves: list[dict], top: int, what: str) -> dict:
    return {
        "run": str(study.folder),
        "checks": [{**asdict(found), "usable": found.usable} for found in study.checks],
        "scores": [
            {
                "model": s.model,
                "task": s.task,
                "method": s.method,
                "top": [{what: name, "score": v} for name, v in s.top(top)],
            }
            for s in study.scores
        ],
        "curves": curves,
        "multipliers": [compared.as_dict() for compared in study.multipliers],
        "figures": [str(path) for path in study.figures],
    }


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
