"""`headscope reproduce`: the five published figures in one go, and the page that shows them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.table import Table

from headscope.cli.console import line, out, plain, print_json
from headscope.cli.options import Ending, add_study
from headscope.progress import stamp
from headscope.studies.settings import ReproduceSettings

if TYPE_CHECKING:
    from headscope.studies.reproduce import Reproduction


def register(app: typer.Typer) -> None:
    add_study(app, ReproduceSettings, reproduce, out="Folder of all runs; by default runs/reproduce-PRESET.")


def reproduce(settings: ReproduceSettings, folder: Path) -> Ending:
    """Draw every published figure on real models, and one page that shows everything.

    Heads by task and by prompt (000, 001) and edges (002), dense against sparse; functional heads (003); head roles
    (004). Ends with each published number beside the one measured here, and a page to send to a colleague.
    A run that was stopped goes on where it was when the same command is given again.

    Examples: `headscope reproduce`, `headscope reproduce --preset full --only 000,002`
    """
    from headscope.records.files import write_bytes
    from headscope.report.page.html import build_page
    from headscope.studies.reproduce import estimate
    from headscope.studies.reproduce import reproduce as run

    page = folder / "report.html"

    def say(text: str) -> None:
        if not settings.quiet:
            stamp(text)

    def grown(whole: Reproduction) -> None:
        write_bytes(page, build_page([folder]).encode())
        figures = listed_figures(whole)
        say(f"{page} shows {figures}")

    if not settings.quiet:
        minutes = max(1, round(estimate(settings) / 60))
        say(f"About {minutes} min on this machine, less what is there already; stop it whenever you like")
    whole = run(settings, out=folder, say=say, grown=grown)
    return partial(_end, whole, page, settings)


def listed_figures(whole: Reproduction) -> str:
    names = [figure.id for figure in whole.figures]
    return f"figure{'s' * (len(names) != 1)} {', '.join(names)}"


def _end(whole: Reproduction, page: Path, settings: ReproduceSettings) -> None:
    if settings.as_json:
        print_json({"run": str(whole.folder), "page": str(page), **whole.as_dict()})
    else:
        _print(whole, page)
    if settings.show:
        import webbrowser

        webbrowser.open(page.resolve().as_uri())


def _print(whole: Reproduction, page: Path) -> None:
    """A table for each figure: what all of its rows share stands above them, so that 80 columns are enough."""
    for figure in whole.figures:
        rows = [number for number in whole.numbers if number.figure == figure.id]
        if not rows:
            continue
        table = Table(
            "What", "Published", "Here", title=f"{figure.id}: {plain(figure.title)}", caption=plain(rows[0].setting)
        )
        for number in rows:
            table.add_row(*map(plain, (number.what, number.published, number.measured)))
        out.print(table)
    line(
        "Found",
        f"{len(whole.numbers)} published numbers measured here in {whole.seconds / 60:.1f} minutes, on other models "
        "and with other settings: not the same experiment.",
    )
    line("Files", f"{whole.folder}: {', '.join(figure.image for figure in whole.figures)}")
    line("Page", str(page))
