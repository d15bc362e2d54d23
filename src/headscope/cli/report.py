"""The commands that show runs: report, view, figure."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headscope.cli.console import Formats, out, plain, split
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
    from headscope.records.files import write_bytes
    from headscope.report.page.html import build_page

    if to.is_dir():
        raise InputError(f"{to} is a folder; --out needs the name of a file, such as {to / 'report.html'}.")
    data = build_page(runs, title=title).encode()
    write_bytes(to, data)
    out.print(f"Page: {plain(to)} ({len(data) / 1e6:.1f} MB)", soft_wrap=True, highlight=False)


def view(
    folder: Annotated[Path, typer.Argument(help="Folder of runs.", show_default=False)] = Path("runs"),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0 takes any free one.")] = 8377,
) -> None:
    """Look at a folder of runs in the browser, also while they go on.

    Serves a list of the runs and the page of each, read-only and to this machine only. Pages reload when a run gets
    further.

    Example: `headscope view runs`
    """
    from headscope.report.page.server import Viewer
    from headscope.stopping import Stopped

    with Viewer(folder, port) as server:
        try:
            out.print(f"Runs in {plain(folder)}: {server.address} (Ctrl+C ends it)", soft_wrap=True, highlight=False)
            server.serve_forever()
        except Stopped:
            out.print("Ended.")


def figure(
    run: Annotated[Path, typer.Argument(help="Run folder.", show_default=False)],
    figures: Formats = "pdf",
    width: Annotated[
        str, typer.Option(help="Exact width, such as 3.25in, 8cm, 85mm or 240pt; by default the figure's own.")
    ] = "",
    only: Annotated[str, typer.Option(help="Names of figures, separated by commas; all if not given.")] = "",
    to: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for the files; by default the run folder.")
    ] = None,
) -> None:
    """Draw a run's figures again from its records, for a paper: exactly as wide as a column.

    Letters keep their size and panels move into more rows; only circuits and attention maps shrink as a whole.

    Example: `headscope figure runs/demo/heads --format pdf --width 3.25in --out paper`
    """
    from headscope.report.redraw import inches, redraw

    names = split(only, "--only") if only else None
    size = inches(width) if width else None
    for path in redraw(run, to or run, formats=split(figures, "--format"), width=size, only=names):
        out.print(f"Figure: {plain(path)}", soft_wrap=True, highlight=False)


def register(app: typer.Typer) -> None:
    app.command()(report)
    app.command()(view)
    app.command()(figure)
