"""Disks that are full (files may grow to a few bytes only, as with a quota; a disk of a few pages where one can be
mounted) or cannot be used at all. Each command must say so in a line or two, and, given again with room, end right."""

from __future__ import annotations

import ctypes
import os
import random
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from faults.process import Ended, Process, run, scratch, warm
from faults.studies import STUDIES, content, difference, use_cache, whole, words
from faults.trial import Trial
from headscope.models import builtin_folder

NOBODY = 65534
CLONE_NEWNS = 0x00020000
Arrange = Callable[[], object]


def nothing() -> None:
    """A disk as it should be."""


def full(most: int) -> Arrange:
    """No file may have more bytes than this."""
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))


def small(folder: Path) -> Arrange:
    """The folder is a disk of 16 KB, for this process."""

    def arrange() -> None:
        folder.mkdir(parents=True, exist_ok=True)
        # (Python has this call of its own from 3.12 on.)
        if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNS):
            raise OSError(ctypes.get_errno(), "no mounts of one's own")
        for options in (["--make-rprivate", "/"], ["-t", "tmpfs", "-o", "size=16k", "tmpfs", str(folder)]):
            subprocess.run(["mount", *options], check=True, capture_output=True)

    return arrange


def can_mount() -> bool:
    folder = scratch()
    try:
        return Process(["--version"], small(folder)).wait().code == 0
    finally:
        folder.rmdir()


def read_only(folder: Path) -> Arrange:
    """Somebody else's folder, who lets others read."""

    def arrange() -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for path in (folder, *folder.parents[:2]):
            path.chmod(0o755)
        folder.chmod(0o555)
        if os.getuid() == 0:
            os.setuid(NOBODY)

    return arrange


def cache_at(place: str) -> Arrange:
    return lambda: os.environ.update(HEADSCOPE_CACHE=place)


def trials(seed: int, n: int) -> Iterator[Trial]:
    warm()
    use_cache(scratch())
    draw = random.Random(seed)
    cases = _cases(draw)
    for study, how, arrange in cases if n >= len(cases) else draw.sample(cases, n):
        place = scratch()
        out = Path(how) if how.startswith("/") else place / "run"
        ended = run(_words(study, out), arrange(out))
        if out.is_dir():
            out.chmod(0o755)
        wrong = _untold(ended) or _next(study, place / "run")
        yield Trial("disks", f"{study}: {how}", not wrong, wrong)
        shutil.rmtree(place, ignore_errors=True)


def _cases(draw: random.Random) -> list[tuple[str, str, Callable[[Path], Arrange]]]:
    cases: list[tuple[str, str, Callable[[Path], Arrange]]] = []
    # Where no disk can be mounted (that takes root on Linux), files are limited instead, and the trial says so.
    mounted = can_mount()
    tiny, arrange = ("a disk of 16 KB", small) if mounted else ("files of 3000 bytes at most", lambda out: full(3000))
    for study in STUDIES:
        most = draw.randint(0, 2000)
        cases.append((study, f"files of {most} bytes at most", lambda out, most=most: full(most)))
        cases.append((study, tiny, arrange))
    cases += [(study, "a read-only folder", read_only) for study in ("heads", "merge")]
    cases += [(study, place, lambda out: nothing) for study, place in (("edges", "/dev/null/x"), ("roles", "/sys/x"))]
    cases += [("merge", place, lambda out: nothing) for place in ("/dev/null/x",)]
    cases.append(("merge", "files of 30,000 bytes at most", lambda out: full(30_000)))
    # (Seed 2: its text is not in the cache yet.)
    cases.append(("sparsify --seed 2", "a cache at /dev/null/x", lambda out: cache_at("/dev/null/x")))
    cases.append(("sparsify --seed 2", "no room for text in the cache", lambda out: full(3500)))
    return cases


def _words(study: str, out: Path) -> list[object]:
    name, *more = study.split()
    if name == "merge":
        return ["merge", builtin_folder("nano-sparse"), "nano", "--out", out]
    return words(name, out, *more)


def _untold(ended: Ended) -> str:
    """What is wrong with what it said: an error in at most three lines, behind the header, is right."""
    error = ended.err.partition("Error: ")[2].strip()
    fine = ended.code in (1, 2) and error and not ended.traceback and len(error.splitlines()) <= 3
    return "" if fine else f"not told: {ended.said}"


def _next(study: str, out: Path) -> str:
    """Given again, with room."""
    ended = run(_words(study, out))
    if ended.code:
        return f"the next run: {ended.said}"
    if study in STUDIES:
        return difference(out, whole(study)[0])
    name, *more = study.split()
    if name == "sparsify":
        return difference(out, whole(name, *more)[0])
    return "" if {"config.json", "model.safetensors"} <= content(out).keys() else "no whole model"
