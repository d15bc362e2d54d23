"""Files that are written whole or not at all: to a temporary file in the same folder, which then takes the final name
in one step, so a reader never meets half a file. What a writer that was killed leaves behind is known by its name, and
removed by `sweep`."""

from __future__ import annotations

import glob
import json
import os
import re
import shutil
import socket
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headscope.errors import SetupError

# What is not finished yet, files and folders: .NAME-HOST.PID-RANDOM.part
UNFINISHED = re.compile(r"-([0-9a-f]{8})\.(\d+)-\w+\.part$")


def write_bytes(path: Path, data: bytes) -> Path:
    """Write a file so that it is there whole or not at all."""
    with whole_file(path) as temporary:
        temporary.write_bytes(data)
    return path


def write_json(path: Path, value: Any) -> Path:
    return write_bytes(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`, moved there when the block ends well and removed when it does not. Its ending
    is its own, so that what a kill leaves behind is not taken for a record."""
    with refused(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        sweep(path.parent, path.name)
        if path.exists() and not path.is_file():
            raise OSError("it is there already, and no file that could be replaced")
        handle, name = tempfile.mkstemp(prefix=_prefix(path.name), suffix=".part", dir=path.parent)
        os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o644)
        os.replace(temporary, path)
    except OSError as error:
        raise SetupError(f"Cannot write {path}: {error.strerror or error}. Nothing was left half-written.") from error
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def whole_folder(beside: Path, name: str = "folder") -> Iterator[Path]:
    """A temporary folder in the folder `beside`, for what is made there and moved on; removed at the end."""
    path = Path(tempfile.mkdtemp(prefix=_prefix(name), suffix=".part", dir=beside))
    path.chmod(0o755)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def refused(path: Path) -> Iterator[None]:
    """A place that cannot be written is told in a line."""
    try:
        yield
    except OSError as error:
        raise SetupError(f"Cannot write {path}: {error.strerror or error}. Choose another place.") from error


def sweep(folder: Path, name: str = "") -> None:
    """Remove what dead writers left in a folder (of one file, where it is named). Whoever holds a folder may remove all
    but what another living process of this machine writes; of a named file, what its dead writers on this machine
    left."""
    for found in glob.glob(f".{glob.escape(name)}{'-' if name else ''}*.part", root_dir=folder):
        marked = UNFINISHED.search(found)
        writer = int(marked[2]) if marked is not None and marked[1] == _host() else None
        if (writer is None and name) or (writer is not None and _lives(writer)):
            continue
        path = folder / found
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


def _prefix(name: str) -> str:
    return f".{name}-{_host()}.{os.getpid()}-"


def _host() -> str:
    return f"{zlib.crc32(socket.gethostname().encode()):08x}"


def _lives(pid: int) -> bool:
    if os.name == "nt":
        # There, asking would end it.
        return True
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
