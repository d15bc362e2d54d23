"""Arrays that are kept for a while outside of a run's units (a fit under way, text in the cache): one safetensors file
that carries the SHA-256 of its arrays and of what is said about them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from headscope.records.checksums import sealed, unsealed
from headscope.records.files import write_bytes


def write_sealed(path: Path, arrays: Mapping[str, np.ndarray], about: dict[str, Any]) -> None:
    whole = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    said = sealed({"about": about, "arrays": _digest(whole)})
    write_bytes(path, save(whole, metadata={"headscope": json.dumps(said)}))


def read_sealed(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Arrays, and what is said about them. Raises ValueError for whatever is not as it was written."""
    try:
        with safe_open(path, framework="numpy") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}
            said = unsealed(json.loads(file.metadata()["headscope"]))
            if said["arrays"] != _digest(arrays):
                raise ValueError("its checksum is that of something else")
            return arrays, said["about"]
    except (OSError, SafetensorError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"it cannot be read ({error})") from error


def is_old(path: Path) -> bool:
    """Whether a file is whole as far as one can tell, and from before there were checksums."""
    try:
        with safe_open(path, framework="numpy") as file:
            return not file.metadata()
    except (OSError, SafetensorError):
        return False


def _digest(arrays: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for name in sorted(arrays):
        digest.update(f"{name} {arrays[name].dtype} {arrays[name].shape}".encode())
        digest.update(arrays[name].tobytes())
    return digest.hexdigest()
