"""The commands about health: `headscope doctor` and `headscope cache`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from headscope.cli.console import AsJson, out, plain, print_json, split


def doctor(
    run: Annotated[
        Path | None, typer.Argument(help="Run folder to verify; without one, the surroundings.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Is all well? Versions, device, room, hub, COMET and the cache; or every file of a run against its checksum.

    Ends with exit code 1 where something is damaged or missing. Giving a run's command again makes it anew.

    Examples: `headscope doctor`, `headscope doctor runs/demo/heads`
    """
    from headscope.studies.health import surroundings, verify_run

    found = surroundings() if run is None else verify_run(run)
    wrong = [one for one in found if not one.ok]
    if as_json:
        print_json([asdict(one) for one in found])
    else:
        table = Table("What", "How it is", title="Surroundings" if run is None else plain(run))
        for one in found:
            table.add_row(plain(one.what), plain(one.state), style=None if one.ok else "red")
        out.print(table)
        last = f"{len(wrong)} of {len(found)} are not as they should be." if wrong else "All is well."
        out.print(last, highlight=False)
    if wrong:
        raise typer.Exit(1)


def cache(
    clear: Annotated[
        str, typer.Option(help="Names of what to remove, separated by commas, as they are listed; or all.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """List what is kept in the cache (models, text, COMET), with its size and whether it is whole; or remove it.

    What is removed is fetched or made again when it is next needed.

    Examples: `headscope cache`, `headscope cache --clear models/smollm2-135m`
    """
    from headscope.models.builtin import cache_folder
    from headscope.studies.health import cached
    from headscope.studies.health import clear as remove

    found = remove(split(clear, "--clear")) if clear else cached()
    if as_json:
        print_json([asdict(one) for one in found])
        return
    title = f"{'Removed from' if clear else 'In'} {cache_folder()}"
    table = Table("Name", "Size and state", title=plain(title))
    for one in found:
        table.add_row(plain(one.name), one.told)
    out.print(table)


def register(app: typer.Typer) -> None:
    app.command()(doctor)
    app.command()(cache)
