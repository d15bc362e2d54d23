"""The run folder: a manifest, and a file per unit of work."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar, overload

from headscope.errors import InputError
from headscope.records.files import write_json
from headscope.records.record import Record
from headscope.runs.lock import held
from headscope.runs.manifest import Manifest, now, read_manifest
from headscope.runs.names import file_name, told_apart
from headscope.runs.settings import Settings

__all__ = ["Run", "open_run", "read_manifest"]

R = TypeVar("R", bound=Record)


@contextmanager
def open_run(folder: str | Path, settings: Settings) -> Iterator[Run]:
    """Start the run of these settings in a folder, or resume it, and hold the folder while the block lasts. A run that
    fails before anything is finished leaves nothing behind."""
    folder, run = Path(folder), None
    _refuse_foreign(folder)
    new = not folder.exists()
    try:
        with held(folder):
            run = Run.open(folder, **settings.asked())
            yield run
    except BaseException:
        if run is not None and not run.manifest.files:
            for name in ("manifest.json", ".lock"):
                run.path(name).unlink(missing_ok=True)
            if new:
                with suppress(OSError):
                    folder.rmdir()
        raise


class Run:
    """A run folder: `manifest.json`, and one file per unit of work. A unit that is there is not computed again, so a
    killed run goes on where it stopped."""

    def __init__(self, folder: Path, manifest: Manifest):
        self.folder = folder
        self.manifest = manifest

    @classmethod
    def open(
        cls, folder: str | Path, *, command: str, settings: dict[str, Any], shown: dict[str, Any] | None = None,
        words: Sequence[str] = (),
    ) -> Run:  # fmt: skip
        """Start a run, or resume the one in `folder` if it was asked for the very same. One in which nothing was
        finished (a misspelt model, say) holds nothing to protect, and makes way. (`open_run` locks the folder too.)"""
        folder = Path(folder)
        _refuse_foreign(folder)
        asked = json.loads(json.dumps({"command": command, "settings": settings}))
        last = {"shown": dict(shown or {}), "words": list(words)}
        if (folder / "manifest.json").exists():
            manifest = Manifest.read(folder)
            if {"command": manifest.command, "settings": manifest.settings} == asked:
                manifest.shown, manifest.words = last["shown"], last["words"]
                return cls(folder, manifest)
            if manifest.files:
                raise InputError(
                    f"{folder} holds a run with other settings: {_difference(manifest, asked)}.\n"
                    "Give the same settings to resume it, or another --out."
                )
        manifest = Manifest(**asked, **last, models={}, units={}, files=[], timings={})
        manifest.write(folder)
        return cls(folder, manifest)

    def path(self, name: str) -> Path:
        return self.folder / name

    def has(self, name: str) -> bool:
        return name in self.manifest.files and self.path(name).exists()

    def note_model(self, name: str, facts: dict[str, Any]) -> None:
        """Say which model this run used; a resumed run must meet the same weights."""
        before = self.manifest.models.get(name)
        if before is not None and before["sha256"] != facts["sha256"]:
            raise InputError(
                f"{self.folder} was started with other weights of {name} ({before['sha256'][:12]}..., now "
                f"{facts['sha256'][:12]}...). Give another --out."
            )
        self.manifest.models[name] = facts
        self.manifest.write(self.folder)

    @overload
    def unit(self, name: Sequence[str], make: Callable[[], R], kind: type[R], **key: Any) -> R: ...
    @overload
    def unit(self, name: Sequence[str], make: Callable[[], Any], kind: None = None, **key: Any) -> Any: ...

    def unit(self, name: Sequence[str], make: Callable[[], Any], kind: type[Record] | None = None, **key: Any) -> Any:
        """A record of the run (or, without a kind, something that JSON can carry): read if it is there, otherwise made
        and saved.

        name: what people call it, first what it is (scores, curve); it becomes the file's name. key: what it depends
        on: `model` and `task`, each with its name and sha256, method and settings. The key decides whether a file is
        this unit, not its name; and what is read must be what was saved under that key, and say so itself.
        """
        full = json.loads(json.dumps({"name": list(name), **key}))
        file = next((file for file, noted in self.manifest.units.items() if noted["key"] == full), None)
        if file is not None and self.has(file):
            return self._read(file, kind, full)
        file = file or self._free_name(full, ".json" if kind is None else ".safetensors")
        began = time.perf_counter()
        made = make()
        if kind is None:
            write_json(self.path(file), made)
        else:
            made.save(self.path(file))
        self.manifest.units[file] = {"key": full, "sha256": self._sha256(file)}
        self.add(file, time.perf_counter() - began)
        return made

    def _free_name(self, key: dict[str, Any], ending: str) -> str:
        name = file_name(*key["name"])
        return f"{name}{ending}" if f"{name}{ending}" not in self.manifest.units else f"{told_apart(name, key)}{ending}"

    def _read(self, file: str, kind: type[Record] | None, key: dict[str, Any]) -> Any:
        path = self.path(file)
        again = "Delete it to have it made again."
        if self._sha256(file) != self.manifest.units[file]["sha256"]:
            raise InputError(f"{path} is damaged or was changed: it is not what this run saved. {again}")
        found = json.loads(path.read_text(encoding="utf-8")) if kind is None else kind.load(path)
        said = found if isinstance(found, dict) else getattr(found, "__dict__", {})
        for part in {"model", "task"} & key.keys() & said.keys():
            if said[part] != key[part]["name"]:
                raise InputError(f"{path} says that it is of {said[part]}, not of {key[part]['name']}. {again}")
        return found

    def _sha256(self, file: str) -> str:
        return hashlib.sha256(self.path(file).read_bytes()).hexdigest()

    def add(self, name: str, seconds: float | None = None) -> None:
        """Say that the file `name` is whole."""
        if name not in self.manifest.files:
            self.manifest.files.append(name)
        if seconds is not None:
            self.manifest.timings[name] = round(seconds, 3)
        self.manifest.write(self.folder)

    def finish(self) -> None:
        self.manifest.finished = now()
        self.manifest.write(self.folder)


def _refuse_foreign(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; --out needs a folder.")
    there = [path.name for path in folder.iterdir() if not path.name.startswith(".")] if folder.is_dir() else []
    if there and "manifest.json" not in there:
        raise InputError(f"{folder} is not empty and holds no run. Give --out a new or empty folder.")


def _difference(manifest: Manifest, asked: dict[str, Any]) -> str:
    if manifest.command != asked["command"]:
        return f"command {manifest.command} there, {asked['command']} now"
    there, now = manifest.settings, asked["settings"]
    keys = [key for key in {**there, **now} if there.get(key) != now.get(key)]
    return "; ".join(f"{key} {there.get(key)!r} there, {now.get(key)!r} now" for key in keys)
