"""`headscope reproduce`: the five published figures in one go, and the page that shows them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.table import Table

from headscope.cli.console import err, out, plain, print_json
from headscope.cli.options import add_study
from headscope.studies.settings import ReproduceSettings

if TYPE_CHECKING:
    from headscope.studies.reproduce import Reproduction


def register(app: typer.Typer) -> None:
    add_study(app, ReproduceSettings, reproduce, out="Folder of all runs; by default runs/reproduce-PRESET.")


def reproduce(settings: ReproduceSettings, folder: Path) -> None:
    """Draw every published figure on real models, and one page that shows everything.

    Heads by task and by prompt (000, 001) and edges (002), dense against sparse; functional heads (003); head roles
    (004). Ends with each published number beside the one measured here, and a page to send to a colleague.
    A run that was stopped goes on where it was when the same command is given again.

    Examples: `headscope reproduce`, `headscope reproduce --preset full --only 000,002`
    """
    from headscope.progress import display
    from headscope.records.files import write_bytes
    from headscope.report.page.html import build_page
    from headscope.studies.reproduce import estimate
    from headscope.studies.reproduce import reproduce as run

    minutes = estimate(settings) / 60
    err.print(f"About {minutes:.0f} minutes on this machine, less what is there already. Stop it whenever you like.")
    with display():
        whole = run(settings, out=folder, say=_say)
    page = write_bytes(folder / "report.html", build_page([folder]).encode())
    if settings.as_json:
        print_json({"run": str(folder), "page": str(page), **whole.as_dict()})
    else:
        _print(whole, page)
    if settings.show:
        import webbrowser

        webbrowser.open(page.resolve().as_uri())


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _print(whole: Reproduction, page: Path) -> None:
    title = "Published, and measured here (other models, other settings: not the same experiment)"
    table = Table("Figure", "What", "Published", "Here", "Model and setting", title=title)
    for number in whole.numbers:
        cells = (number.figure, number.what, number.published, number.measured, number.setting)
        table.add_row(*map(plain, cells))
    out.print(table)
    for figure in whole.figures:
        out.print(plain(f"Figure {figure.id}: {whole.folder / figure.image}"), soft_wrap=True, highlight=False)
    out.print(plain(f"Time: {whole.seconds / 60:.1f} minutes"), highlight=False)
    out.print(plain(f"Page: {page}"), soft_wrap=True, highlight=False)
