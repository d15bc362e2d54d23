"""The run folder: what was asked, of which model, with which versions, and a file per unit of work."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from headscope.errors import InputError
from headscope.records.files import write_json
from headscope.records import FORMAT


class Run:
    """A run folder: `manifest.json` (what was asked, of which model, with which versions, how long it took) and one
    file per unit of work. A unit that is there is not computed again, so a killed run goes on where it stopped."""

    def __init__(self, folder: Path, manifest: dict[str, Any]):
        self.folder = folder
        self.manifest = manifest

    @classmethod
    def open(cls, folder: str | Path, *, command: str, settings: dict[str, Any]) -> Run:
        """Start a run, or resume the one in `folder` if it was asked for the very same. One in which nothing was
        finished (a misspelt model, say) holds nothing to protect, and makes way."""
        folder = Path(folder)
        if folder.exists() and not folder.is_dir():
            raise InputError(f"{folder} is a file; --out needs a folder.")
        manifest_path = folder / "manifest.json"
        asked = json.loads(json.dumps({"command": command, "settings": settings}))
        if manifest_path.exists():
            manifest = read_manifest(folder)
            if {key: manifest.get(key) for key in asked} == asked:
                return cls(folder, manifest)
            if manifest["files"]:
                raise InputError(
                    f"{folder} holds a run with other settings: {_difference(manifest, asked)}.\n"
                    "Give the same settings to resume it, or another --out."
                )
        elif folder.is_dir() and any(not path.name.startswith(".") for path in folder.iterdir()):
            raise InputError(f"{folder} is not empty and holds no run. Give --out a new or empty folder.")
        manifest = {
            "format": FORMAT, **asked, "started": _now(), "versions": _versions(), "models": {}, "timings": {},
            "files": [],
        }  # fmt: skip
        write_json(manifest_path, manifest)
        return cls(folder, manifest)

    def path(self, name: str) -> Path:
        return self.folder / name

    def has(self, name: str) -> bool:
        return name in self.manifest["files"] and self.path(name).exists()

    def note_model(self, name: str, facts: dict[str, Any]) -> None:
        """Say which model this run used; a resumed run must meet the same weights."""
        before = self.manifest["models"].get(name)
        if before is not None and before["sha256"] != facts["sha256"]:
            raise InputError(
                f"{self.folder} was started with other weights of {name} ({before['sha256'][:12]}..., now "
                f"{facts['sha256'][:12]}...). Give another --out."
            )
        self.manifest["models"][name] = facts
        self._write_manifest()

    def add(self, name: str, seconds: float | None = None) -> None:
        """Say that the file `name` is whole."""
        if name not in self.manifest["files"]:
            self.manifest["files"].append(name)
        if seconds is not None:
            self.manifest["timings"][name] = round(seconds, 3)
        self._write_manifest()

    def finish(self) -> None:
        self.manifest["finished"] = _now()
        self._write_manifest()

    def _write_manifest(self) -> None:
        write_json(self.folder / "manifest.json", self.manifest)


def read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / "manifest.json"
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        if missing := {"command", "settings", "models", "timings", "files"} - manifest.keys():
            raise ValueError(f"it has no {', '.join(sorted(missing))}")
    except (OSError, ValueError, AttributeError) as error:
        raise InputError(f"{path} is not the manifest of a run: {error}.") from error
    return manifest


def _difference(manifest: dict[str, Any], asked: dict[str, Any]) -> str:
    if manifest["command"] != asked["command"]:
        return f"command {manifest['command']} there, {asked['command']} now"
    there, now = manifest["settings"], asked["settings"]
    keys = [key for key in {**there, **now} if there.get(key) != now.get(key)]
    return "; ".join(f"{key} {there.get(key)!r} there, {now.get(key)!r} now" for key in keys)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _versions() -> dict[str, str]:
    found = {}
    for package in ("headscope", "torch", "transformers", "numpy"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found
