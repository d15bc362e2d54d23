"""The commands about sparse attention: sparsify, sparsify-report, merge."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from headscope.cli.console import out, print_json
from headscope.cli.options import add_study
from headscope.errors import InputError
from headscope.sparse.settings import Settings
from headscope.studies.settings import SparsitySettings

# A held-out divergence above the training's by more than this share of the margin is worth a word.
HEART = 0.5


def sparsify(settings: Settings, folder: Path) -> None:
    """Make attention sparse: post-train a model so that few attention edges stay open and it is as good as before.

    Writes a Hugging Face folder that `load` and every command take like any other model, the adapter alone, the
    history as CSV and as a figure. Give the same command again to go on after a stop, or with more --steps.

    Examples: `headscope sparsify smollm2-135m --out sparse`,
    `accelerate launch --cpu --num_processes 2 -m headscope sparsify gpt2 --out sparse --text corpus.txt`
    """
    from headscope.progress import shown
    from headscope.studies.sparsity import study_sparsify

    with shown():
        history = study_sparsify(settings, out=folder)
    if settings.as_json:
        print_json({"run": str(folder), "history": history})
        return
    columns = ("Step", "Open edges", "per query", "Cross-entropy", "Dense", "Divergence", "In training", "Strength")
    table = Table(*columns, title=f"{settings.model} made sparse")
    picked = history if len(history) <= 12 else [history[i * (len(history) - 1) // 11] for i in range(12)]
    for row in picked:
        per_query = row["connectivity"] * (settings.length + 1) / 2
        table.add_row(
            f"{row['step']:.0f}", f"{row['connectivity']:.2%}", f"{per_query:.2f}", f"{row['ce']:.4f}",
            f"{row['dense_ce']:.4f}", f"{row['kl']:.4f}", f"{row['train']:.4f}",
            f"{row['strength']:.3g}",
        )  # fmt: skip
    out.print(table)
    last, constraint = history[-1], settings.constraint
    if last[constraint] > last["target"]:
        met = f"not met: {last[constraint]:.4f}, target {last['target']:.4f}; go on with more --steps"
        out.print(f"[yellow]The constraint ({constraint}) is {met}.")
    if constraint == "kl" and last["kl"] - last["train"] > HEART * settings.margin:
        out.print("[yellow]It is far lower in training: the text is being learned by heart; give more --windows.")
    out.print(f"Model: {folder}", soft_wrap=True, highlight=False)


def sparsify_report(settings: SparsitySettings, folder: Path) -> None:
    """Compare a sparse model with its dense origin: open edges, cross-entropy, accuracies, and random gates.

    Example: `headscope sparsify-report smollm2-135m smollm2-135m-sparse`
    """
    from headscope.progress import shown
    from headscope.studies.sparsity import study_sparsity

    with shown():
        report = study_sparsity(settings, out=folder)
    if settings.as_json:
        print_json({"run": str(folder), **report})
        return
    table = Table("", report["dense"], report["sparse"], "random gates", title="Dense against sparse")
    table.add_row("open edges", "100 %", f"{report['connectivity']:.2%}", f"{report['random connectivity']:.2%}")
    table.add_row("per query and head", *(f"{edges:.2f}" for edges in report["edges per query"].values()))
    ce = report["ce"]
    table.add_row("cross-entropy", f"{ce['dense']:.4f}", f"{ce['sparse']:.4f}", f"{ce['random gates']:.4f}")
    lost = report["ce above dense"]
    table.add_row("above dense", "", f"{lost['mean']:+.4f} [{lost['low']:+.4f}, {lost['high']:+.4f}]", "")
    for name, accuracy in report["accuracy"].items():
        table.add_row(f"accuracy on {name}", f"{accuracy['dense']:.3f}", f"{accuracy['sparse']:.3f}", "")
    out.print(table)
    layers = ", ".join(f"{rate:.1%}" for rate in report["per layer"])
    out.print(f"Open edges by layer: {layers}", highlight=False)
    out.print(f"Heads that never open: {len(report['never open'])}", highlight=False)
    out.print(f"Everything: {folder}", soft_wrap=True, highlight=False)


def merge(
    adapter: Annotated[Path, typer.Argument(help="Folder with adapter_config.json.", show_default=False)],
    base: Annotated[str, typer.Argument(help="The model it belongs to.", show_default=False)],
    to: Annotated[Path, typer.Option("--out", "-o", help="New folder for the merged model.")],
) -> None:
    """Write an adapter and its base as one sparse model, which loads everywhere.

    Example: `headscope merge adapters/stories15M-sparse path/to/stories15M --out stories15M-sparse`
    """
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise InputError(f"{to} is there already and not empty. Give --out a new folder.")

    from headscope.models import load
    from headscope.sparse.saving import write_model

    model = load(adapter, base=base)
    to.mkdir(parents=True, exist_ok=True)
    write_model(model.hf, model.tokenizer, to)
    out.print(f"Model: {to}", soft_wrap=True, highlight=False)


def register(app: typer.Typer) -> None:
    add_study(app, Settings, sparsify, out="Folder to write; a run that stopped goes on there.")
    add_study(app, SparsitySettings, sparsify_report)
    app.command()(merge)
