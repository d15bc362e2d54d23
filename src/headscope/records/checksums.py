"""SHA-256 of what is kept, so that nothing damaged is used in silence: of files, of JSON objects that carry their own,
and of folders (a model, an adapter), whose file `headscope_sums.json` has one for each of the others."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from headscope.progress import tell
from headscope.records.files import write_json

SUMS = "headscope_sums.json"
SEAL = "sha256 of the rest"
# Larger files of a folder are not read again while their size and time are those noted.
SMALL = 16 * 2**20


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sealed(value: dict[str, Any]) -> dict[str, Any]:
    """A JSON object with the SHA-256 of itself."""
    return {**value, SEAL: _digest(value)}


def unsealed(value: dict[str, Any]) -> dict[str, Any]:
    """The object without its seal, which must be right. (What was written before there were seals has none.)"""
    rest = {name: one for name, one in value.items() if name != SEAL}
    if SEAL in value and value[SEAL] != _digest(rest):
        raise ValueError("it is damaged or was changed: its checksum is that of something else")
    return rest


def _digest(value: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def write_sums(folder: Path, **about: Any) -> None:
    """Note the SHA-256 of every file of a folder, and what else is to be said of it."""
    noted = {}
    for path in sorted(path for path in folder.iterdir() if path.is_file() and path.name != SUMS):
        stat = path.stat()
        noted[path.name] = {"sha256": sha256(path), "size": stat.st_size, "time": stat.st_mtime_ns}
    write_json(folder / SUMS, sealed({**about, "files": noted}))


def read_sums(folder: Path) -> dict[str, Any]:
    """What is noted of a folder; nothing where nothing is. A damaged note raises ValueError."""
    path = folder / SUMS
    found = unsealed(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {"files": {}}
    if not isinstance(found.get("files"), dict):
        raise ValueError("it names no files")
    return found


def damaged_files(folder: Path, *, fully: bool = False) -> list[str]:
    """The files of a folder that are not what was noted of them. fully: large ones are read as well, though their size
    and time have not changed."""
    try:
        noted = read_sums(folder)["files"]
    except (OSError, ValueError, AttributeError):
        return [SUMS]
    return [name for name, one in noted.items() if not _is_whole(folder / name, one, fully)]


def _is_whole(path: Path, noted: dict[str, Any], fully: bool) -> bool:
    try:
        stat = path.stat()
        if stat.st_size != noted["size"]:
            return False
        unchanged = stat.st_mtime_ns == noted["time"] and stat.st_size > SMALL
        return (unchanged and not fully) or sha256(path) == noted["sha256"]
    except (OSError, KeyError, TypeError):
        return False


def set_aside(path: Path, why: str) -> None:
    """Put a file where nothing reads it, and say so: what it held will be made again."""
    os.replace(path, path.with_name(f"{path.name}.damaged"))
    tell(f"{path} {why}. It is kept as {path.name}.damaged, and made again.")
