"""LoRA adapters: `adapter_config.json` and `adapter_model.safetensors` as peft writes them. Those that turn a dense
model into its sparse variant have `headscope_gate.json` beside them, with the gate (its bias, and offsets where it has
learned some) and the SHA-256 of the base's weights."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import safe_open
from transformers import PreTrainedModel

from headscope.errors import InputError
from headscope.models.builtin import folder_of
from headscope.models.model import Model, fingerprint
from headscope.models.sparse_gate import CONFIG_KEY, refuse_odd_gate
from headscope.records.checksums import damaged_files
from headscope.schema import NAME, checked, read_json

WEIGHTS = "adapter_model.safetensors"
GATE_FILE = "headscope_gate.json"
FLOATS = ("F16", "BF16", "F32", "F64")


def is_adapter(folder: Path) -> bool:
    return (folder / "adapter_config.json").is_file() and not (folder / "config.json").is_file()


def base_of(folder: Path) -> str:
    """The name of the model that an adapter belongs to."""
    name = _json(folder / "adapter_config.json").get("base_model_name_or_path") or ""
    return checked(name, NAME, where=f"{folder / 'adapter_config.json'}: base_model_name_or_path")


def gate_of(folder: Path, base_sha256: str, n_layers: int) -> dict[str, Any]:
    """The gate of an adapter, as it stands in a config; it must belong to the weights with this SHA-256, and the
    adapter be whole."""
    if damaged := damaged_files(folder):
        raise InputError(
            f"{folder / damaged[0]} is damaged: it is not what was written there. Fetch the adapter again."
        )
    kind = _json(folder / "adapter_config.json").get("peft_type")
    if kind != "LORA":
        raise InputError(
            f"{folder} is an adapter of type {kind}; expected LORA, which is what Headscope makes and merges."
        )
    if not (folder / WEIGHTS).is_file():
        there = next((f", found {path.name}, a pickle, which can run code" for path in folder.glob("*.bin")), "")
        raise InputError(f"{folder} has no {WEIGHTS}: expected the adapter's weights there{there}.")
    gate = _json(folder / GATE_FILE)
    belongs = gate.pop("base_sha256", None)
    refuse_odd_gate(gate, str(folder / GATE_FILE), n_layers)
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
    if not is_adapter(folder) or not (folder / GATE_FILE).is_file():
        raise InputError(f"{name} is no adapter with {GATE_FILE}, as sparsify writes it.")
    gate = gate_of(folder, base.fingerprint(), base.n_layers)
    rank, wanted = _json(folder / "adapter_config.json").get("r"), student.peft_config["default"].r
    if rank != wanted:
        raise InputError(f"The adapter in {folder} has rank {rank}, not {wanted}: give --lora-rank {rank}.")
    from peft import load_peft_weights, set_peft_model_state_dict

    with _told(folder):
        weights = {key: value.float() for key, value in load_peft_weights(str(folder), device="cpu").items()}
        set_peft_model_state_dict(student, weights)
        _refuse_gaps(student, folder)
    return gate.get("offsets")


def with_adapter(hf: PreTrainedModel, folder: Path) -> PreTrainedModel:
    """The base model with the adapter's changes added to its weights, and gated where the adapter is one of ours.
    `hf` itself is changed."""
    layers = hf.config.get_text_config().num_hidden_layers
    gate = gate_of(folder, fingerprint(hf), layers) if (folder / GATE_FILE).is_file() else None
    from peft import PeftModel

    with _told(folder), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        joined: Any = PeftModel.from_pretrained(hf, str(folder))
        _refuse_gaps(joined, folder)
        merged = joined.merge_and_unload()
    if gate is not None:
        setattr(merged.config, CONFIG_KEY, gate)
    return merged


def _refuse_gaps(joined: Any, folder: Path) -> None:
    """Every tensor of the adapter must be in its file, in its shape, and nothing else: peft leaves what is missing at
    zero, which is no change at all, and passes over what it does not know."""
    from peft import get_peft_model_state_dict

    wanted = {name: tuple(tensor.shape) for name, tensor in get_peft_model_state_dict(joined).items()}
    with safe_open(folder / WEIGHTS, "pt") as file:
        parts = {name: file.get_slice(name) for name in file.keys()}
        found = {name: tuple(part.get_shape()) for name, part in parts.items()}
        whole_numbers = [name for name, part in parts.items() if part.get_dtype() not in FLOATS]
    wrong = sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))
    if wrong or whole_numbers:
        raise InputError(
            f"{folder / WEIGHTS} does not belong to its adapter_config.json: of {len(wanted)} tensors that the base "
            f"needs, {len(wanted.keys() & found.keys() - set(wrong))} are there; the first that is missing, unknown, "
            f"of another shape or not of floats is {[*wrong, *whole_numbers][0]}."
        )


@contextmanager
def _told(folder: Path) -> Iterator[None]:
    """What peft makes of a broken adapter is anybody's guess: all of it is about the input."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        said = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise InputError(f"The adapter in {folder} cannot be read: {said}") from error


def write_gate(folder: Path, gate: dict[str, Any], base_sha256: str) -> None:
    (folder / GATE_FILE).write_text(json.dumps({**gate, "base_sha256": base_sha256}, indent=2) + "\n")


def _json(path: Path) -> dict[str, Any]:
    """A file that belongs to every adapter."""
    return checked(read_json(path, expected="a file of an adapter"), dict[str, Any], where=str(path))
