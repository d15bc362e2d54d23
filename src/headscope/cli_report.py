"""The commands that show runs: report, view, figure."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headscope.console import out, plain
from headscope.errors import InputError


def report(
    runs: Annotated[
        list[Path], typer.Argument(help="Run folders, or a folder that holds run folders.", show_default=False)
    ],
    to: Annotated[Path, typer.Option("--out", "-o", help="The page to write.")] = Path("report.html"),
    title: Annotated[str, typer.Option(help="Title of the page; by default the models and studies.")] = "",
) -> None:
    """Make one HTML page of runs: curves, head maps, circuits, attention, roles, functions, tables.

    The page is one file that opens from disk and fetches nothing. It shows what the run folders hold; a file that is
    missing or damaged is named, and the rest is shown.

    Example: `headscope report runs/demo -o report.html`
    """
    from headscope.files import write_bytes
    from headscope.report.page import build_page

    if to.is_dir():
        raise InputError(f"{to} is a folder; --out needs the name of a file, such as {to / 'report.html'}.")
    data = build_page(runs, title=title).encode()
    write_bytes(to, data)
    out.print(f"Page: {plain(to)} ({len(data) / 1e6:.1f} MB)", soft_wrap=True, highlight=False)


def register(app: typer.Typer) -> None:
    app.command()(report)
