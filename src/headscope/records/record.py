"""A record: frozen, NumPy inside, saved as one safetensors file: arrays as tensors, everything else as JSON in its
metadata. Nothing is ever pickled."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Self

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from headscope.errors import InputError
from headscope.records.files import write_bytes

FORMAT = 1


@dataclass(frozen=True)
class Record:
    """Saving and loading, common to all records."""

    def save(self, path: str | Path) -> Path:
        arrays, rest = {}, {}
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, np.ndarray):
                arrays[f.name] = np.ascontiguousarray(value)
            else:
                rest[f.name] = value
        header = {"headscope": json.dumps({"record": type(self).__name__, "format": FORMAT, "fields": rest})}
        return write_bytes(Path(path), save(arrays, metadata=header))

    @classmethod
    def load(cls, path: str | Path) -> Self:
        try:
            with safe_open(path, framework="numpy") as file:
                header = json.loads((file.metadata() or {}).get("headscope", "null"))
                arrays = {name: file.get_tensor(name) for name in file.keys()}
        except (OSError, SafetensorError, ValueError) as error:
            raise InputError(f"{path} cannot be read: {error}. Expected a file written by Headscope.") from error
        found = header.get("record") if isinstance(header, dict) else None
        if found != cls.__name__:
            raise InputError(f"{path} holds {found or 'no record of Headscope'}; expected {cls.__name__}.")
        if header.get("format", FORMAT) > FORMAT:
            raise InputError(
                f"{path} was written by a newer version of Headscope (format {header['format']}; this one reads "
                f"{FORMAT}). Update Headscope."
            )
        try:
            return cls(**header["fields"], **arrays)
        except (KeyError, TypeError) as error:
            raise InputError(f"{path} is not a {cls.__name__} of this version of Headscope: {error}.") from error
