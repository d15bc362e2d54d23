"""LoRA adapters that turn a dense model into its sparse variant: `adapter_config.json` and `adapter_model.safetensors`
as peft writes them, and beside them `headscope_gate.json` with the gate (its bias, and offsets where it has learned
some) and the SHA-256 of the base's weights."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from headscope.errors import InputError
from headscope.models.builtin import folder_of
from headscope.models.model import Model, fingerprint
from headscope.models.sparse_gate import CONFIG_KEY

GATE_FILE = "headscope_gate.json"


def is_adapter(folder: Path) -> bool:
    return (folder / "adapter_config.json").is_file() and not (folder / "config.json").is_file()


def base_of(folder: Path) -> str:
    """The name of the model that an adapter belongs to."""
    return str(_json(folder / "adapter_config.json").get("base_model_name_or_path") or "")


def gate_of(folder: Path, base_sha256: str) -> dict[str, Any]:
    """The gate of an adapter, as it stands in a config; it must belong to the weights with this SHA-256."""
    gate = _json(folder / GATE_FILE)
    belongs = gate.pop("base_sha256", None)
    if base_sha256 != belongs:
        raise InputError(
            f"The adapter in {folder} belongs to other weights: its base {base_of(folder)} has SHA-256 "
            f"{str(belongs)[:12]}..., this one {base_sha256[:12]}..."
        )
    return gate


def start_from(student: Any, name: str, base: Model) -> list[str] | None:
    """Give a model with fresh adapters the weights of a finished adapter of the same base and rank; its gates' offsets,
    where it has learned some."""
    folder = folder_of(name)
    if not is_adapter(folder):
        raise InputError(f"{name} is no adapter: expected a folder with adapter_config.json, as sparsify writes it.")
    gate = gate_of(folder, base.fingerprint())
    rank, wanted = _json(folder / "adapter_config.json").get("r"), student.peft_config["default"].r
    if rank != wanted:
        raise InputError(f"The adapter in {folder} has rank {rank}, not {wanted}: give --lora-rank {rank}.")
    from peft import load_peft_weights, set_peft_model_state_dict

    try:
        weights = {key: value.float() for key, value in load_peft_weights(str(folder), device="cpu").items()}
        set_peft_model_state_dict(student, weights)
    except Exception as error:
        raise InputError(f"The adapter in {folder} cannot be read: {str(error).splitlines()[0][:200]}") from error
    return gate.get("offsets")


def with_adapter(hf: PreTrainedModel, folder: Path) -> PreTrainedModel:
    """The base model with the adapter's changes added to its weights, and gated. `hf` itself is changed."""
    gate = gate_of(folder, fingerprint(hf))
    from peft import PeftModel

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            merged: Any = PeftModel.from_pretrained(hf, str(folder)).merge_and_unload()
    except Exception as error:
        raise InputError(f"The adapter in {folder} cannot be read: {str(error).splitlines()[0][:200]}") from error
    setattr(merged.config, CONFIG_KEY, gate)
    return merged


def write_gate(folder: Path, gate: dict[str, Any], base_sha256: str) -> None:
    (folder / GATE_FILE).write_text(json.dumps({**gate, "base_sha256": base_sha256}, indent=2) + "\n")


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read as JSON: {error}. It belongs to every adapter.") from error
    if not isinstance(content, dict):
        raise InputError(f"{path} must hold a JSON object, found {type(content).__name__}.")
    return content
