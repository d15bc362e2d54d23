"""Two processes on one folder, for every study: the first is stopped as soon as it holds the folder, the second comes
and must be told who works there, then the first goes on and must end as if nobody had come."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from faults.process import Process, run, scratch, warm
from faults.studies import STUDIES, difference, use_cache, whole, words
from faults.trial import Trial


def trials(seed: int, n: int) -> Iterator[Trial]:
    warm()
    use_cache(scratch())
    for study in [*STUDIES, *OTHERS][:n]:
        folder = scratch() / "run"
        yield Trial("pairs", study, not (wrong := _wrong(study, folder)), wrong)
        shutil.rmtree(folder.parent)


def _wrong(study: str, folder: Path) -> str:
    asked = words(study, folder) if study in STUDIES else OTHERS[study](folder)
    first = Process(asked)
    while not (folder / ".holder.json").exists():
        time.sleep(0.002)
    os.kill(first.pid, signal.SIGSTOP)
    second = run(asked)
    os.kill(first.pid, signal.SIGCONT)
    ended = first.wait()
    if second.code != 2 or f"is in use: process {first.pid} on " not in second.err or second.traceback:
        return f"the second: {second.said}"
    if ended.code:
        return f"the first: {ended.said}"
    if study in STUDIES:
        return difference(folder, whole(study)[0])
    alone = folder.parent / "alone"
    run(OTHERS[study](alone))
    return difference(folder, alone)


def _frontier(folder: Path) -> list[object]:
    trained = whole("sparsify")[0]
    said = (
        f"sparsity-frontier nano {trained} --task ioi --n 2 --heads-by gradient --edges-by eap --sequences 4 --length 8"
    )
    return [*said.split(), "--format", "png", "--out", folder]


def _reproduce(folder: Path) -> list[object]:
    return [*"reproduce --models nano,nano-sparse --only 000 --format png".split(), "--out", folder]


# Those that are made of others.
OTHERS = {"sparsity-frontier": _frontier, "reproduce": _reproduce}
