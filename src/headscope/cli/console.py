"""What all commands share: their options, and how they read names and print."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
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

Models = Annotated[
    list[str],
    typer.Argument(
        help="Built-in names (see `headscope list models`), folders, GGUF files or hub ids.", show_default=False
    ),
]
Tasks = Annotated[
    str, typer.Option("--task", "-t", help="Task names separated by commas (`headscope list tasks`), or a .jsonl file.")
]
Prompts = Annotated[int, typer.Option("--n", "-n", min=1, help="Prompt pairs per task.")]
Seed = Annotated[int, typer.Option(help="Seed of the prompts.")]
Signed = Annotated[
    bool,
    typer.Option(
        "--signed", help="Rank from most positive to most negative, not by absolute score; gives CPR instead of CMD."
    ),
]
Threshold = Annotated[float, typer.Option(help="Explained effect at which curves are compared.")]
Points = Annotated[
    int | None, typer.Option(min=2, help="Points of a curve at most; the usual grid if not given.", show_default=False)
]
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


def task_names(text: str) -> list[str]:
    """Misspelt tasks are told before a model is loaded."""
    from headscope.tasks import TASKS, is_task

    names = split(text, "--task")
    for name in names:
        if not is_task(name):
            raise InputError(f"Unknown task {name!r}. Known: {', '.join(TASKS)}, or a path to a .jsonl file.")
    return names


def default_folder(command: str, settings: dict) -> Path:
    digest = hashlib.sha256(json.dumps([headscope.__version__, settings]).encode()).hexdigest()[:8]
    models = "-".join(Path(name).name for name in settings["models"])
    return Path("runs") / f"{command}-{models}-{digest}"


def warn_unusable(results: Iterable) -> None:
    for r in results:
        if not r.usable:
            err.print(
                f"[yellow]Note:[/] {r.model} does not do {r.task}: accuracy {r.accuracy:.2f}, metric {r.metric:.3f} "
                f"clean and {r.corrupt_metric:.3f} corrupt. Scores of its heads explain nothing.",
                soft_wrap=True,
            )


def print_places(figures: Iterable[Path], folder: Path) -> None:
    """Where a run left its pictures and everything else."""
    for path in figures:
        if path.suffix == ".png":
            out.print(f"Picture: {plain(path)}", soft_wrap=True)
    out.print(f"Everything: {plain(folder)}", soft_wrap=True)


def print_json(value: object) -> None:
    # JSON knows no NaN: what could not be computed is null.
    known = json.loads(json.dumps(value), parse_constant=lambda _: None)
    print(json.dumps(known, indent=2, ensure_ascii=False))


def plain(text: object) -> str:
    return str(text).replace("[", r"\[")
