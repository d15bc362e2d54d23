"""Reading a run folder for people: what is missing or damaged becomes a note, and the rest is read all the same."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from headscope.errors import InputError
from headscope.records import Record
from headscope.runs.run import read_manifest

R = TypeVar("R", bound=Record)
T = TypeVar("T")

EMPTY: dict[str, Any] = {"command": "", "settings": {}, "models": {}, "timings": {}, "files": [], "versions": {}}


class Reading:
    """A run folder, and what is to be said about its files. within: files elsewhere are not read, through links
    neither."""

    def __init__(self, folder: Path, *, within: Path | None = None):
        self.folder = folder
        self.within = within
        self.notes: list[str] = []
        try:
            self.manifest = {**EMPTY, **read_manifest(folder)}
            if odd := [name for name, part in EMPTY.items() if not isinstance(self.manifest[name], type(part))]:
                raise InputError(f"{folder / 'manifest.json'} is no manifest of a run: its {odd[0]} cannot be read.")
        except InputError as error:
            self.manifest = dict(EMPTY)
            self.notes.append(_short(error, folder))

    @property
    def state(self) -> str:
        if not self.manifest["command"]:
            return "damaged"
        return "finished" if self.manifest.get("finished") else "going on"

    def names(self, start: str, ending: str = ".safetensors") -> list[str]:
        """Files of the run, in the order in which they were finished."""
        files = [str(name) for name in self.manifest["files"]]
        return [name for name in files if name.startswith(start) and name.endswith(ending)]

    def records(self, start: str, kind: type[R]) -> dict[str, R]:
        """Records by the names of their files."""
        found = {name: self._try(name, lambda name=name: kind.load(self.folder / name)) for name in self.names(start)}
        return {name: record for name, record in found.items() if record is not None}

    def json(self, name: str) -> Any:
        """What a JSON file holds; None, and a note, where it cannot be read."""
        return self._try(name, lambda: json.loads((self.folder / name).read_text(encoding="utf-8")))

    def rows(self, name: str) -> list[dict[str, Any]]:
        """The rows of a CSV file, numbers as numbers; none where the run has no such file (yet)."""
        if name not in self.manifest["files"]:
            return []

        def read() -> list[dict[str, Any]]:
            text = (self.folder / name).read_text(encoding="utf-8")
            rows = list(csv.DictReader(io.StringIO(text)))
            # (DictReader gives what a row has too much or too little of the name or value None.)
            if not text.endswith("\n") or any(None in row or None in row.values() for row in rows):
                raise ValueError("a row is not whole")
            return [{column: _value(cell) for column, cell in row.items()} for row in rows]

        return self._try(name, read) or []

    def each(self, records: Mapping[str, R], make: Callable[[R], T]) -> list[T]:
        """What `make` gives for each record; one whose numbers do not fit together is noted and left out."""
        made = [self.made(name, lambda record=record: make(record)) for name, record in records.items()]
        return [one for one in made if one is not None]

    def made(self, name: str, make: Callable[[], T]) -> T | None:
        """What `make` gives; None, and a note about the file `name`, where its numbers are not as they should be."""
        return self._try(name, make)

    def _try(self, name: str, read: Callable[[], T]) -> T | None:
        path = (self.folder / name).resolve()
        if "/" in name or "\\" in name or (self.within is not None and not path.is_relative_to(self.within.resolve())):
            self.notes.append(f"{name} lies outside the run folder.")
            return None
        if not (self.folder / name).exists():
            self.notes.append(f"{name} is missing.")
            return None
        try:
            return read()
        except InputError as error:
            self.notes.append(_short(error, self.folder))
        except (OSError, ValueError, TypeError, KeyError, IndexError, AttributeError, csv.Error) as error:
            self.notes.append(f"{name} is damaged: {error}.")
        return None


def plain(value: Any) -> Any:
    """A value that JSON can carry: arrays as lists, and null for what is not a number. A float32 gets the fewest digits
    that give it back."""
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if isinstance(value, np.ndarray):
        return [plain(one) for one in value]
    if isinstance(value, np.generic) and value.dtype == np.float32:
        value = float(str(value))
    elif isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _value(cell: Any) -> Any:
    if not isinstance(cell, str) or cell in ("", "nan", "None"):
        return None
    if cell in ("True", "False"):
        return cell == "True"
    for kind in (int, float):
        try:
            return kind(cell)
        except ValueError:
            continue
    return cell


def _short(error: Exception, folder: Path) -> str:
    return str(error).replace(f"{folder}/", "")
