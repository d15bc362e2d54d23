"""A record: frozen, NumPy inside, saved as one safetensors file: arrays as tensors, everything else as JSON in its
metadata. Nothing is ever pickled. Two records are equal if they are of one kind and hold the same; NaN equals NaN.

A record holds finite numbers; of fields in which one may be missing (NaN) the class says why, and so does the file. An
array's shape is said in its type, `Annotated[np.ndarray, "P N"]`: a letter has one size throughout a record."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, get_args, get_origin, get_type_hints

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from headscope.errors import InputError
from headscope.records.files import write_bytes
from headscope.records.showing import Shown
from headscope.schema import checked, parse

FORMAT = 1


@dataclass(frozen=True)
class Record(Shown):
    """Saving, loading, comparing and showing, common to all records."""

    missing: ClassVar[dict[str, str]] = {}  # fields that may hold NaN, and why there is no number

    def __init_subclass__(cls) -> None:
        # Found in the class itself, so that `dataclass` does not put its own there, which cannot compare arrays.
        cls.__eq__ = Record.__eq__

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return all(_equal(getattr(self, f.name), getattr(other, f.name)) for f in fields(self))

    def refuse_odd(self, where: str) -> None:
        """Every field is of its type, arrays have shapes that fit together, and numbers are finite."""
        sizes: dict[str, int] = {}
        for name, hint in _hints(type(self)).items():
            value, letters = getattr(self, name), _letters(hint)
            if not letters:
                checked(value, hint, where=f"{where}: {name}")
            elif value is not None:
                _refuse_array(value, letters, sizes, f"{where}: {name}")
                if name not in self.missing and not np.isfinite(value).all():
                    odd = value[~np.isfinite(value)][0]
                    raise InputError(f"{where}: {name} must hold finite numbers, found {odd}.")

    def save(self, path: str | Path) -> Path:
        self.refuse_odd(f"This {type(self).__name__} cannot be saved")
        arrays, rest = {}, {}
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, np.ndarray):
                arrays[f.name] = np.ascontiguousarray(value)
            else:
                rest[f.name] = value
        about = {"record": type(self).__name__, "format": FORMAT, "fields": rest}
        if without := {name: why for name, why in self.missing.items() if _lacks(arrays.get(name))}:
            about["missing"] = without
        header = {"headscope": json.dumps(about)}
        return write_bytes(Path(path), save(arrays, metadata=header))

    @classmethod
    def load(cls, path: str | Path) -> Self:
        try:
            with safe_open(path, framework="numpy") as file:
                header = parse((file.metadata() or {}).get("headscope", "null"), where=str(path), expected="a record")
                arrays = {name: file.get_tensor(name) for name in file.keys()}
        except (OSError, SafetensorError, ValueError, TypeError, AttributeError, InputError) as error:
            raise InputError(f"{path} cannot be read: {error}. Expected a file written by Headscope.") from error
        found = header.get("record") if isinstance(header, dict) else None
        if found != cls.__name__:
            raise InputError(f"{path} holds {found or 'no record of Headscope'}; expected {cls.__name__}.")
        if checked(header.get("format", FORMAT), int, where=f"{path}: format") > FORMAT:
            raise InputError(
                f"{path} was written by a newer version of Headscope (format {header['format']}; this one reads "
                f"{FORMAT}). Update Headscope."
            )
        try:
            made = cls(**header["fields"], **arrays)
        except (KeyError, TypeError) as error:
            raise InputError(f"{path} is not a {cls.__name__} of this version of Headscope: {error}.") from error
        made.refuse_odd(str(path))
        return made


@cache
def _hints(record: type[Record]) -> dict[str, Any]:
    hints = get_type_hints(record, include_extras=True)
    return {f.name: hints[f.name] for f in fields(record)}


def _letters(hint: Any) -> list[list[str]]:
    """The shapes that an array may have, as lists of letters; none for what is no array."""
    if get_origin(hint) is Annotated:
        return (
            [shape.split() for shape in hint.__metadata__[0].split(" or ")] if get_args(hint)[0] is np.ndarray else []
        )
    return [shape for part in get_args(hint) for shape in _letters(part)]


def _refuse_array(value: Any, shapes: list[list[str]], sizes: dict[str, int], where: str) -> None:
    shape = getattr(value, "shape", None)
    letters = next((letters for letters in shapes if shape is not None and len(letters) == len(shape)), None)
    if letters is None or shape is None:
        wanted = " or ".join(f"({', '.join(letters)})" for letters in shapes)
        raise InputError(f"{where} must be an array {wanted}, found {'nothing such' if shape is None else shape}.")
    for letter, size in zip(letters, shape, strict=True):
        if sizes.setdefault(letter, size) != size:
            raise InputError(f"{where} must have {letter} = {sizes[letter]}, as other arrays of it, found {shape}.")


def _lacks(array: np.ndarray | None) -> bool:
    return array is not None and not np.isfinite(array).all()


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_equal(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(_equal, a, b))
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return np.array_equal(a, b, equal_nan=True)
    return a is b or bool(a == b) or (a != a and b != b)
