"""What all commands share: their options, and how they read names and print."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Annotated, Any

import typer
from rich.console import Console

from headscope.errors import InputError

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


def warn_unusable(checks: Iterable[dict[str, Any]]) -> None:
    for c in checks:
        if not c["usable"]:
            err.print(
                f"[yellow]Note:[/] {c['model']} does not do {c['task']}: accuracy {c['accuracy']:.2f}, metric "
                f"{c['metric']:.3f} clean and {number(c['corrupt_metric'], '.3f')} corrupt. Scores of its heads "
                "explain nothing.",
                soft_wrap=True,
            )


def print_places(figures: Iterable[str], folder: str) -> None:
    """Where a run left its pictures and everything else."""
    for path in figures:
        if path.endswith(".png"):
            out.print(f"Picture: {plain(path)}", soft_wrap=True)
    out.print(f"Everything: {plain(folder)}", soft_wrap=True)


def print_json(value: object) -> None:
    # JSON knows no NaN: what could not be computed is null.
    known = json.loads(json.dumps(value), parse_constant=lambda _: None)
    print(json.dumps(known, indent=2, ensure_ascii=False))


def number(value: float | None, form: str) -> str:
    """A number in a table; what could not be computed is none, never a nan."""
    return format(value, form) if value is not None and math.isfinite(value) else "none"


def plain(text: object) -> str:
    return str(text).replace("[", r"\[")
