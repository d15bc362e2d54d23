"""Nonsense for the command line and the server: no traceback, no hang, exit codes 0, 1 and 2, no file elsewhere.

Each kind of input has a strategy of hypothesis (`nonsense.py`) and a way to be tried. All is done in this process; a
model that is only looked at is loaded once.
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib.pyplot  # noqa: F401  (finds its own folders when it is imported)

import headscope.models
from faults import nonsense
from faults.here import called, inside
from faults.process import Ended, scratch
from faults.trial import Trial
from headscope.models import builtin_folder
from headscope.report.page.server import Viewer

# Of every hundred inputs.
SHARES = {"arguments": 44, "tasks": 26, "paths": 16, "runs": 8, "models": 4, "adapters": 2}
# Of a file beside the folder that is served.
SECRET = "kept from all who ask"
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def trials(seed: int, n: int) -> Iterator[Trial]:
    """n trials, the kinds one after the other."""
    box = scratch()
    done = 0
    try:
        for number, (kind, share) in enumerate(SHARES.items(), 1):
            count = n - done if number == len(SHARES) else max(1, n * share // 100)
            done += count
            (box / kind).mkdir()
            with _one_load(), inside(box / kind):
                yield from KINDS[kind](box / kind, nonsense.drawn(getattr(nonsense, kind), seed, count))
    finally:
        shutil.rmtree(box, ignore_errors=True)


def _told(kind: str, given: object, ended: Ended, elsewhere: list[str]) -> Trial:
    ok = ended.code in (0, 1, 2) and not ended.traceback and not elsewhere
    last = ended.err.strip().splitlines()[-1:] if ended.traceback else [ended.said]
    detail = "" if ok else f"{' '.join(last)}{f'; wrote {elsewhere[:3]}' if elsewhere else ''}"
    return Trial("fuzz", f"{kind}: {given!r}"[:600], ok, detail)


def _arguments(box: Path, drawn: list[list[str]]) -> Iterator[Trial]:
    for words in drawn:
        with _watched(box) as elsewhere:
            ended = called(words)
        yield _told("arguments", words, ended, elsewhere)
        for path in box.iterdir():
            shutil.rmtree(path, ignore_errors=True)


def _tasks(box: Path, drawn: list[tuple[str, bytes]]) -> Iterator[Trial]:
    for name, data in drawn:
        (box / name).write_bytes(data)
        with _watched(box) as elsewhere:
            words = (
                ["functions", "nano", "--data"] if name == "questions.json" else ["check", "nano", "--n", "2", "--task"]
            )
            ended = called([*words, box / name])
        yield _told("tasks", (name, data[:400]), ended, elsewhere)


def _folder(kind: str, whole: Path, words: Callable[[Path], list[Any]]) -> Any:
    """Trials on a folder in which one file is replaced; it is put back afterwards."""

    def run(box: Path, drawn: list[tuple[str, Callable[[bytes], bytes]]]) -> Iterator[Trial]:
        folder = Path(shutil.copytree(whole, box / "folder"))
        for name, change in drawn:
            path = folder / name
            before = path.read_bytes() if path.exists() else b""
            path.write_bytes(data := change(before))
            with _watched(box) as elsewhere:
                ended = called(words(folder))
            yield _told(kind, (name, data[:400]), ended, elsewhere)
            path.write_bytes(before)

    return run


def _runs(box: Path, drawn: list[tuple[int, str, Callable[[bytes], bytes]]]) -> Iterator[Trial]:
    for number, maker in enumerate(nonsense.RUNS.values()):
        maker(box / str(number))
    for which, kind, change in drawn:
        folder = box / str(which)
        files = sorted(path for path in folder.iterdir() if path.suffix in (".json", ".safetensors"))
        path = files[hash_of(kind) % len(files)] if kind != "manifest" else folder / "manifest.json"
        before = path.read_bytes()
        path.write_bytes(data := change(before))
        # (A figure takes long to draw.)
        figure = hash_of(data) % 6 == 0
        out = ["figure", folder, "--out", box / "figures"] if figure else ["report", folder, "--out", box / "page.html"]
        with _watched(box) as elsewhere:
            ended = called(out)
        yield _told("runs", (out[0], path.name, data[:400]), ended, elsewhere)
        path.write_bytes(before)


def hash_of(value: object) -> int:
    """The same in every process."""
    return sum(value if isinstance(value, bytes) else repr(value).encode())


def _paths(box: Path, drawn: list[bytes]) -> Iterator[Trial]:
    """Requests to the server; what is no request must be answered too, or closed."""
    nonsense.RUNS["heads"](box / "run")
    (box.parent / "secret").write_text(SECRET)
    with Viewer(box, 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for data in drawn:
            with _watched(box) as elsewhere:
                answer = _ask(server.server_port, data.replace(b"@PORT", str(server.server_port).encode()))
            ok = bool(answer or not data) and SECRET.encode() not in answer and not elsewhere
            yield Trial("fuzz", f"paths: {data!r}", ok, "" if ok else f"answered {answer[:200]!r}")
        server.shutdown()


def _ask(port: int, data: bytes) -> bytes:
    """The answer. Of a request that is too long the server may hang up before it has been sent."""
    answer = b""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        try:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            while part := connection.recv(65536):
                answer += part
        except TimeoutError:
            return b""
        except OSError:
            return answer or b"(hung up)"
    return answer


KINDS: dict[str, Callable[[Path, Any], Iterator[Trial]]] = {
    "arguments": _arguments,
    "tasks": _tasks,
    "models": _folder("models", builtin_folder("nano"), lambda folder: ["check", folder, "--task", "ioi", "--n", "2"]),
    "adapters": _folder(
        "adapters", builtin_folder("nano-sparse"), lambda folder: ["check", folder, "--task", "ioi", "--n", "2"]
    ),
    "runs": _runs,
    "paths": _paths,
}


@contextmanager
def _one_load() -> Iterator[None]:
    """Inside the block the model nano is loaded once for all commands; everything else as always."""
    load = headscope.models.load
    nano = load("nano")
    headscope.models.load = lambda name, *rest, **named: nano if name == "nano" else load(name, *rest, **named)
    try:
        yield
    finally:
        headscope.models.load = load


_seen: list[str] | None = None
_allowed: tuple[str, ...] = ()


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if _seen is None or event not in ("open", "os.mkdir", "os.rename", "os.link", "os.symlink"):
        return
    written = arguments[1] if event in ("os.rename", "os.link", "os.symlink") else arguments[0]
    if event == "open" and not (isinstance(arguments[2], int) and arguments[2] & WRITING):
        return
    if not isinstance(written, int):
        path = os.path.realpath(os.fsdecode(written))
        if not path.startswith(_allowed):
            _seen.append(path)


sys.addaudithook(_watch)


@contextmanager
def _watched(box: Path) -> Iterator[list[str]]:
    """What is written outside the box while the block lasts; temporary files have a place inside."""
    global _seen, _allowed
    before, tempfile.tempdir = tempfile.tempdir, str(box)
    _allowed, _seen = (os.path.realpath(box), "/dev/", "/proc/", "/sys/", "pipe:"), []
    try:
        yield _seen
    finally:
        _seen, tempfile.tempdir = None, before
