"""The state of a sparsifying run, from which it goes on after a stop.

    OUT/manifest.json            what was asked, as for every run
    OUT/checkpoint.safetensors   trained weights, their averages, the optimiser's moments; settings, step, GECO and
                                 history as metadata
    OUT/history.csv              a row per evaluation

Each file is written whole or not at all; the checkpoint of before stays until the next one is whole. One that is not
what the run saved is set aside, and the training begins anew. What the run makes is in `saving.py`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from pydantic import NonNegativeInt
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from headscope.errors import InputError, SetupError
from headscope.models import Model
from headscope.models.model import fingerprint
from headscope.progress import tell
from headscope.records import Table
from headscope.records.checksums import SUMS, damaged_files, read_sums, set_aside, sha256
from headscope.records.files import sweep, whole_file
from headscope.runs.run import Run, open_run
from headscope.schema import checked, parse
from headscope.sparse.objective import Geco
from headscope.sparse.settings import Settings

MOMENTS = ("exp_avg", "exp_avg_sq")


# What checkpoints of 0.1 call otherwise.
RENAMED = {"strength": "penalty_weight"}


@dataclass(frozen=True)
class State:
    """What a checkpoint says of itself, beside its tensors."""

    settings: dict[str, Any]
    step: NonNegativeInt
    penalty_weight: float
    average: float | None
    history: list[dict[str, int | float]]
    base_sha256: str


def _renamed(fields: dict[str, Any]) -> dict[str, Any]:
    return {RENAMED.get(name, name): value for name, value in fields.items()}


class Checkpoint:
    """The state of a run in its folder; made anew, or that of an earlier run with the same settings."""

    def __init__(self, folder: Path, model: Model, settings: Settings, run: Run | None = None):
        self.folder, self.settings, self.run = folder, settings, run
        self.path = folder / "checkpoint.safetensors"
        self.base_sha256 = fingerprint(model.hf)
        self.history: list[dict[str, float]] = []
        self.step = 0
        self._state: State
        if self.exists() and self._is_ours():
            self._read_state()

    def exists(self) -> bool:
        return self.path.exists()

    @property
    def finished(self) -> bool:
        """Whether the steps asked for are done, and the model (and adapter) of the last one is there, whole."""
        if self.step < self.settings.steps:
            return False
        made = [self.folder, *([self.folder / "adapter"] if self.settings.lora_rank else [])]
        wrong = [path for folder in made for path in self._not_made(folder)]
        if wrong:
            tell(f"{wrong[0]} is missing, damaged, or of another step than {self.step}. It is written again.")
        return not wrong

    def _not_made(self, folder: Path) -> list[Path]:
        if damaged := damaged_files(folder):
            return [folder / name for name in damaged]
        return [] if read_sums(folder).get("step") == self.step else [folder / SUMS]

    def _is_ours(self) -> bool:
        """Whether the checkpoint is the one that this run saved; another is set aside. (Of several processes the first
        looks. A run from before there were checksums has noted none.)"""
        name = self.path.name
        old = self.run is not None and name in self.run.manifest.files and not self.run.manifest.sha256s(name)
        if self.run is None or old or self.run.is_whole(name):
            return True
        set_aside(self.path, "is damaged or not of this run")
        return False

    def _read_state(self) -> None:
        try:
            with safe_open(self.path, "pt") as file:
                about, tensors = (file.metadata() or {}).get("headscope", "null"), set(file.keys())
            found = parse(about, dict[str, Any], where=str(self.path), expected="a checkpoint")
            self._state = checked(_renamed(found), State, where=str(self.path))
        except (SafetensorError, OSError, InputError) as error:
            raise InputError(f"{self.path} is damaged or no checkpoint: {error}\nGive another --out.") from error
        if not any(name.startswith("weight.") for name in tensors):
            raise InputError(f"{self.path} has no weights. Give another --out.")
        if self._state.base_sha256 != self.base_sha256:
            raise InputError(f"{self.folder} was started from another model's weights. Give another --out.")
        self.step, self.history = self._state.step, [_renamed(row) for row in self._state.history]

    def restore(
        self, named: Mapping[str, Tensor], means: Mapping[str, Tensor], optimizer: Any, geco: Geco
    ) -> tuple[int, Geco]:
        """Put weights, averages and moments back; the step and the GECO state to go on from."""
        with safe_open(self.path, "pt") as file, torch.no_grad():
            for name, parameter in named.items():
                parameter.copy_(file.get_tensor(f"weight.{name}"))
                optimizer.state[parameter] = {m: file.get_tensor(f"{m}.{name}").to(parameter.device) for m in MOMENTS}
                optimizer.state[parameter]["step"] = torch.tensor(float(self.step))
            for name, mean in means.items():
                mean.copy_(file.get_tensor(f"mean.{name}"))
        # A weight that nothing moves is the one asked for now.
        weight = self._state.penalty_weight if geco.rate else geco.weight
        return self.step, replace(geco, weight=weight, average=self._state.average)

    def save(
        self, step: int, named: Mapping[str, Tensor], means: Mapping[str, Tensor], optimizer: Any, geco: Geco
    ) -> None:
        state = getattr(optimizer, "optimizer", optimizer).state
        tensors = {f"weight.{name}": p.detach() for name, p in named.items()}
        tensors |= {f"mean.{name}": mean for name, mean in means.items()}
        for name, p in named.items():
            tensors |= {f"{m}.{name}": state[p][m] if p in state else torch.zeros_like(p) for m in MOMENTS}
        about = {
            "settings": asdict(self.settings), "step": step, "penalty_weight": geco.weight, "average": geco.average,
            "history": self.history, "base_sha256": self.base_sha256,
        }  # fmt: skip
        try:
            with whole_file(self.path) as path:
                save_file({k: v.contiguous() for k, v in tensors.items()}, path, {"headscope": json.dumps(about)})
                if self.run is not None:
                    self.run.expect(self.path.name, sha256(path))
            if self.run is not None:
                self.run.add(self.path.name)
            self.save_history()
        except (OSError, SafetensorError, SetupError) as error:
            there = self.path.exists()
            kept = f"The checkpoint of step {self.step} is kept in {self.folder}" if there else "None is kept"
            raise SetupError(
                f"Step {step} could not be saved: {error}\n{kept}; free some space and give the same command again."
            ) from error
        self.step = step

    def save_history(self) -> None:
        Table.of_dicts(self.history).save(self.folder / "history.csv")
        if self.run is not None:
            self.run.add("history.csv")


@contextmanager
def open_checkpoint(folder: Path, model: Model, settings: Settings) -> Iterator[Checkpoint]:
    """The state of a run in its folder, which is held meanwhile. (Of several processes the first keeps the folder.)"""
    if not is_first_process():
        yield Checkpoint(folder, model, settings)
        return
    with open_run(folder, settings) as run:
        sweep(folder / "milestones")
        run.note_model(settings.model, model.describe())
        checkpoint = Checkpoint(folder, model, settings, run)
        if checkpoint.history:
            # A run that was killed between checkpoint and table has an earlier table.
            checkpoint.save_history()
        yield checkpoint
        run.finish()


def is_first_process() -> bool:
    """Whether this is the only process, or the first that `accelerate launch` started."""
    return os.environ.get("RANK", "0") == "0"
