"""The commands about sparse attention: sparsify, sparsify-report, merge."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from headscope.cli.console import AsJson, Out, default_folder, out, print_json
from headscope.errors import InputError

Folder = Annotated[Path, typer.Option("--out", "-o", help="Folder to write; a run that stopped goes on there.")]
Text = Annotated[
    str,
    typer.Option(help="Text: `self` (the model writes it), a file, a folder, a data set's name; several by commas."),
]


# A held-out divergence above the training's by more than this share of the margin is worth a word.
HEART = 0.5


def option(text: str, **more) -> typer.models.OptionInfo:
    return typer.Option(help=text, **more)


def sparsify(
    model: Annotated[str, typer.Argument(help="A built-in name, folder, GGUF file or hub id.", show_default=False)],
    to: Folder,
    text: Text = "self",
    top_p: Annotated[
        float, option("How the model writes `self`: from the likeliest tokens of this probability together.")
    ] = 0.9,
    windows: Annotated[int, option("Windows of text to train on; few are learned by heart.")] = 8192,
    length: Annotated[int, option("Tokens in a window.")] = 64,
    steps: Annotated[int, option("Training steps; more steps can be asked of a finished run.")] = 1000,
    batch: Annotated[int, option("Windows in a step, over all processes.")] = 16,
    positions: Annotated[
        float, option("Share of a window's positions, drawn anew in every step, at which the models are compared.")
    ] = 0.5,
    vocabulary: Annotated[
        str, option("Tokens on which they are compared: `all`, or those `seen` in the text, which is quicker.")
    ] = "all",
    accumulate: Annotated[int, option("Parts in which a process runs its share of a step.")] = 1,
    lr: Annotated[float, option("Learning rate; about 3e-5 for full fine-tuning (--lora-rank 0).")] = 1e-3,
    lr_end: Annotated[float, option("Learning rate at the last step, reached in a straight line.")] = 3e-5,
    warmup: Annotated[int, option("Steps in which the learning rate rises.")] = 20,
    clip: Annotated[float, option("Norm to which gradients are clipped.")] = 1.0,
    lora_rank: Annotated[int, option("Rank of the adapters; 0 trains all weights.")] = 16,
    start: Annotated[
        str, option("An adapter of the same model and rank to begin from: its folder, or a built-in sparse model.")
    ] = "",
    offset_lr: Annotated[
        float, option("Learning rate of the gates' learned offsets, as a multiple of --lr; 0 learns none.")
    ] = 0.0,
    penalty: Annotated[
        str, option("What is pressed down: the `mean` share of open edges, `edges` per query, or the heads' `sqrt`.")
    ] = "mean",
    average: Annotated[int, option("Steps over which the weights are averaged for evaluation and at the end.")] = 0,
    constraint: Annotated[str, option("What holds: `kl` to the dense model, or cross-entropy (`ce`).")] = "kl",
    margin: Annotated[float, option("How far the constraint may exceed the dense model, in nats.")] = 0.05,
    margin_start: Annotated[
        float, option("The margin at the first step, which falls to --margin in the first half.")
    ] = 0.2,
    distill: Annotated[float, option("Weight of the divergence from the dense model as a loss beside `ce`.")] = 0.0,
    strength: Annotated[float, option("First strength of the penalty on open gates.")] = 0.1,
    rate: Annotated[float, option("How fast the strength moves; 0 keeps it as it is given.")] = 0.05,
    bias: Annotated[float, option("Gate bias: positive opens gates.")] = 0.0,
    noise: Annotated[float, option("Scale of the gates' noise at the first step; 1 is the paper's.")] = 0.0,
    noise_end: Annotated[float, option("Scale of the gates' noise at the last step.")] = 0.0,
    temperature: Annotated[
        float, option("Temperature of the gates' gradient and expected fraction at the first step.")
    ] = 1.0,
    temperature_end: Annotated[float, option("The same at the last step.")] = 1.0,
    held_out: Annotated[int, option("Windows kept for evaluation.")] = 128,
    every: Annotated[int, option("Steps between evaluations, each with a checkpoint.")] = 50,
    checkpointing: Annotated[
        bool, typer.Option("--checkpointing", help="Gradient checkpointing: less memory, more time.")
    ] = False,
    seed: Annotated[int, option("Seed of text, order, adapters and noise.")] = 0,
) -> None:
    """Make attention sparse: post-train a model so that few attention edges stay open and it is as good as before.

    Writes a Hugging Face folder that `load` and every command take like any other model, the adapter alone, the
    history as CSV and as a figure. Give the same command again to go on after a stop, or with more --steps.

    Examples: `headscope sparsify smollm2-135m --out sparse`,
    `accelerate launch --cpu --num_processes 2 -m headscope sparsify gpt2 --out sparse --text corpus.txt`
    """
    from headscope.progress import shown
    from headscope.sparse.settings import Settings

    given = {name: value for name, value in locals().items() if name in Settings.__dataclass_fields__}
    settings = Settings(**given)

    from headscope.studies.sparsity import study_sparsify

    with shown():
        history = study_sparsify(model, out=to, settings=settings)
    columns = ("Step", "Open edges", "per query", "Cross-entropy", "Dense", "Divergence", "In training", "Strength")
    table = Table(*columns, title=f"{model} made sparse")
    picked = history if len(history) <= 12 else [history[i * (len(history) - 1) // 11] for i in range(12)]
    for row in picked:
        table.add_row(
            f"{row['step']:.0f}", f"{row['connectivity']:.2%}", f"{row['connectivity'] * (length + 1) / 2:.2f}",
            f"{row['ce']:.4f}", f"{row['dense_ce']:.4f}", f"{row['kl']:.4f}", f"{row['train']:.4f}",
            f"{row['strength']:.3g}",
        )  # fmt: skip
    out.print(table)
    last = history[-1]
    if last[constraint] > last["target"]:
        met = f"not met: {last[constraint]:.4f}, target {last['target']:.4f}; go on with more --steps"
        out.print(f"[yellow]The constraint ({constraint}) is {met}.")
    if constraint == "kl" and last["kl"] - last["train"] > HEART * margin:
        out.print("[yellow]It is far lower in training: the text is being learned by heart; give more --windows.")
    out.print(f"Model: {to}", soft_wrap=True, highlight=False)


def sparsify_report(
    dense: Annotated[str, typer.Argument(help="The dense model.", show_default=False)],
    sparse: Annotated[str, typer.Argument(help="Its sparse variant.", show_default=False)],
    to: Out = None,
    task: Annotated[
        str, option("Tasks to compare accuracies on; empty for none.")
    ] = "ioi,greater-than,docstring,ioi-long",
    text: Text = "self",
    windows: Annotated[int, option("Windows of text.", min=1)] = 128,
    length: Annotated[int, option("Tokens in a window.", min=2)] = 64,
    n: Annotated[int, option("Prompts per task.", min=1)] = 200,
    seed: Annotated[int, option("Seed of text and prompts; not the one of the training.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Compare a sparse model with its dense origin: open edges, cross-entropy, accuracies, and random gates.

    Example: `headscope sparsify-report smollm2-135m smollm2-135m-sparse`
    """
    from headscope.progress import shown
    from headscope.studies.sparsity import study_sparsity

    options = {
        "tasks": [name.strip() for name in task.split(",") if name.strip()], "text": text, "count": windows,
        "length": length, "n": n, "seed": seed,
    }  # fmt: skip
    folder = to or default_folder("sparsify-report", {"models": [dense, sparse], **options})
    with shown():
        report = study_sparsity(dense, sparse, out=folder, **options)
    if as_json:
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
    app.command()(sparsify)
    app.command("sparsify-report")(sparsify_report)
    app.command()(merge)
