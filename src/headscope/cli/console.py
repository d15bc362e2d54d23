"""What all commands share: their options, and how they read names and print."""

from __future__ import annotations

import json
import math
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from headscope.errors import InputError
from headscope.progress import stamp
from headscope.runs.settings import Settings, options

# Results go to standard output, everything else to standard error, so that --json can be piped.
# (Without emoji, or paths such as a:x:b would change.)
out = Console(emoji=False)
err = Console(stderr=True, emoji=False)

Formats = Annotated[str, typer.Option("--format", help="Figure formats: png, svg, pdf.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")]


def split(text: str, option: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise InputError(f"{option} is empty. Give one or more names, separated by commas.")
    return names


def note(text: str) -> None:
    """What is to be known before the numbers are believed."""
    err.print(f"[yellow]Note:[/] {plain(text)}", soft_wrap=True, highlight=False)


# Fields of settings that name models; tasks are called so everywhere.
MODELS = ("model", "models", "dense", "sparse", "trained", "adapter", "base")


def header(settings: Settings, folder: Path | None) -> dict[str, str]:
    """What a command was asked, for which model and task, with which settings, and where it writes."""
    said: dict[str, list[str]] = {"Model": [], "Task": [], "Settings": []}
    for one in options(type(settings)):
        value = getattr(settings, one.name)
        if one.name in MODELS:
            said["Model"].append(one.text(value))
        elif one.name == "tasks":
            said["Task"].append(one.text(value))
        elif one.identity and value is not None and value is not False and value not in ((), ""):
            said["Settings"].append(one.noun if value is True else f"{one.noun} {one.text(value)}")
    lines = {name: ", ".join(words) for name, words in said.items() if words}
    return {"headscope": settings.command, **lines, **({} if folder is None else {"Writes": str(folder)})}


def print_header(settings: Settings, folder: Path | None) -> None:
    """On stderr, before anything slow is imported; in a log, with the time."""
    for name, text in header(settings, folder).items():
        if not sys.stderr.isatty():
            stamp(f"{name} {text}")
        elif name == "headscope":
            err.print(f"[bold]{name} {plain(text)}[/]", highlight=False)
        else:
            lines = textwrap.wrap(text, max(err.width - 12, 20), break_on_hyphens=False)
            for number, line in enumerate(lines):
                err.print(f"  [dim]{'' if number else name:9}[/] {plain(line)}", highlight=False, soft_wrap=True)


def print_end(sentence: str, figures: Iterable[str], folder: str) -> None:
    """What was found in one sentence, where the files are, and what shows the page."""
    line("Found", sentence)
    pictures = [Path(path).name for path in figures if path.endswith(".png")]
    line("Files", f"{folder}" + (f": {', '.join(pictures)}; tables as CSV" if pictures else ""))
    line("Page", f"headscope view {Path(folder).parent}")


def line(name: str, text: str) -> None:
    """A line of the end, as all commands have them."""
    out.print(f"[bold]{name + ':':6}[/] {plain(text)}", soft_wrap=not out.is_terminal, highlight=False)


def print_json(value: object) -> None:
    # JSON knows no NaN: what could not be computed is null.
    known = json.loads(json.dumps(value), parse_constant=lambda _: None)
    print(json.dumps(known, indent=2, ensure_ascii=False))


def number(value: float | None, form: str) -> str:
    """A number in a table; what could not be computed is none, never a nan."""
    return format(value, form) if value is not None and math.isfinite(value) else "none"


def plain(text: object) -> str:
    return str(text).replace("[", r"\[")
