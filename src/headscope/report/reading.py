"""Reading a run folder for people: what is missing or damaged becomes a note, and the rest is read all the same."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from safetensors import safe_open

from headscope.errors import InputError
from headscope.records import Check, Record
from headscope.records.checksums import sha256
from headscope.runs.manifest import Manifest
from headscope.schema import checked, parse, read_json

R = TypeVar("R", bound=Record)
T = TypeVar("T")

EMPTY: dict[str, Any] = {"command": "", "settings": {}, "models": {}, "timings": {}, "files": [], "versions": {}}


class Reading:
    """A run folder, and what is to be said about its files. within: files elsewhere are not read, through links
    neither. strict: whatever is to be said is an error."""

    def __init__(self, folder: Path, *, within: Path | None = None, strict: bool = False):
        self.folder = folder
        self.within = within
        self.strict = strict
        self.notes: list[str] = []
        self._sha256s: Callable[[str], list[str]] = lambda name: []
        try:
            read = Manifest.read(folder)
            self.manifest, self._sha256s = {**EMPTY, **read.as_dict()}, read.sha256s
        except InputError as error:
            self.manifest = dict(EMPTY)
            self._note(_short(error, folder))

    @property
    def state(self) -> str:
        if not self.manifest["command"]:
            return "damaged"
        return "finished" if self.manifest.get("finished") else "going on"

    @property
    def shown(self) -> dict[str, Any]:
        """How the run is to be shown: what its command was asked for that changes no record, such as the threshold."""
        return self.manifest.get("shown") or {}

    def names(self, start: str, ending: str = ".safetensors") -> list[str]:
        """Files of the run, in the order in which they were finished."""
        files = [str(name) for name in self.manifest["files"]]
        return [name for name in files if name.startswith(start) and name.endswith(ending)]

    def records(self, start: str, kind: type[R]) -> dict[str, R]:
        """Records by the names of their files."""
        records = {name: self._try(name, lambda name=name: kind.load(self.folder / name)) for name in self.names(start)}
        return {name: record for name, record in records.items() if record is not None}

    def json(self, name: str) -> Any:
        """What a JSON file holds; None, and a note, where it cannot be read."""
        return self._try(name, lambda: self._load(name))

    def _load(self, name: str) -> Any:
        return read_json(self.folder / name)

    def metadata(self, name: str) -> Any:
        """What the header of a checkpoint says; None where there is none yet."""

        def read() -> Any:
            with safe_open(self.folder / name, framework="numpy") as file:
                return parse(file.metadata()["headscope"], where=name, expected="a checkpoint")

        return self._try(name, read) if name in self.manifest["files"] else None

    def checks(self) -> list[Check]:
        """How well the models do the tasks."""
        names = self.names("check-", ".json")
        checks = [self._try(name, lambda name=name: checked(self._load(name), Check, where=name)) for name in names]
        return [check for check in checks if check is not None]

    def made(self, what: str, make: Callable[[], T]) -> T | None:
        """What `make` gives; None, and a note, where files and numbers are not as they should be. (What a figure makes
        of odd numbers is anybody's guess: all that it raises is about the run folder.)"""
        try:
            return make()
        except InputError as error:
            return self._note(_short(error, self.folder))
        except Exception as error:
            return self._note(f"{what} is damaged: {str(error) or type(error).__name__}.")

    def _try(self, name: str, read: Callable[[], T]) -> T | None:
        path = (self.folder / name).resolve()
        if "/" in name or "\\" in name or (self.within is not None and not path.is_relative_to(self.within.resolve())):
            return self._note(f"{name} lies outside the run folder.")
        if not (self.folder / name).exists():
            return self._note(f"{name} is missing.")
        return self.made(name, lambda: self._verified(name, read))

    def _verified(self, name: str, read: Callable[[], T]) -> T:
        if (known := self._sha256s(name)) and sha256_of(self.folder / name) not in known:
            raise ValueError("it is not what this run saved")
        return read()

    def _note(self, text: str) -> None:
        if self.strict:
            raise InputError(f"{self.folder}: {text} Give the run's command again to have it made.")
        self.notes.append(text)


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, which is read again only when it has changed: a page asks often, and checkpoints are
    large."""
    stat = path.stat()
    return _sha256_of(path, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=4096)
def _sha256_of(path: Path, size: int, time: int) -> str:
    return sha256(path)


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


def _short(error: Exception, folder: Path) -> str:
    return str(error).replace(f"{folder}/", "")
