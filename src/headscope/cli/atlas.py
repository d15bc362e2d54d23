"""`headscope atlas`: one page per model, a card per head."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headscope.cli.console import AsJson, out, plain, print_json


def atlas(
    model: Annotated[
        str, typer.Argument(help="A built-in model, a folder, a GGUF file or a hub id.", show_default=False)
    ],
    runs: Annotated[Path, typer.Option(help="Folder in which runs of this model are looked for.")] = Path("runs"),
    to: Annotated[Path, typer.Option("--out", "-o", help="The page to write.")] = Path("atlas.html"),
    seed: Annotated[int, typer.Option(min=0, help="Of the random tokens.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Make one page of a model with a card per head: its pattern, its scores on every task run so far, its role, its
    functions, the prompts on which it matters most.

    It reads the run folders that are there, and says what is missing and which command makes it.

    Example: `headscope atlas smollm2-135m -o atlas.html`
    """
    from headscope.progress import display
    from headscope.studies.atlas import study_atlas

    with display():
        told = study_atlas(model, runs, to, seed=seed)
    if as_json:
        print_json(told)
        return
    for name, heads in told["patterns"].items():
        out.print(plain(f"{name}: {', '.join(heads) or 'no head above 0.4 among the best five'}"), highlight=False)
    for missing in told["missing"]:
        out.print(plain(f"Not known yet: {missing['what']} ({missing['command']})"), soft_wrap=True, highlight=False)
    for note in told["notes"]:
        out.print(plain(f"Could not be read: {note}"), soft_wrap=True, highlight=False)
    read = ", ".join(told["runs"]) or "none"
    about = f"{told['heads']} heads, runs read: {read}"
    out.print(plain(f"Page: {told['page']} ({about})"), soft_wrap=True, highlight=False)


def register(app: typer.Typer) -> None:
    app.command()(atlas)
