"""What all commands share: where they print, the options that mean the same everywhere, JSON and names of folders."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

import headscope
from headscope.errors import InputError

# Results go to standard output, everything else to standard error, so that --json can be piped.
# (Without emoji, or paths such as a:x:b would change.)
out = Console(emoji=False)
err = Console(stderr=True, emoji=False)

Seed = Annotated[int, typer.Option(help="Seed of the prompts.")]
Out = Annotated[
    Path | None, typer.Option("--out", "-o", help="Run folder; by default one under runs/ for these settings.")
]
Formats = Annotated[str, typer.Option("--format", help="Figure formats: png, svg, pdf.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")]


def split(text: str, option: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise InputError(f"{option} is empty. Give one or more names, separated by commas.")
    return names


def default_folder(command: str, settings: dict) -> Path:
    digest = hashlib.sha256(json.dumps([headscope.__version__, settings]).encode()).hexdigest()[:8]
    models = "-".join(Path(name).name for name in settings["models"])
    return Path("runs") / f"{command}-{models}-{digest}"


def print_json(value: object) -> None:
    # JSON knows no NaN: what could not be computed is null.
    plain_value = json.loads(json.dumps(value), parse_constant=lambda _: None)
    print(json.dumps(plain_value, indent=2, ensure_ascii=False))


def plain(text: object) -> str:
    return str(text).replace("[", r"\[")
