"""Files that are written whole or not at all: to a temporary file in the same folder, which then takes the final name
in one step, so a reader never meets half a file."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headscope.errors import SetupError


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
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}-", suffix=".part", dir=path.parent)
        os.close(handle)
    except OSError as error:
        raise SetupError(f"Cannot write {path}: {error.strerror}. Choose another place.") from error
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o644)
        os.replace(temporary, path)
    except OSError as error:
        raise SetupError(f"Cannot write {path}: {error.strerror or error}. Nothing was left half-written.") from error
    finally:
        temporary.unlink(missing_ok=True)
