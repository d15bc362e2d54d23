"""The command that draws the sparsity frontier."""

from __future__ import annotations

from pathlib import Path

import typer
from rich.table import Table

from headscope.cli.console import out, print_json
from headscope.cli.options import add_study
from headscope.studies.settings import FrontierSettings


def register(app: typer.Typer) -> None:
    add_study(app, FrontierSettings, sparsity_frontier)


def sparsity_frontier(settings: FrontierSettings, folder: Path) -> None:
    """What a model loses, and how small its circuits get, as its attention edges close.

    Measures the dense model, every adapter that `sparsify` kept on its way down, and the last one.

    Example: `headscope sparsity-frontier nano sparse --task ioi`
    """
    from headscope.progress import shown
    from headscope.studies.frontier import study_frontier

    with shown():
        found = study_frontier(settings, out=folder)
    if settings.as_json:
        print_json({"run": str(folder), "rows": found.rows})
        return
    columns = ("Point", "Open edges", "per query", "Nats above dense", "Task", "Accuracy", "Heads", "Edges")
    table = Table(*columns, title=f"{settings.dense}: from dense to sparse, and what explains {settings.threshold:.0%}")
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
