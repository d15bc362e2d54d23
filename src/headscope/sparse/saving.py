"""What a sparsifying run makes: the sparse model at the end, and adapters on the way down.

    OUT/config.json, ...            the sparse model, a Hugging Face folder
    OUT/adapter/                    with LoRA: the adapter alone, in float16
    OUT/milestones/10-percent/      with LoRA: the adapter when connectivity first fell below 10 %, with what it had
                                    reached in `reached.json`

Each folder is written whole or not at all, with the checksums of its files and the step it is of.
"""

from __future__ import annotations

import copy
import json
import os
import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import Tensor

from headscope.errors import InputError, SetupError
from headscope.models import Model
from headscope.models.adapters import with_adapter, write_gate
from headscope.models.attention import NAME
from headscope.models.sparse_gate import CONFIG_KEY, OFFSETS
from headscope.models.weights import quiet
from headscope.records.checksums import SUMS, damaged_files, write_sums
from headscope.records.files import refused, sweep, whole_folder
from headscope.schema import read_json
from headscope.sparse.checkpoint import Checkpoint
from headscope.sparse.offsets import gate_entry

# Connectivities, in percent, below which an adapter is kept.
MILESTONES = (30, 10, 5, 3, 2, 1)
REACHED = "reached.json"


def save_sparse(student: Any, model: Model, checkpoint: Checkpoint) -> None:
    """Write the sparse model, and with LoRA its adapter, into the run's folder."""
    folder, settings = checkpoint.folder, checkpoint.settings
    try:
        if not settings.lora_rank:
            setattr(student.config, CONFIG_KEY, gate_entry(student, settings.bias))
            write_model(student, model.tokenizer, folder, step=checkpoint.step)
            return
        adapter = folder / "adapter"
        shutil.rmtree(adapter, ignore_errors=True)
        _write_adapter(student, model, checkpoint, adapter)
        merged = with_adapter(copy.deepcopy(model.hf), adapter)
        write_model(merged, model.tokenizer, folder, step=checkpoint.step)
    except (OSError, SafetensorError) as error:
        raise SetupError(
            f"The sparse model could not be written: {error}. The checkpoint of step {checkpoint.step} is kept in "
            f"{folder}; free some space and give the same command again."
        ) from error


def save_merged(model: Model, to: Path) -> None:
    """A sparse model into a folder of its own: a new one is there whole or not at all."""
    with refused(to):
        to.parent.mkdir(parents=True, exist_ok=True)
        sweep(to.parent, to.name)
        try:
            if to.is_dir():
                write_model(model.hf, model.tokenizer, to)
                return
            with whole_folder(to.parent, to.name) as scratch:
                write_model(model.hf, model.tokenizer, scratch)
                os.rename(scratch, to)
        except SafetensorError as error:
            raise OSError(str(error)) from error


def save_milestone(student: Any, model: Model, checkpoint: Checkpoint, row: Mapping[str, float]) -> None:
    """Keep the adapter if connectivity is below a milestone for the first time. (All weights would be a model each.)"""
    below = [percent for percent in MILESTONES if 100 * row["connectivity"] < percent]
    folder = checkpoint.folder / "milestones"
    passed = [percent for percent in MILESTONES if (folder / f"{percent}-percent").exists()]
    if not checkpoint.settings.lora_rank or not below or (passed and min(passed) <= below[-1]):
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write_adapter(student, model, checkpoint, folder / f"{below[-1]}-percent", reached=row)
    except (OSError, SafetensorError) as error:
        raise SetupError(
            f"The milestone of {below[-1]} % could not be written: {error}. The checkpoint of step {checkpoint.step} "
            f"is kept in {checkpoint.folder}; free some space and give the same command again."
        ) from error


def milestones(run: Path) -> list[tuple[Path, dict[str, float]]]:
    """The adapters that a run has kept on its way down, and what each had reached; the first kept comes first."""
    folders = [run / "milestones" / f"{percent}-percent" for percent in MILESTONES]
    found = [folder for folder in folders if (folder / REACHED).is_file()]
    for folder in found:
        if damaged := damaged_files(folder):
            raise InputError(f"{folder / damaged[0]} is damaged. Remove {folder}, or train again in another --out.")
    return [(folder, read_json(folder / REACHED, dict[str, int | float])) for folder in found]


def _write_adapter(
    student: Any, model: Model, checkpoint: Checkpoint, to: Path, reached: Mapping[str, float] | None = None
) -> None:
    with whole_folder(to.parent) as scratch:
        # The base belongs to the user: the adapter names it and its weights' hash.
        student.peft_config["default"].base_model_name_or_path = model.name
        halves = {n: p.detach().half() for n, p in student.named_parameters() if p.requires_grad}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            student.save_pretrained(str(scratch), state_dict=_without_offsets(halves), save_embedding_layers=False)
        (scratch / "README.md").unlink(missing_ok=True)
        write_gate(scratch, gate_entry(student, checkpoint.settings.bias), checkpoint.base_sha256)
        if reached is not None:
            (scratch / REACHED).write_text(json.dumps(reached, indent=2) + "\n")
        for file in scratch.iterdir():
            file.chmod(0o644)
        write_sums(scratch, step=checkpoint.step)
        os.rename(scratch, to)


def _without_offsets(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The config keeps the gates' offsets: a plain model class has no place for them."""
    return {name: tensor for name, tensor in state.items() if not name.endswith(OFFSETS)}


def write_model(hf: Any, tokenizer: Any, folder: Path, **about: Any) -> None:
    """A sparse model as a Hugging Face folder: made whole beside its place, then moved there, checksums last.
    about: what else is noted with the checksums."""
    with whole_folder(folder) as scratch, quiet():
        hf.save_pretrained(scratch, state_dict=_without_offsets(hf.state_dict()))
        tokenizer.save_pretrained(scratch)
        # transformers takes the attention implementation from the config file, but does not write it there.
        config = json.loads((scratch / "config.json").read_text())
        (scratch / "config.json").write_text(json.dumps({**config, "attn_implementation": NAME}, indent=2) + "\n")
        for path in scratch.iterdir():
            path.chmod(0o644)
        write_sums(scratch, **about)
        for path in sorted(scratch.iterdir(), key=lambda path: path.name == SUMS):
            os.replace(path, folder / path.name)
