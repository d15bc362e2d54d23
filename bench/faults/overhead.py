"""What hashing, sealing, locks and the manifest's second copy cost in a study of the real model: the time spent in them
as a share of the whole, in one and the same run."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from faults.process import run, scratch, warm
from faults.trial import Trial

STUDY = "heads smollm2-135m --task ioi --n 50 --format png"
# By module: what there would not be without checksums and locks. (Of the manifest all writing, though half was before.)
COUNTED = {
    "headscope.records.checksums": ("sha256", "damaged_files", "write_sums"),
    "headscope.records.files": ("sweep",),
    "headscope.runs.lock": ("held",),
}
MOST = 0.02


def trials(seed: int, n: int) -> Iterator[Trial]:
    warm()
    folder = scratch()
    note = folder / "seconds"
    ended = run([*STUDY.split(), "--out", folder / "run"], lambda: _arrange(note), seconds=7200)
    spent = float(note.read_text()) if note.exists() else float("nan")
    said = (
        f"{100 * spent / ended.seconds:.2f} %, {spent:.2f} s of {ended.seconds:.0f} s" if not ended.code else ended.said
    )
    yield Trial("overhead", STUDY, not ended.code and spent / ended.seconds <= MOST, said)
    shutil.rmtree(folder)


def _arrange(note: Any) -> None:
    """For the child: add up the time spent in what is counted."""
    from headscope.runs.manifest import Manifest

    total, inside = [0.0], [False]

    def timed(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **options: Any) -> Any:
            if inside[0]:
                return call(*arguments, **options)
            began, inside[0] = time.perf_counter(), True
            try:
                made = call(*arguments, **options)
            finally:
                inside[0] = False
                total[0] += time.perf_counter() - began
                note.write_text(str(total[0]))
            if isinstance(made, AbstractContextManager):
                made.__class__ = _timed_block(type(made), timed)
            return made

        return wrapped

    for module, names in COUNTED.items():
        for name in names:
            plain = getattr(sys.modules[module], name)
            replaced = timed(plain)
            for other in [other for key, other in list(sys.modules.items()) if key.startswith("headscope")]:
                if getattr(other, name, None) is plain:
                    setattr(other, name, replaced)
    Manifest.write = timed(Manifest.write)
    os.environ["OMP_NUM_THREADS"] = "1"


def _timed_block(kind: type, timed: Callable[..., Any]) -> type:
    """A context manager whose beginning and end are timed, its block not."""
    return type(kind.__name__, (kind,), {"__enter__": timed(kind.__enter__), "__exit__": timed(kind.__exit__)})
