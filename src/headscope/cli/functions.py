"""The commands about functional heads: `headscope functions`, `headscope comet setup`, and the check of the functions'
questions. `register` puts them on the command line."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from headscope.cli.console import err, out, plain, print_json, print_places
from headscope.cli.options import add_study
from headscope.studies.settings import CheckSettings, FunctionSettings

if TYPE_CHECKING:
    from headscope.studies.function_tables import FunctionStudy


def register(app: typer.Typer) -> None:
    add_study(app, FunctionSettings, functions)
    comet = typer.Typer(no_args_is_help=True, help="COMET, which scores answers, in an environment of its own.")
    comet.command("setup")(comet_setup)
    app.add_typer(comet, name="comet")


def functions(settings: FunctionSettings, folder: Path) -> None:
    """Which heads serve a cognitive function, and what is lost without them?

    Finds the heads of Retrieval, Knowledge Recall, Math Calculation and Inference, masks the K best against K random
    ones while the model answers, and draws accuracy and COMET against the number of masked heads. Also masks each
    function's heads on the others' questions, and pushes them towards correct answers. A run that was stopped goes on
    where it was when the same command is given again.

    Examples: `headscope functions smollm2-135m`, `headscope functions path/to/model --data cogqa.json --n 20`
    """
    from headscope.progress import shown
    from headscope.studies.function_tables import study_functions

    with shown():
        study = study_functions(settings, out=folder)
    if settings.as_json:
        print_json({"run": str(study.folder), **_as_dict(study)})
        return
    _print_study(study)


def check_functions(settings: CheckSettings) -> None:
    """How well a model answers the built-in questions of each function, before any masking."""
    from headscope.models import load
    from headscope.progress import shown
    from headscope.studies.functions import check_answers

    with shown():
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
    from headscope.progress import shown

    with shown():
        environment = setup(None if checkpoint == "none" else checkpoint)
    said = environment.missing or f"ready, with checkpoint {environment.checkpoint}"
    out.print(f"COMET in {plain(environment.folder)}: {plain(said)}", soft_wrap=True, highlight=False)


def _as_dict(study: FunctionStudy) -> dict[str, Any]:
    parts = asdict(study)
    del parts["folder"]
    return {**parts, "figures": [str(path) for path in study.figures]}


def _print_study(study: FunctionStudy) -> None:
    table = Table("Function", "Questions", "Right", title="Answers with every head in place")
    for row in study.base:
        table.add_row(row["function"], str(row["n"]), f"{row['match']:.2f}")
    out.print(table)
    comet = "top_comet" in study.sweep[0]
    columns = ["Ranking", "Function", "K", "TopK", "RandomK", "lowest to highest", "Below"]
    table = Table(*columns, *(["TopK Comet", "RandomK Comet"] if comet else []), title="Accuracy with K heads masked")
    for row in study.sweep:
        band = f"{row['random_accuracy_low']:.2f} to {row['random_accuracy_high']:.2f}"
        cells = [f"{row['top_accuracy']:.2f}", f"{row['random_accuracy']:.2f}", band, "yes" if row["below"] else ""]
        cells += [f"{row[f'{which}_comet']:.2f}" for which in ("top", "random")] if comet else []
        table.add_row(row["ranking"], row["function"], str(row["k"]), *cells)
    out.print(table)
    for ranking in dict.fromkeys(row["ranking"] for row in study.cross):
        out.print(_cross_table(study, ranking))
    if study.pushed:
        table = Table("Function", "Heads", "Alpha", "Right", "before", title="Heads pushed towards correct answers")
        for row in study.pushed:
            cells = (str(row["k"]), f"{row['alpha']:g}", f"{row['match']:.2f}", f"{row['base_match']:.2f}")
            table.add_row(row["function"], *cells)
        out.print(table)
    for row in study.agreement:
        shared = ", ".join(f"{row[key]} of {key[7:]}" for key in row if key.startswith("shared_"))
        line = f"{row['function']}: {row['first']} and {row['second']} share {shared} heads; rank correlation"
        out.print(f"{line} {row['correlation']:.2f}", highlight=False, soft_wrap=True)
    _warn(study)
    out.print(plain(study.comet), soft_wrap=True, highlight=False)
    print_places(study.figures, study.folder)


def _cross_table(study: FunctionStudy, ranking: str) -> Table:
    rows = [row for row in study.cross if row["ranking"] == ranking]
    asked = list(dict.fromkeys(row["asked"] for row in rows))
    title = f"Accuracy with the {rows[0]['k']} best heads of one function masked, by {ranking}"
    table = Table("Masked", *(f"asks {name}" for name in asked), title=title)
    for masked in dict.fromkeys(row["masked"] for row in rows):
        found = {row["asked"]: row["accuracy"] for row in rows if row["masked"] == masked}
        table.add_row(masked, *(f"{found[name]:.2f}" for name in asked))
    return table


def _warn(study: FunctionStudy) -> None:
    if study.skipped:
        some = "; ".join(study.skipped[:3])
        words = f"{len(study.skipped)} items could not be used: {plain(some)}" + ("; ..." if study.skipped[3:] else "")
        err.print(f"[yellow]Note:[/] {words}", soft_wrap=True)
    if study.stray:
        names = ", ".join(f"{label} ({count})" for label, count in list(study.stray.items())[:8])
        err.print(f"[yellow]Note:[/] labels that are no function: {plain(names)}", soft_wrap=True)
