"""The command line, called in this process or in one of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from typing import Any, NamedTuple

from headscope.cli import main

OFFLINE = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


class Said(NamedTuple):
    """How a command ended and what it wrote; `log` is all of stderr, `err` is it without the lines of header and
    progress, each of which begins with the time."""

    code: Any
    out: str
    err: str
    log: str = ""

    @classmethod
    def of(cls, code: Any, out: str, log: str) -> Said:
        return cls(code, out, re.sub(r"(?m)^\[\d+:\d\d(:\d\d)?\] .*\n", "", log), log)


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
    return Said.of(code, *capfd.readouterr())


def process(*words: object) -> list[str]:
    """The command line as a process of its own, for `subprocess`."""
    return [sys.executable, "-m", "headscope", *map(str, words)]


def headscope_process(*words: object) -> Said:
    done = subprocess.run(process(*words), capture_output=True, text=True, env=OFFLINE)
    return Said.of(done.returncode, done.stdout, done.stderr)


# Goes before a program, which then kills itself as `kill -9` would: not when a watcher finds the time, but in the
# moment when it is about to do something (an audit event of Python) to something (a pattern) once more than often.
KILL_ITSELF = """
import fnmatch, os, signal, sys
event, pattern, often = sys.argv.pop(1), sys.argv.pop(1), [int(sys.argv.pop(1))]
def watch(name, arguments):
    if name == event and any(fnmatch.fnmatch(str(argument), pattern) for argument in arguments):
        often[0] -= 1
        if often[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(watch)
"""
COMMAND_LINE = "from headscope.cli import main; main()"


def killed_when(event: str, pattern: object, program: str, *words: object, often: int = 0) -> None:
    """Run a program that is killed when it is about to do something for the next time after `often` times."""
    command = [sys.executable, "-c", KILL_ITSELF + program, event, pattern, often, *words]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, env={**OFFLINE, **os.environ})
    assert done.returncode == -signal.SIGKILL, f"ended before the kill: {done.stdout}{done.stderr}"
