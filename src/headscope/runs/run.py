"""The run folder: a manifest, and a file per unit of work."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar, overload

from headscope import stopping
from headscope.errors import InputError
from headscope.progress import Bar, done, tell
from headscope.records.checksums import set_aside, sha256
from headscope.records.files import refused, sweep, write_json
from headscope.records.record import Record
from headscope.runs.lock import held
from headscope.runs.manifest import COPY, NAME, Manifest, now, read_manifest
from headscope.runs.names import file_name, told_apart
from headscope.runs.settings import Settings
from headscope.stopping import Stopped

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
            sweep(folder)
            run = Run.open(folder, **settings.asked())
            yield run
    except BaseException as error:
        if isinstance(error, Stopped) and run is not None and run.manifest.files:
            error.folder = folder
        if run is not None and not run.manifest.files:
            for name in (NAME, COPY, ".lock"):
                run.path(name).unlink(missing_ok=True)
            if new:
                with suppress(OSError):
                    folder.rmdir()
        raise
    finally:
        if run is not None:
            run.bar.close()


class Run:
    """A run folder: `manifest.json`, and one file per unit of work. A unit that is there is not computed again, so a
    killed run goes on where it stopped."""

    def __init__(self, folder: Path, manifest: Manifest):
        self.folder = folder
        self.manifest = manifest
        self.bar = Bar(manifest.command, None, unit="units")

    def plan(self, units: int) -> None:
        """Say how many units there will be, for those who watch."""
        self.bar.reach(0, units)

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
        if _is_run(folder):
            manifest = Manifest.resume(folder)
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
        """Where a file of the run lies: in its folder, whatever it is called."""
        return self.folder / Path(name).name

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
        file = next((file for file, noted in self.manifest.units.items() if noted.get("key") == full), None)
        if file is not None:
            try:
                found = self._read(file, kind, full)
                self.bar.advance()
                return found
            except FileNotFoundError:
                tell(f"{self.path(file)} is missing. It is made again.")
            except (InputError, ValueError) as error:
                set_aside(self.path(file), str(error).rstrip("."))
        file = file or self._free_name(full, ".json" if kind is None else ".safetensors")
        with stopping.unit():
            began = time.perf_counter()
            made = make()
            if kind is None:
                write_json(self.path(file), made)
            else:
                made.save(self.path(file))
            self.manifest.units[file] = {"key": full}
            seconds = time.perf_counter() - began
            self.add(file, seconds)
            self.bar.advance()
            done(" ".join(filter(None, full["name"])), seconds)
        return made

    def _free_name(self, key: dict[str, Any], ending: str) -> str:
        name = file_name(*key["name"])
        return f"{name}{ending}" if f"{name}{ending}" not in self.manifest.units else f"{told_apart(name, key)}{ending}"

    def _read(self, file: str, kind: type[Record] | None, key: dict[str, Any]) -> Any:
        """What a unit holds; ValueError or InputError where that is not what this run saved."""
        path = self.path(file)
        if not self.is_whole(file):
            raise ValueError("is damaged or was changed: it is not what this run saved")
        found = json.loads(path.read_text(encoding="utf-8")) if kind is None else kind.load(path)
        said = found if isinstance(found, dict) else getattr(found, "__dict__", {})
        for part in {"model", "task"} & key.keys() & said.keys():
            if said[part] != key[part]["name"]:
                raise ValueError(f"says that it is of {said[part]}, not of {key[part]['name']}")
        return found

    def is_whole(self, file: str) -> bool:
        """Whether a file is what this run wrote last; one that it had no time to note is noted now."""
        digest, known = sha256(self.path(file)), self.manifest.sha256s(file)
        if digest == self.manifest.units.get(file, {}).get("next"):
            self.add(file)
        return digest in known

    def expect(self, file: str, digest: str) -> None:
        """Say that a file will have this SHA-256, before it takes its name: whenever the process ends, the file is
        known."""
        noted = self.manifest.units.setdefault(file, {})
        noted["next"] = digest
        self.manifest.write(self.folder)

    def add(self, name: str, seconds: float | None = None) -> None:
        """Say that the file `name` is whole."""
        if name not in self.manifest.files:
            self.manifest.files.append(name)
        if seconds is not None:
            self.manifest.timings[name] = round(seconds, 3)
        noted = self.manifest.units.setdefault(name, {})
        expected = noted.pop("next", None)
        if self.path(name).is_file():
            noted["sha256"] = expected or sha256(self.path(name))
        self.manifest.write(self.folder)

    def finish(self) -> None:
        self.manifest.finished = now()
        self.manifest.write(self.folder)


def _is_run(folder: Path) -> bool:
    return (folder / NAME).exists() or (folder / COPY).exists()


def _refuse_foreign(folder: Path) -> None:
    with refused(folder):
        if folder.exists() and not folder.is_dir():
            raise InputError(f"{folder} is a file; --out needs a folder.")
        there = [path.name for path in folder.iterdir() if not path.name.startswith(".")] if folder.is_dir() else []
    if there and not _is_run(folder):
        raise InputError(f"{folder} is not empty and holds no run. Give --out a new or empty folder.")


def _difference(manifest: Manifest, asked: dict[str, Any]) -> str:
    if manifest.command != asked["command"]:
        return f"command {manifest.command} there, {asked['command']} now"
    there, now = manifest.settings, asked["settings"]
    keys = [key for key in {**there, **now} if there.get(key) != now.get(key)]
    return "; ".join(f"{key} {there.get(key)!r} there, {now.get(key)!r} now" for key in keys)
