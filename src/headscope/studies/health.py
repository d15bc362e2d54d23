"""Whether all is well: of the surroundings, of the cache, and of a run folder, file by file."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from headscope.errors import InputError, SetupError
from headscope.functions.comet import Environment
from headscope.models.builtin import cache_folder
from headscope.records.checksums import SUMS, damaged_files, read_sums, sha256
from headscope.records.sealed import is_old, read_sealed
from headscope.runs.manifest import COPY, NAME, Manifest, versions

WHOLE, DAMAGED = "whole", "damaged"
HUB = "https://huggingface.co"


@dataclass(frozen=True)
class Finding:
    """Something that was looked at, and how it is. ok: whether that is as it should be."""

    what: str
    state: str
    ok: bool = True


def surroundings() -> list[Finding]:
    """Versions, device, room, hub and COMET, then what is in the cache."""
    import torch

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU, {torch.get_num_threads()} threads"
    found = [Finding(name, version) for name, version in {"python": platform.python_version(), **versions()}.items()]
    found += [Finding("device", device), Finding("free memory", _gigabytes(_free_memory()))]
    place = next(path for path in (cache_folder(), *cache_folder().resolve().parents) if path.exists())
    found.append(Finding("free disk for the cache", f"{_gigabytes(shutil.disk_usage(place).free)} in {place}"))
    found += [Finding("hub", _hub()), Finding("COMET", Environment.here().missing or "ready")]
    return [*found, *(Finding(f"cache: {one.name}", one.told, one.state != DAMAGED) for one in cached(fully=True))]


@dataclass(frozen=True)
class Cached:
    """Something in the cache: a model, a text, COMET's environment."""

    name: str  # models/smollm2-135m
    size: int  # in bytes
    state: str

    @property
    def told(self) -> str:
        return f"{_gigabytes(self.size)}, {self.state}"


def cached(*, fully: bool = False) -> list[Cached]:
    """What the cache holds. fully: large files are read, however new they are."""
    root = cache_folder()
    folders = [path for kind in ("models", "text") for path in sorted((root / kind).glob("*")) if path.is_dir()]
    folders += [path for path in (root / "comet",) if path.is_dir()]
    return [Cached(str(path.relative_to(root)), _size(path), _state(path, fully)) for path in folders]


def clear(names: list[str]) -> list[Cached]:
    """Remove what is named from the cache ("all": everything), and say what it was."""
    there = {one.name: one for one in cached()}
    if unknown := [name for name in names if name != "all" and name not in there]:
        raise InputError(f"The cache has no {unknown[0]!r}. It has: {', '.join(there) or 'nothing'}.")
    chosen = [one for name, one in there.items() if "all" in names or name in names]
    for one in chosen:
        try:
            shutil.rmtree(cache_folder() / one.name)
        except OSError as error:
            raise SetupError(f"Cannot remove {cache_folder() / one.name}: {error.strerror}.") from error
    return chosen


def verify_run(folder: Path) -> list[Finding]:
    """Every file of a run against what the run noted of it when it was written."""
    if not (folder / NAME).exists() and not (folder / COPY).exists():
        raise InputError(f"{folder} is no run: expected a folder with {NAME}.")
    return list(_files(folder))


def _files(folder: Path) -> Iterator[Finding]:
    manifest = None
    for name in (NAME, COPY):
        try:
            manifest = manifest or Manifest.read(folder, name)
            Manifest.read(folder, name)
            yield Finding(name, WHOLE)
        except InputError as error:
            yield Finding(name, str(error), False)
    for name in manifest.files if manifest is not None else ():
        path = folder / Path(name).name
        known = manifest.sha256s(name) if manifest is not None else []
        if not path.is_file():
            yield Finding(name, "missing", False)
        elif not known:
            yield Finding(name, "there; the run noted no checksum")
        else:
            yield _of_file(name, sha256(path) in known)
    for made in (folder, folder / "adapter", *sorted(folder.glob("milestones/*"))):
        if (made / SUMS).exists():
            wrong = damaged_files(made, fully=True)
            names = [name for name in read_sums(made)["files"] if name not in wrong] if SUMS not in wrong else []
            for name in [*names, *wrong]:
                yield _of_file(str((made / name).relative_to(folder)), name not in wrong)
    for path in sorted([*folder.glob("**/*.part"), *folder.glob("*.damaged")]):
        kind = "left by a process that ended; the next start removes it" if path.suffix == ".part" else "set aside"
        yield Finding(str(path.relative_to(folder)), kind)


def _state(folder: Path, fully: bool) -> str:
    if folder.name.partition(".scratch-")[1]:
        return "left by a process that ended"
    if (folder / SUMS).exists():
        return DAMAGED if damaged_files(folder, fully=fully) else WHOLE
    pieces = [path for path in folder.glob("*.safetensors") if not is_old(path)] if folder.parent.name == "text" else []
    try:
        for piece in pieces:
            read_sealed(piece)
    except ValueError:
        return DAMAGED
    return WHOLE if pieces else "not verified"


def _size(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())


def _free_memory() -> int:
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 0


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 10**8 else f"{size / 1e6:.1f} MB"


def _hub() -> str:
    """Whether the hub answers; nothing is asked of it where that is forbidden."""
    import urllib.request

    if os.environ.get("HF_HUB_OFFLINE", "0").upper() in ("1", "TRUE", "YES", "ON"):
        return "not asked: HF_HUB_OFFLINE is set"
    try:
        with urllib.request.urlopen(urllib.request.Request(HUB, method="HEAD"), timeout=5):
            return "reachable"
    except (OSError, ValueError) as error:
        return f"not reachable: {error}"


def _of_file(name: str, whole: bool) -> Finding:
    return Finding(name, WHOLE if whole else DAMAGED, whole)
