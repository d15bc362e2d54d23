"""What a sparsifying run is asked to do; every field is an option of `headscope sparsify`, its comment the help."""

from __future__ import annotations

from dataclasses import dataclass, fields

from headscope.errors import InputError

CONSTRAINTS = ("kl", "ce")
VOCABULARIES = ("all", "seen")
PENALTIES = ("mean", "edges", "sqrt")

# What a later sitting may change: how long, how hard and how closely to look, not what is trained on what.
TUNABLE = ("steps", "positions", "vocabulary", "lr", "lr_end", "margin", "margin_start", "strength", "every")


@dataclass(frozen=True)
class Settings:
    """Defaults are what worked on a 15M and a 135M model on a CPU; see docs/sparsify.md for the experiments."""

    text: str = "self"
    top_p: float = 0.9
    windows: int = 8192
    length: int = 64
    steps: int = 1000
    batch: int = 16
    positions: float = 0.5
    vocabulary: str = "all"
    accumulate: int = 1
    lr: float = 1e-3
    lr_end: float = 3e-5
    warmup: int = 20
    clip: float = 1.0
    lora_rank: int = 16
    start: str = ""
    # Learning rate of the gates' learned offsets, as a multiple of the other weights'; 0 learns none.
    offset_lr: float = 0.0
    # What is pressed down: the `mean` share of open edges, `edges` per query, or the heads' `sqrt` of those.
    penalty: str = "mean"
    # Steps over which the weights are averaged, for evaluation and for the model kept; 0 takes them as they are.
    average: int = 0
    constraint: str = "kl"
    margin: float = 0.05
    margin_start: float = 0.2
    distill: float = 0.0
    strength: float = 0.1
    rate: float = 0.05
    bias: float = 0.0
    noise: float = 0.0
    noise_end: float = 0.0
    temperature: float = 1.0
    temperature_end: float = 1.0
    held_out: int = 128
    every: int = 50
    seed: int = 0
    checkpointing: bool = False

    def __post_init__(self) -> None:
        if self.constraint not in CONSTRAINTS:
            raise InputError(f"Unknown constraint {self.constraint!r}. Known: {', '.join(CONSTRAINTS)}.")
        if self.vocabulary not in VOCABULARIES:
            raise InputError(f"Unknown vocabulary {self.vocabulary!r}. Known: {', '.join(VOCABULARIES)}.")
        if self.penalty not in PENALTIES:
            raise InputError(f"Unknown penalty {self.penalty!r}. Known: {', '.join(PENALTIES)}.")
        if self.vocabulary == "seen" and (self.constraint != "kl" or not self.lora_rank):
            raise InputError("--vocabulary seen needs --constraint kl and LoRA, which leaves the unembedding as it is.")
        positive = (
            "windows", "top_p", "steps", "batch", "positions", "accumulate", "lr", "lr_end", "clip", "margin",
            "margin_start", "strength", "temperature", "temperature_end", "held_out", "every",
        )  # fmt: skip
        for name in positive:
            if not getattr(self, name) > 0:
                raise InputError(f"--{name.replace('_', '-')} must be above 0, found {getattr(self, name)}.")
        for name in ("warmup", "lora_rank", "distill", "rate", "noise", "noise_end", "seed", "offset_lr", "average"):
            if getattr(self, name) < 0:
                raise InputError(f"--{name.replace('_', '-')} cannot be negative, found {getattr(self, name)}.")
        for name in ("top_p", "positions"):
            if getattr(self, name) > 1:
                raise InputError(f"--{name.replace('_', '-')} is a share, at most 1, found {getattr(self, name)}.")
        if self.start and not self.lora_rank:
            raise InputError("--start gives the first weights of an adapter, so --lora-rank must be above 0.")
        if self.length < 2:
            raise InputError(f"--length must be at least 2, found {self.length}.")
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

    def difference(self, other: dict) -> str:
        """What differs from the settings of an earlier sitting and must not; what it did not know had its default."""
        then = {f.name: other.get(f.name, f.default) for f in fields(self) if f.name not in TUNABLE}
        return ", ".join(
            f"{name} {was!r} then, {getattr(self, name)!r} now"
            for name, was in then.items()
            if was != getattr(self, name)
        )


def _between(first: float, last: float, share: float) -> float:
    return first + (last - first) * share
