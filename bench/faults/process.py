"""The command line in processes that cost no import: forks of this one, which has imported everything already.

    ended = run(["heads", "nano", "--task", "ioi", "--out", folder])
    ended.code, ended.out, ended.err

What is to go wrong is arranged by `before`, a function that the child calls first.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

# Before torch is imported: a fork has one thread only.
os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TERM": "dumb", "COLUMNS": "200"}

import torch

from headscope.cli import main
from headscope.models import load

torch.set_num_threads(1)


@dataclass(frozen=True)
class Ended:
    """How a process ended (a negative code is the signal that ended it) and what it wrote."""

    code: int
    out: str
    err: str
    seconds: float

    @property
    def traceback(self) -> bool:
        return "Traceback (most recent call last)" in self.out + self.err

    @property
    def said(self) -> str:
        """The last line of what it said, for a trial's detail."""
        return (
            f"exit {self.code}: {([line for line in self.err.splitlines() if line.strip()] or ['nothing'])[-1][:300]}"
        )


class Process:
    """A command line under way."""

    def __init__(self, words: Sequence[object], before: Callable[[], object] = lambda: None):
        # (Not files: they would be on the disk that is full, or grow to a few bytes only.)
        self._pipes = [os.pipe(), os.pipe()]
        self._said = [b"", b""]
        self._began = time.monotonic()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        self.pid = os.fork()
        if not self.pid:
            os._exit(self._child([str(word) for word in words], before))
        for read, write in self._pipes:
            os.close(write)
            os.set_blocking(read, False)

    def _child(self, words: list[str], before: Callable[[], object]) -> int:
        code: object = 1
        try:
            os.setpgid(0, 0)
            for number, (_, write) in enumerate(self._pipes, 1):
                os.dup2(write, number)
            before()
            sys.argv = ["headscope", *words]
            main()
            code = 0
        except SystemExit as end:
            code = end.code
        except BaseException:
            traceback.print_exc()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        return code if isinstance(code, int) else int(code is not None)

    def wait(self, seconds: float = 600) -> Ended:
        """How it ended; killed, with code -9, if that takes longer."""
        while not (found := os.waitpid(self.pid, os.WNOHANG))[0]:
            if time.monotonic() - self._began > seconds:
                self.kill()
            self._listen()
            time.sleep(0.005)
        self._listen()
        for read, _ in self._pipes:
            os.close(read)
        out, err = (said.decode(errors="replace") for said in self._said)
        return Ended(os.waitstatus_to_exitcode(found[1]), out, err, time.monotonic() - self._began)

    def _listen(self) -> None:
        for number, (read, _) in enumerate(self._pipes):
            with suppress(BlockingIOError):
                while part := os.read(read, 65536):
                    self._said[number] += part

    def kill(self) -> None:
        os.killpg(self.pid, signal.SIGKILL)


def run(words: Sequence[object], before: Callable[[], object] = lambda: None, seconds: float = 600) -> Ended:
    """The command line from beginning to end."""
    return Process(words, before).wait(seconds)


def warm() -> None:
    """Do once what is slow only the first time (imports, fonts), so that forks need not."""
    import accelerate  # noqa: F401

    import headscope.studies.frontier
    import headscope.studies.reproduce  # noqa: F401
    from headscope.studies.heads import study_heads
    from headscope.studies.settings import HeadSettings

    load("nano-sparse")
    asked = HeadSettings(models=("nano",), tasks=("ioi",), methods=("gradient",), n=2, draws=0, points=3)
    folder = scratch()
    study_heads(asked, out=folder / "run")
    shutil.rmtree(folder)


def scratch() -> Path:
    """A new folder for a trial; whoever asks removes it."""
    return Path(tempfile.mkdtemp(prefix="headscope-faults-"))
