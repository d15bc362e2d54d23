"""One process at a time works in a run folder; a second one is told who does."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from headscope.errors import InputError
from headscope.records.files import refused, write_bytes


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold the folder for a block. The lock is the operating system's, so it ends with the process that has it, also
    when that is killed; who has it stands in a file beside it, for people."""
    lock, holder = FileLock(folder / ".lock"), folder / ".holder.json"
    with refused(folder):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(blocking=False)
        except Timeout:
            raise InputError(
                f"{folder} is in use: {_said(holder)}.\nWait until that has ended, or give another --out."
            ) from None
    try:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        # (Whole at once: somebody may look at it this very moment.)
        write_bytes(holder, json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": now}).encode())
        yield
    finally:
        holder.unlink(missing_ok=True)
        lock.release()


def _said(holder: Path) -> str:
    try:
        return "process {pid} on {host} has worked there since {since}".format(**json.loads(holder.read_text()))
    except (OSError, ValueError, KeyError, TypeError):
        return "another process works there"
