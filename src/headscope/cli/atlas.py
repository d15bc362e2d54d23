"""`headscope atlas`: one page per model, a card per head."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import typer

from headscope.cli.console import out, plain, print_json
from headscope.cli.options import Ending, add_study
from headscope.studies.settings import AtlasSettings


def atlas(settings: AtlasSettings, page: Path) -> Ending:
    """Make one page of a model with a card per head: its pattern, its scores on every task run so far, its role, its
    functions, the prompts on which it matters most.

    It reads the run folders that are there, and says what is missing and which command makes it.

    Example: `headscope atlas smollm2-135m -o atlas.html`
    """
    from headscope.studies.atlas import study_atlas

    return partial(_show, study_atlas(settings, out=page), settings.as_json)


def _show(told: dict[str, Any], as_json: bool) -> None:
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
    add_study(app, AtlasSettings, atlas, out="The page to write; atlas.html unless given.")
