"""The commands about sparse attention: sparsify, sparsify-report, merge."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headscope.cli.console import out
from headscope.cli.findings import show
from headscope.cli.options import add_study
from headscope.errors import InputError
from headscope.records.files import refused
from headscope.sparse.settings import Settings
from headscope.studies.settings import SparsitySettings


def sparsify(settings: Settings, folder: Path) -> None:
    """Make attention sparse: post-train a model so that few attention edges stay open and it is as good as before.

    Writes a Hugging Face folder that `load` and every command take like any other model, the adapter alone, the
    history as CSV and as a figure. Give the same command again to go on after a stop, or with more --steps.

    Examples: `headscope sparsify smollm2-135m --out sparse`,
    `accelerate launch --cpu --num_processes 2 -m headscope sparsify gpt2 --out sparse --text corpus.txt`
    """
    from headscope.progress import display
    from headscope.studies.sparsity import study_sparsify

    with display():
        study = study_sparsify(settings, out=folder)
    show(study, as_json=settings.as_json)


def sparsify_report(settings: SparsitySettings, folder: Path) -> None:
    """Compare a sparse model with its dense origin: open edges, cross-entropy, accuracies, and random gates.

    Example: `headscope sparsify-report smollm2-135m smollm2-135m-sparse`
    """
    from headscope.progress import display
    from headscope.studies.sparsity import study_sparsity

    with display():
        study = study_sparsity(settings, out=folder)
    show(study, as_json=settings.as_json)


def merge(
    adapter: Annotated[Path, typer.Argument(help="Folder with adapter_config.json.", show_default=False)],
    base: Annotated[str, typer.Argument(help="The model it belongs to.", show_default=False)],
    to: Annotated[Path, typer.Option("--out", "-o", help="New folder for the merged model.")],
) -> None:
    """Write an adapter and its base as one sparse model, which loads everywhere.

    Example: `headscope merge adapters/stories15M-sparse path/to/stories15M --out stories15M-sparse`
    """
    with refused(to):
        taken = to.exists() and (not to.is_dir() or any(to.iterdir()))
    if taken:
        raise InputError(f"{to} is there already and not empty. Give --out a new folder.")

    from headscope.models import load
    from headscope.sparse.saving import save_merged

    save_merged(load(adapter, base=base), to)
    out.print(f"Model: {to}", soft_wrap=True, highlight=False)


def register(app: typer.Typer) -> None:
    add_study(app, Settings, sparsify, out="Folder to write; a run that stopped goes on there.")
    add_study(app, SparsitySettings, sparsify_report)
    app.command()(merge)
