"""The commands about sparse attention: sparsify, sparsify-report, merge."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import typer

from headscope.cli.console import line, print_json
from headscope.cli.findings import show
from headscope.cli.options import Ending, add_study
from headscope.errors import InputError
from headscope.sparse.settings import Settings
from headscope.studies.settings import MergeSettings, SparsitySettings


def sparsify(settings: Settings, folder: Path) -> Ending:
    """Make attention sparse: post-train a model so that few attention edges stay open and it is as good as before.

    Writes a Hugging Face folder that `load` and every command take like any other model, the adapter alone, the
    history as CSV and as a figure. Give the same command again to go on after a stop, or with more --steps.

    Examples: `headscope sparsify smollm2-135m --out sparse`,
    `accelerate launch --cpu --num_processes 2 -m headscope sparsify gpt2 --out sparse --text corpus.txt`
    """
    from headscope.studies.sparsity import study_sparsify

    return partial(show, study_sparsify(settings, out=folder), settings)


def sparsify_report(settings: SparsitySettings, folder: Path) -> Ending:
    """Compare a sparse model with its dense origin: open edges, cross-entropy, accuracies, and random gates.

    Example: `headscope sparsify-report smollm2-135m smollm2-135m-sparse`
    """
    from headscope.studies.sparsity import study_sparsity

    return partial(show, study_sparsity(settings, out=folder), settings)


def merge(settings: MergeSettings, folder: Path) -> Ending:
    """Write an adapter and its base as one model, which loads everywhere.

    Example: `headscope merge adapters/stories15M-sparse path/to/stories15M --out stories15M-sparse`
    """
    from headscope.records.files import refused

    with refused(folder):
        taken = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
    if taken:
        raise InputError(f"{folder} is there already and not empty. Give --out a new folder.")

    from headscope.models import load
    from headscope.sparse.saving import save_merged

    save_merged(load(settings.adapter, base=settings.base, **settings.loading), folder)
    if settings.as_json:
        return partial(print_json, {"model": str(folder)})
    return partial(line, "Model", str(folder))


def register(app: typer.Typer) -> None:
    add_study(app, Settings, sparsify, out="Folder to write; a run that stopped goes on there.")
    add_study(app, SparsitySettings, sparsify_report)
    add_study(app, MergeSettings, merge, out="New folder for the merged model.")
