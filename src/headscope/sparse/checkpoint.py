"""The state of a sparsifying run, from which it goes on after a stop.

    OUT/checkpoint.safetensors   trained weights, their averages, the optimiser's moments; settings, step, GECO and
                                 history as metadata
    OUT/history.csv              a row per evaluation

Each file is written whole or not at all; the checkpoint of before stays until the next one is whole. What the run makes
is in `saving.py`.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from headscope.errors import InputError, SetupError
from headscope.models import Model
from headscope.models.model import fingerprint
from headscope.records.files import whole_file, write_bytes
from headscope.sparse.objective import Geco
from headscope.sparse.settings import Settings

MOMENTS = ("exp_avg", "exp_avg_sq")


class Checkpoint:
    """The state of a run in its folder; made anew, or the one of an earlier sitting with the same settings."""

    def __init__(self, folder: Path, model: Model, settings: Settings):
        self.folder, self.settings = folder, settings
        self.path = folder / "checkpoint.safetensors"
        self.base_sha256 = fingerprint(model.hf)
        self.history: list[dict[str, float]] = []
        self.step = 0
        self._state: dict[str, Any] = {}
        if folder.exists() and not folder.is_dir():
            raise InputError(f"{folder} is a file; --out needs a folder.")
        if self.exists():
            self._read_state()
        elif folder.is_dir() and any(not path.name.startswith(".") for path in folder.iterdir()):
            raise InputError(f"{folder} is not empty and holds no checkpoint. Give --out a new or empty folder.")

    def exists(self) -> bool:
        return self.path.exists()

    @property
    def finished(self) -> bool:
        return self.step >= self.settings.steps and (self.folder / "config.json").exists()

    def _read_state(self) -> None:
        try:
            with safe_open(self.path, "pt") as file:
                self._state = json.loads(file.metadata()["headscope"])
        except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
            raise InputError(f"{self.path} is damaged or no checkpoint: {error}. Give another --out.") from error
        if difference := self.settings.difference(self._state["settings"]):
            raise InputError(
                f"{self.folder} holds a run with other settings: {difference}.\n"
                "Give the same settings to resume it, or another --out."
            )
        if self._state["base_sha256"] != self.base_sha256:
            raise InputError(f"{self.folder} was started from another model's weights. Give another --out.")
        self.step, self.history = self._state["step"], self._state["history"]

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
        # A strength that nothing moves is the one asked for now.
        strength = self._state["strength"] if geco.rate else geco.strength
        return self.step, replace(geco, strength=strength, average=self._state["average"])

    def save(
        self, step: int, named: Mapping[str, Tensor], means: Mapping[str, Tensor], optimizer: Any, geco: Geco
    ) -> None:
        state = getattr(optimizer, "optimizer", optimizer).state
        tensors = {f"weight.{name}": p.detach() for name, p in named.items()}
        tensors |= {f"mean.{name}": mean for name, mean in means.items()}
        for name, p in named.items():
            tensors |= {f"{m}.{name}": state[p][m] if p in state else torch.zeros_like(p) for m in MOMENTS}
        about = {
            "settings": asdict(self.settings), "step": step, "strength": geco.strength, "average": geco.average,
            "history": self.history, "base_sha256": self.base_sha256,
        }  # fmt: skip
        try:
            with whole_file(self.path) as path:
                save_file({k: v.contiguous() for k, v in tensors.items()}, path, {"headscope": json.dumps(about)})
            write_bytes(self.folder / "history.csv", _csv(self.history))
        except (OSError, SafetensorError, SetupError) as error:
            raise SetupError(
                f"Step {step} could not be saved: {error}\nThe checkpoint of step {self.step} is kept in "
                f"{self.folder}; free some space and give the same command again."
            ) from error
        self.step = step


def _csv(rows: list[dict[str, float]]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[-1]))
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()
