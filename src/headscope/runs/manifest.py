"""What a run folder says of itself: `manifest.json`."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from headscope.errors import InputError
from headscope.progress import tell
from headscope.records.checksums import sealed, unsealed
from headscope.records.files import write_json
from headscope.schema import checked, read_json

# 2: units are kept with their keys, and the command's words are kept.
FORMAT = 2
NAME = "manifest.json"
# A second one, for the case that the first is damaged.
COPY = ".manifest.json"


class OtherFormat(InputError):
    """A manifest of another version of Headscope."""


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def versions() -> dict[str, str]:
    installed = {}
    for package in ("headscope", "torch", "transformers", "numpy"):
        try:
            installed[package] = version(package)
        except PackageNotFoundError:
            installed[package] = "not installed"
    return installed


@dataclass
class Manifest:
    """What was asked, of which models, with which versions, how long it took, and which files are whole."""

    command: str
    settings: dict[str, Any]  # what the numbers depend on: a run is resumed with the very same only
    shown: dict[str, Any]  # what only figures, tables and the terminal depend on, as last asked
    words: list[str]  # the command's arguments and options, as one types them
    models: dict[str, dict[str, Any]]
    # By file: the SHA-256 of its bytes, for units the key of what it holds, and "next" while it is being replaced.
    units: dict[str, dict[str, Any]]
    files: list[str]
    timings: dict[str, float]
    started: str = field(default_factory=now)
    finished: str = ""
    versions: dict[str, Any] = field(default_factory=versions)
    format: int = FORMAT

    @classmethod
    def read(cls, folder: Path, name: str = NAME) -> Manifest:
        """The manifest of a folder; what is none, damaged, or of another format, is told."""
        path = folder / name
        where = f"{path} is not the manifest of a run"
        try:
            found = checked(read_json(path), dict[str, Any], where=where)
        except InputError as error:
            raise InputError(f"{where}: {str(error).removeprefix(f'{path}: ').removeprefix(where)}") from error
        if {"command", "settings", "models", "files"} <= found.keys() and (written := found.get("format")) != FORMAT:
            newer = isinstance(written, int) and written > FORMAT
            raise OtherFormat(
                f"{folder} was written by {'a newer' if newer else 'an earlier'} version of Headscope (format "
                f"{written}; this one has {FORMAT}). {'Update Headscope' if newer else 'Make the run again'}, or give "
                "another folder."
            )
        try:
            found = unsealed(found)
        except ValueError as error:
            raise InputError(f"{where}: {error}.") from error
        return checked(found, cls, where=where)

    @classmethod
    def resume(cls, folder: Path) -> Manifest:
        """The manifest for whoever goes on with the run: its copy, where it is damaged or gone and the copy is whole.
        (What the copy does not know yet is made again.)"""
        try:
            return cls.read(folder)
        except OtherFormat:
            raise
        except InputError as error:
            try:
                manifest = cls.read(folder, COPY)
            except InputError:
                raise error from None
            tell(f"{error} Its copy {COPY} is whole, and takes its place.")
            manifest.write(folder)
            return manifest

    def write(self, folder: Path) -> None:
        for name in (NAME, COPY):
            write_json(folder / name, sealed(self.as_dict()))

    def sha256s(self, file: str) -> list[str]:
        """What the SHA-256 of a file may be: as noted, or of what was to replace it; none where none is noted."""
        noted = self.units.get(file) or {}
        return [noted[name] for name in ("sha256", "next") if noted.get(name)]

    def as_dict(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name != "finished" or value}


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest as a plain dict, for those who show it."""
    return Manifest.read(folder).as_dict()
