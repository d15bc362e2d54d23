"""LoRA adapters that turn a dense model into its sparse variant: `adapter_config.json` and `adapter_model.safetensors`
as peft writes them, and beside them `headscope_gate.json` with the gate and the SHA-256 of the base's weights."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from headscope.errors import InputError
from headscope.models.model import fingerprint
from headscope.sparse_gate import CONFIG_KEY

GATE_FILE = "headscope_gate.json"


def is_adapter(folder: Path) -> bool:
    return (folder / "adapter_config.json").is_file() and not (folder / "config.json").is_file()


def base_of(folder: Path) -> str:
    """The name of the model that an adapter belongs to."""
    return str(_json(folder / "adapter_config.json").get("base_model_name_or_path") or "")


def with_adapter(hf: PreTrainedModel, folder: Path) -> PreTrainedModel:
    """The base model with the adapter's changes added to its weights, and gated. `hf` itself is changed."""
    gate = _json(folder / GATE_FILE)
    found = fingerprint(hf)
    if found != gate.get("base_sha256"):
        raise InputError(
            f"The adapter in {folder} belongs to other weights: its base {base_of(folder)} has SHA-256 "
            f"{str(gate.get('base_sha256'))[:12]}..., this one {found[:12]}..."
        )
    from peft import PeftModel

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            merged: Any = PeftModel.from_pretrained(hf, str(folder)).merge_and_unload()
    except Exception as error:
        raise InputError(f"The adapter in {folder} cannot be read: {str(error).splitlines()[0][:200]}") from error
    setattr(merged.config, CONFIG_KEY, {"bias": gate["bias"]})
    return merged


def write_gate(folder: Path, *, bias: float, base_sha256: str) -> None:
    (folder / GATE_FILE).write_text(json.dumps({"bias": bias, "base_sha256": base_sha256}, indent=2) + "\n")


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read as JSON: {error}. It belongs to every adapter.") from error
    if not isinstance(found, dict):
        raise InputError(f"{path} must hold a JSON object, found {type(found).__name__}.")
    return found
