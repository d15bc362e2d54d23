"""Disks that are full (files may grow to a few bytes only, as with a quota; a disk of a few pages where one can be
mounted) or cannot be used at all. Each command must say so in a line or two, and, given again with room, end right."""

from __future__ import annotations

import os
import random
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from faults.process import Ended, run, scratch, warm
from faults.studies import STUDIES, content, difference, use_cache, whole, words
from faults.trial import Trial
from headscope.models import builtin_folder

NOBODY = 65534
Arrange = Callable[[], object]


def nothing() -> None:
    """A disk as it should be."""


def full(most: int) -> Arrange:
    """No file may have more bytes than this."""
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))


def small(folder: Path) -> Arrange:
    """The folder is a disk of 16 KB, for this process; where none can be mounted, files are limited instead."""

    def arrange() -> None:
        folder.mkdir(parents=True, exist_ok=True)
        mount = ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(folder)]
        try:
            os.unshare(os.CLONE_NEWNS)  # pyright: ignore[reportAttributeAccessIssue]
            subprocess.run(["mount", "--make-rprivate", "/"], check=True, capture_output=True)
            subprocess.run(mount, check=True, capture_output=True)
        except (AttributeError, OSError, subprocess.CalledProcessError):
            resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))

    return arrange


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
    for study in STUDIES:
        most = draw.randint(0, 2000)
        cases.append((study, f"files of {most} bytes at most", lambda out, most=most: full(most)))
        cases.append((study, "a disk of 16 KB", small))
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
    fine = ended.code in (1, 2) and "Error: " in ended.err and not ended.traceback and len(ended.err.splitlines()) <= 6
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
