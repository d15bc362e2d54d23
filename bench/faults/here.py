"""The command line in this very process, for trials by the thousand: what it wrote, how it ended, and whether in time.

A traceback is written down as a process would write it; a command that takes longer than it may is broken off.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from types import FrameType

from faults.process import Ended
from headscope.cli import console, main

# What a command that was broken off ends with.
HANGS = -signal.SIGALRM
# For each second of work that a command may take, so many may pass: the machine has other things to do.
PATIENCE = 10


class Hangs(BaseException):
    """The time is over."""


def called(words: Sequence[object], *, seconds: float = 20) -> Ended:
    """Call the command line with these words."""
    out, err, began, code = io.StringIO(), io.StringIO(), time.monotonic(), 0
    before = sys.argv, console.out.file, console.err.file
    sys.argv = ["headscope", *map(str, words)]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), _limited(seconds):
            # (They know the streams that were there when they were made.)
            console.out.file, console.err.file = out, err
            main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except Hangs:
        code = HANGS
    except BaseException:
        code = 1
        err.write(traceback.format_exc())
    finally:
        sys.argv, console.out.file, console.err.file = before
    return Ended(code, out.getvalue(), err.getvalue(), time.monotonic() - began)


@contextlib.contextmanager
def _limited(seconds: float) -> Iterator[None]:
    def over(_number: int, _frame: FrameType | None) -> None:
        raise Hangs

    # By the processor's time, which other work does not change; by the clock for what waits and does nothing.
    limits = {signal.SIGPROF: (signal.ITIMER_PROF, seconds), signal.SIGALRM: (signal.ITIMER_REAL, PATIENCE * seconds)}
    handlers = {number: signal.signal(number, over) for number in limits}
    for timer, limit in limits.values():
        signal.setitimer(timer, limit)
    try:
        yield
    finally:
        for timer, _ in limits.values():
            signal.setitimer(timer, 0)
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def inside(folder: os.PathLike[str]) -> Iterator[None]:
    """Work in a folder, where a command that is given no other writes."""
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
