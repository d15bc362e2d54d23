"""The command line, called in this process or in one of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any, NamedTuple

from headscope.cli import main

OFFLINE = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


class Said(NamedTuple):
    """How a command ended and what it wrote."""

    code: Any
    out: str
    err: str


def headscope(capfd, *words: object) -> Said:
    """Call the command line here: quick, because torch is imported already."""
    capfd.readouterr()
    code: Any = 0
    before, sys.argv = sys.argv, ["headscope", *map(str, words)]
    try:
        main()
    except SystemExit as end:
        code = end.code or 0
    finally:
        sys.argv = before
    return Said(code, *capfd.readouterr())


def process(*words: object) -> list[str]:
    """The command line as a process of its own, for `subprocess`."""
    return [sys.executable, "-m", "headscope.cli", *map(str, words)]


def headscope_process(*words: object) -> Said:
    done = subprocess.run(process(*words), capture_output=True, text=True, env=OFFLINE)
    return Said(done.returncode, done.stdout, done.stderr)
