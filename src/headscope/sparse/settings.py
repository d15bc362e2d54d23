"""What a sparsifying run is asked to do; every field is an option of `headscope sparsify`.

What a later run in the same folder may change is no part of its identity: how long, how hard and how closely to look,
not what is trained on what.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headscope.errors import InputError
from headscope.runs.settings import Drawn, argument, option, seed

TEXT = "Text: `self` (the model writes it), a file, a folder, a data set's name; several by commas."
# Ranges: text is held in memory, and no model here reads longer ones.
SEQUENCES, LENGTH = 10_000_000, 131_072


@dataclass(frozen=True, kw_only=True)
class Settings(Drawn):
    """Defaults are what worked on a 15M and a 135M model on a CPU; see docs/sparsify.md for the experiments."""

    command = "sparsify"
    # (From Python a loaded model is given.)
    model: str = argument("A built-in name, folder, GGUF file or hub id.", "", required=True)
    text: str = option("self", TEXT, files="folders")
    top_p: float = option(
        0.9, "How the model writes `self`: from the likeliest tokens of this probability together.", above=0, max=1
    )
    sequences: int = option(
        8192, "Sequences of text to train on; with few of them it overfits.", min=1, max=SEQUENCES, formerly="--windows"
    )
    length: int = option(64, "Tokens in a sequence.", min=2, max=LENGTH)
    steps: int = option(
        1000, "Training steps; more steps can be asked of a finished run.", min=1, max=10**8, identity=False
    )
    batch: int = option(16, "Sequences in a step, over all processes.", min=1, max=65_536)
    positions: float = option(
        0.5, "Share of a sequence's positions, drawn anew in every step, at which the models are compared.", above=0,
        max=1, identity=False,
    )  # fmt: skip
    vocabulary: Literal["all", "seen"] = option(
        "all", "Tokens on which they are compared: `all`, or those `seen` in the text, which is quicker.",
        identity=False,
    )  # fmt: skip
    accumulate: int = option(1, "Parts in which a process runs its share of a step.", min=1, max=65_536)
    lr: float = option(1e-3, "Learning rate; about 3e-5 for full fine-tuning (--lora-rank 0).", above=0, identity=False)
    lr_end: float = option(3e-5, "Learning rate at the last step, reached in a straight line.", above=0, identity=False)
    warmup: int = option(20, "Steps in which the learning rate rises.", min=0, max=10**8)
    clip: float = option(1.0, "Norm to which gradients are clipped.", above=0)
    lora_rank: int = option(16, "Rank of the adapters; 0 trains all weights.", min=0, max=4096)
    start: str = option(
        "", "An adapter of the same model and rank to begin from: its folder, or a built-in sparse model.",
        files="folders",
    )  # fmt: skip
    offset_lr: float = option(
        0.0, "Learning rate of the gates' learned offsets, as a multiple of --lr; 0 learns none.", min=0
    )
    penalty: Literal["mean", "edges", "sqrt"] = option(
        "mean", "What is pressed down: the `mean` share of open edges, `edges` per query, or the heads' `sqrt`."
    )
    average: int = option(
        0, "Steps over which the weights are averaged for evaluation and at the end.", min=0, max=10**8
    )
    constraint: Literal["kl", "ce"] = option("kl", "What holds: `kl` to the dense model, or cross-entropy (`ce`).")
    margin: float = option(0.05, "How far the constraint may exceed the dense model, in nats.", above=0, identity=False)
    margin_start: float = option(
        0.2, "The margin at the first step, which falls to --margin in the first half.", above=0, identity=False
    )
    distill: float = option(0.0, "Weight of the divergence from the dense model as a loss beside `ce`.", min=0)
    penalty_weight: float = option(
        0.1, "First weight of the penalty on open gates.", above=0, identity=False, formerly="--strength"
    )
    rate: float = option(0.05, "How fast that weight moves; 0 keeps it as it is given.", min=0)
    bias: float = option(0.0, "Gate bias: positive opens gates.")
    noise: float = option(0.0, "Scale of the gates' noise at the first step; 1 is the paper's.", min=0)
    noise_end: float = option(0.0, "Scale of the gates' noise at the last step.", min=0)
    temperature: float = option(
        1.0, "Temperature of the gates' gradient and expected fraction at the first step.", above=0
    )
    temperature_end: float = option(1.0, "The same at the last step.", above=0)
    held_out: int = option(128, "Sequences kept for evaluation.", min=1, max=SEQUENCES)
    every: int = option(50, "Steps between evaluations, each with a checkpoint.", min=1, max=10**8, identity=False)
    checkpointing: bool = option(False, "Gradient checkpointing: less memory, more time.")
    seed: int = seed("Seed of text, order, adapters and noise.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.vocabulary == "seen" and (self.constraint != "kl" or not self.lora_rank):
            raise InputError("--vocabulary seen needs --constraint kl and LoRA, which leaves the unembedding as it is.")
        if self.start and not self.lora_rank:
            raise InputError("--start gives the first weights of an adapter, so --lora-rank must be above 0.")
        if self.batch % self.accumulate:
            raise InputError(f"--batch {self.batch} cannot be divided into --accumulate {self.accumulate} equal parts.")

    def lr_at(self, step: int) -> float:
        """Up in the warm-up, then from the first rate to the last in a straight line: large steps get far, but hold
        the model away from what it could be with the gates it has."""
        warm = min(1.0, (step + 1) / max(1, self.warmup))
        return warm * _between(self.lr, self.lr_end, step / max(1, self.steps - 1))

    def margin_at(self, step: int) -> float:
        """From the first margin to the last over the first half of the steps, by equal factors: gates close quickly
        while the model may suffer, and it recovers from that sooner than it closes gates without suffering."""
        return self.margin_start * (self.margin / self.margin_start) ** min(1.0, 2 * step / self.steps)

    def noise_at(self, step: int) -> float:
        """From the first noise scale to the last, in a straight line over the steps."""
        return _between(self.noise, self.noise_end, step / max(1, self.steps - 1))

    def temperature_at(self, step: int) -> float:
        """From the first temperature of the gates to the last, by equal factors over the steps."""
        return self.temperature * (self.temperature_end / self.temperature) ** (step / max(1, self.steps - 1))


def _between(first: float, last: float, share: float) -> float:
    return first + (last - first) * share
