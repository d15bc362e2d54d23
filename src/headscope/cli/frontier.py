"""The command that draws the sparsity frontier."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from headscope.cli.console import (
    AsJson,
    Formats,
    Out,
    Prompts,
    Tasks,
    Threshold,
    default_folder,
    out,
    print_json,
    split,
    task_names,
)


def sparsity_frontier(
    dense: Annotated[str, typer.Argument(help="The dense model.", show_default=False)],
    trained: Annotated[Path, typer.Argument(help="The folder that `headscope sparsify` wrote.", show_default=False)],
    task: Tasks,
    heads_by: Annotated[str, typer.Option(help="Method that ranks heads.")] = "patching",
    edges_by: Annotated[str, typer.Option(help="Method that ranks edges.")] = "eap-ig",
    text: Annotated[str, typer.Option(help="Text for the losses: `self`, a file, a folder, a data set.")] = "self",
    windows: Annotated[int, typer.Option(min=1, help="Windows of text.")] = 64,
    length: Annotated[int, typer.Option(min=2, help="Tokens in a window.")] = 64,
    threshold: Threshold = 0.9,
    n: Prompts = 50,
    seed: Annotated[int, typer.Option(help="Seed of text and prompts; not the one of the training.")] = 1,
    to: Out = None,
    figures: Formats = "png,svg,pdf",
    as_json: AsJson = False,
) -> None:
    """What a model loses, and how small its circuits get, as its attention edges close.

    Measures the dense model, every adapter that `sparsify` kept on its way down, and the last one.

    Example: `headscope sparsity-frontier nano sparse --task ioi`
    """
    names = task_names(task)
    options = {
        "tasks": names, "heads_by": heads_by, "edges_by": edges_by, "text": text, "count": windows, "length": length,
        "n": n, "seed": seed,
    }  # fmt: skip
    formats = split(figures, "--format")
    folder = to or default_folder("sparsity-frontier", {"models": [dense, str(trained)], **options})

    from headscope.progress import shown
    from headscope.studies.frontier import study_frontier

    with shown():
        found = study_frontier(dense, trained, out=folder, threshold=threshold, formats=formats, **options)
    if as_json:
        print_json({"run": str(folder), "rows": found.rows})
        return
    columns = ("Point", "Open edges", "per query", "Nats above dense", "Task", "Accuracy", "Heads", "Edges")
    table = Table(*columns, title=f"{dense}: from dense to sparse, and what explains {threshold:.0%}")
    for row in found.rows:
        table.add_row(
            row["point"], f"{row['connectivity']:.2%}", f"{row['edges_per_query']:.2f}",
            f"{row['ce_above_dense']:+.4f}", row["task"], f"{row['accuracy']:.3f}", _count(row, "heads"),
            _count(row, "edges"),
        )  # fmt: skip
    out.print(table)
    out.print(f"Everything: {folder}", soft_wrap=True, highlight=False)


def _count(row: dict, what: str) -> str:
    from headscope.records import Needed

    return str(Needed(row[what], row[f"{what}_low"], row[f"{what}_high"]))


def register(app: typer.Typer) -> None:
    app.command("sparsity-frontier")(sparsity_frontier)
