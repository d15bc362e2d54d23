"""What each study is asked for. An option is a field here, and nowhere else: see `runs.settings` for what follows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from headscope.errors import InputError
from headscope.runs.settings import Drawn, Loaded, argument, option, seed
from headscope.sparse.settings import LENGTH, SEQUENCES, TEXT

MODEL = "A built-in name, folder, GGUF file or hub id."
MODELS = "Built-in names (see `headscope list models`), folders, GGUF files or hub ids."
PROMPTS = 100_000  # more would be held in memory at once
DRAWS = "Random rankings, drawn as a grey band, that multipliers are told against; 0 for none."
TASK = "Task names separated by commas (`headscope list tasks`), or a .jsonl file."


def known_task(name: str) -> None:
    """Misspelt tasks are told before a model is loaded."""
    from headscope.tasks import TASKS, is_task

    if not is_task(name):
        raise InputError(f"Unknown task {name!r}. Known: {', '.join(TASKS)}, or a path to a .jsonl file.")


def known_task_or_functions(name: str) -> None:
    if name != "functions":
        known_task(name)


@dataclass(frozen=True, kw_only=True)
class CheckSettings(Loaded):
    command = "check"
    model: str = argument(MODEL)
    tasks: tuple[str, ...] = option(help=TASK, flag="--task", short="-t", files="files", check=known_task_or_functions)
    n: int = option(200, "Prompt pairs per task.", short="-n", min=1, max=PROMPTS)
    seed: int = seed("Seed of the prompts.")


@dataclass(frozen=True, kw_only=True)
class AtlasSettings(Loaded):
    command = "atlas"
    model: str = argument(MODEL)
    runs: str = option("runs", "Folder in which runs of this model are looked for.")
    seed: int = seed("Seed of the random tokens.")

    def folder(self) -> Path:
        return Path("atlas.html")


@dataclass(frozen=True, kw_only=True)
class Swept(Drawn):
    """What the studies of heads and of edges share."""

    models: tuple[str, ...] = argument(MODELS)
    tasks: tuple[str, ...] = option(help=TASK, flag="--task", short="-t", files="files", check=known_task)
    fill: Literal["corrupt", "mean", "zero", "mean-position"] = option(
        "corrupt", "What replaces what is not kept: corrupt, mean, zero or mean-position."
    )
    baseline: Literal["corrupt", "empty"] = option(
        "corrupt", "What an explained effect of 0 is: the corrupt run, or the empty circuit, where every curve starts."
    )
    crossfit: bool = option(
        False, "Rank on one half of the prompts and run on the other, both ways: no prompt judges its own ranking."
    )
    signed: bool = option(
        False, "Rank from most positive to most negative, not by absolute score; gives CPR instead of CMD."
    )
    threshold: float = option(0.9, "Explained effect at which curves are compared.", above=0, max=1, identity=False)
    points: int | None = option(
        None, "Points of a curve at most, of the random reference too; the usual grid if not given.", min=2, max=10_000
    )
    seed: int = seed("Seed of the prompts.")


@dataclass(frozen=True, kw_only=True)
class HeadSettings(Swept):
    command = "heads"
    methods: tuple[str, ...] = option(
        ("patching",),
        "How to score heads, separated by commas (`headscope list methods`); options of a method behind colons, as in "
        "`attribution-ig:steps=10`.",
        flag="--method", short="-m",
    )  # fmt: skip
    rankings: tuple[Literal["task", "prompt"], ...] = option(
        ("task",), "Rank heads once per `task`, anew for every `prompt`, or both: task,prompt.", flag="--ranking"
    )
    draws: int = option(3, DRAWS, min=0, max=1000)
    n: int = option(100, "Prompt pairs per task.", short="-n", min=1, max=PROMPTS)
    top: int = option(10, "Heads to list.", min=1, max=100_000, terminal=True)


@dataclass(frozen=True, kw_only=True)
class EdgeSettings(Swept):
    command = "edges"
    methods: tuple[str, ...] = option(
        ("eap-ig",),
        "How to score edges, separated by commas: eap-ig, eap, patching, random; options of a method behind colons, as "
        "in `eap-ig:steps=10`.",
        flag="--method", short="-m",
    )  # fmt: skip
    split: Literal["none", "qkv"] = option("none", "A head is one reader (none), or its q, k and v are three (qkv).")
    choice: Literal["top", "greedy"] = option(
        "top", "Circuits, swept and exported, are the best edges (top) or grown from the logits (greedy)."
    )
    draws: int = option(1, DRAWS, min=0, max=1000, silent=True)
    connected: bool = option(False, "Leave edges that no path from embedding to logits uses out of the export.")
    n: int = option(50, "Prompt pairs per task.", short="-n", min=1, max=PROMPTS)
    top: int = option(10, "Edges to list.", min=1, max=100_000, terminal=True)


@dataclass(frozen=True, kw_only=True)
class RoleSettings(Drawn):
    command = "roles"
    models: tuple[str, ...] = argument(MODELS)
    tasks: tuple[str, ...] = option(help=TASK, flag="--task", short="-t", files="files", check=known_task)
    seeds: int = option(3, "Fits per model and task, each from gates of its own.", min=1, max=1000)
    preset: Literal["quick", "cpu", "paper"] = option(
        "cpu", "How thoroughly to fit: quick, cpu, or paper (days on a CPU)."
    )
    n: int = option(64, "Prompts per task that gates are fitted on.", short="-n", min=1, max=PROMPTS)
    held_out: int = option(24, "Prompts per task for the check and the curves.", min=1, max=PROMPTS)
    compare: int = option(8, "Held-out prompts on which every head is patched; 0: none.", min=0, max=PROMPTS)
    forget: str | None = option(
        None, "Also fit gates that keep each task and forget this one.", files="files", check=known_task
    )
    seed: int = seed("Seed of the prompts.")


@dataclass(frozen=True, kw_only=True)
class FunctionSettings(Drawn):
    """Defaults are what the paper does, or what a small model needs."""

    command = "functions"
    model: str = argument(MODEL)
    data: str | None = option(
        None, "Questions in the shape of CogQA (.json); the built-in ones if not given.", files="files"
    )
    functions: tuple[str, ...] = option(
        (), "Functions separated by commas; by default those of the paper's figure.", flag="--function"
    )
    rankings: tuple[Literal["probe", "ablation", "attribution"], ...] = option(
        ("probe", "attribution"), "How to find a function's heads: probe, ablation, attribution, or several.",
        flag="--ranking",
    )  # fmt: skip
    ks: tuple[int, ...] = option(
        (), "Numbers of heads to mask, separated by commas; by default 1, 2 and the paper's shares of all heads.",
        flag="--k", min=1, max=100_000,
    )  # fmt: skip
    draws: int = option(5, "Draws of random heads.", min=1, max=1000)
    n: int = option(50, "Test questions per function.", short="-n", min=1, max=PROMPTS)
    train: int = option(100, "Questions per function to find its heads with, at most.", min=2, max=PROMPTS)
    ablated: int = option(8, "Of these, questions for ablation and attribution.", min=1, max=PROMPTS)
    shots: int = option(4, "Few-shot examples in front of each question.", min=0, max=1000)
    factor: float = option(1e-3, "What masked heads are multiplied by.", min=0, max=1)
    steps: Literal["all", "decode"] = option("all", "Mask everywhere (all), or on decode steps only (decode).")
    max_new_tokens: int = option(8, "Longest answer, in tokens.", min=1, max=10_000)
    alphas: tuple[float, ...] = option(
        (-2.0, 2.0, 5.0), "How far to steer heads towards correct answers; empty: not at all.", flag="--alpha",
        empty=True,
    )  # fmt: skip
    comet: str = option(
        "auto", "COMET checkpoint (.ckpt file, folder, hub id); auto: the one set up; none.", identity=False
    )
    embedder: str = option(
        "all-MiniLM-L6-v2",
        "Sentence-transformers model (name, folder, hub id) for the accuracy's cosine and for Similarity; none.",
        identity=False,
    )
    seed: int = seed("Seed of the split, the probe and the random heads.")


@dataclass(frozen=True, kw_only=True)
class SparsitySettings(Drawn):
    command = "sparsify-report"
    dense: str = argument("The dense model.")
    sparse: str = argument("Its sparse variant.")
    tasks: tuple[str, ...] = option(
        ("ioi", "greater-than", "docstring", "ioi-long"), "Tasks to compare accuracies on; empty for none.",
        flag="--task", empty=True, files="files", check=known_task,
    )  # fmt: skip
    text: str = option("self", TEXT, files="folders")
    sequences: int = option(128, "Sequences of text.", min=1, max=SEQUENCES, formerly="--windows")
    length: int = option(64, "Tokens in a sequence.", min=2, max=LENGTH)
    n: int = option(200, "Prompts per task.", min=1, max=PROMPTS)
    seed: int = seed("Seed of text and prompts; not the one of the training.", 1)


@dataclass(frozen=True, kw_only=True)
class MergeSettings(Loaded):
    command = "merge"
    adapter: str = argument("Folder with adapter_config.json.")
    base: str = argument("The model it belongs to.")


@dataclass(frozen=True, kw_only=True)
class FrontierSettings(Drawn):
    command = "sparsity-frontier"
    dense: str = argument("The dense model.")
    trained: str = argument("The folder that `headscope sparsify` wrote.")
    tasks: tuple[str, ...] = option(help=TASK, flag="--task", short="-t", files="files", check=known_task)
    heads_by: str = option("patching", "Method that ranks heads.")
    edges_by: str = option("eap-ig", "Method that ranks edges.")
    text: str = option("self", "Text for the losses: `self`, a file, a folder, a data set.", files="folders")
    sequences: int = option(64, "Sequences of text.", min=1, max=SEQUENCES, formerly="--windows")
    length: int = option(64, "Tokens in a sequence.", min=2, max=LENGTH)
    threshold: float = option(0.9, "Explained effect at which curves are compared.", above=0, max=1, identity=False)
    n: int = option(50, "Prompt pairs per task.", short="-n", min=1, max=PROMPTS)
    seed: int = seed("Seed of text and prompts; not the one of the training.", 1)


@dataclass(frozen=True, kw_only=True)
class ReproduceSettings(Drawn):
    command = "reproduce"
    preset: Literal["quick", "full"] = option("quick", "quick (some minutes) or full (hours; it can be stopped).")
    only: tuple[Literal["000", "001", "002", "003", "004", "sparse"], ...] = option(
        (), "Figures separated by commas: 000, 001, 002, 003, 004.", noun="figure"
    )
    models: tuple[str, ...] = option(
        ("smollm2-135m", "smollm2-135m-sparse"), "Models separated by commas: the dense one, then its sparse variant."
    )
    comet: str = option("auto", "COMET checkpoint for figure 003; auto: the one set up; none.", identity=False)
    show: bool = option(False, "Open the page in a browser at the end.", flag="--open", terminal=True)

    def folder(self) -> Path:
        return Path("runs") / f"reproduce-{self.preset}"
