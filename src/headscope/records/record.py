"""A record: frozen, NumPy inside, saved as one safetensors file: arrays as tensors, everything else as JSON in its
metadata. Nothing is ever pickled. Two records are equal if they are of one kind and hold the same; NaN equals NaN."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from headscope.errors import InputError
from headscope.records.files import write_bytes
from headscope.records.showing import Shown

FORMAT = 1


@dataclass(frozen=True)
class Record(Shown):
    """Saving, loading, comparing and showing, common to all records."""

    def __init_subclass__(cls) -> None:
        # Found in the class itself, so that `dataclass` does not put its own there, which cannot compare arrays.
        cls.__eq__ = Record.__eq__

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return all(_equal(getattr(self, f.name), getattr(other, f.name)) for f in fields(self))

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


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_equal(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(_equal, a, b))
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return np.array_equal(a, b, equal_nan=True)
    return a is b or bool(a == b) or (a != a and b != b)
