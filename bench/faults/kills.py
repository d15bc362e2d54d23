"""`kill -9` of every study: at random moments, just before or behind one of its renames, and, in one trial of ten, at
each rename in turn. The run is given again and must end as if nothing had been: every file the same to the byte, the
history too, and nothing left behind."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from faults.process import Ended, Process, run, scratch, warm
from faults.studies import STUDIES, difference, use_cache, whole, words
from faults.trial import Trial

# Which of a study's ten trials kills it at each of its renames in turn.
IN_TURN = 9


def trials(seed: int, n: int) -> Iterator[Trial]:
    warm()
    use_cache(scratch())
    draw = random.Random(seed)
    for number in range(n):
        study, of_study = list(STUDIES)[number % len(STUDIES)], number // len(STUDIES)
        folder = scratch() / "run"
        name = _one(study, folder, draw, in_turn=of_study == IN_TURN, random_moment=of_study % 2 == 0)
        yield _judged(study, folder, name)
        shutil.rmtree(folder.parent)


def _one(study: str, folder: Path, draw: random.Random, *, in_turn: bool, random_moment: bool) -> str:
    ended = whole(study)[1]
    renames = renames_of(study)
    if in_turn:
        for number in range(1, renames + 1):
            run(words(study, folder), killed_at(number, before=number % 2 == 0))
        return f"{study}, at each of {renames} renames in turn"
    if random_moment:
        share = draw.random()
        process = Process(words(study, folder))
        time.sleep(share * ended.seconds)
        process.kill()
        process.wait()
        return f"{study}, at {share:.2f} of its time"
    number, before = draw.randint(1, renames), draw.random() < 0.5
    run(words(study, folder), killed_at(number, before=before))
    return f"{study}, {'before' if before else 'behind'} rename {number} of {renames}"


def _judged(study: str, folder: Path, name: str) -> Trial:
    ended = run(words(study, folder))
    wrong = ended.said if ended.code or ended.traceback else difference(folder, whole(study)[0])
    return Trial("kills", name, not wrong, wrong)


def killed_at(number: int, *, before: bool) -> Callable[[], None]:
    """For the child: end it at its rename of this number."""

    def arrange() -> None:
        left = [number]

        def watched(move: Callable[..., None]) -> Callable[..., None]:
            def moved(*arguments: object, **options: object) -> None:
                left[0] -= 1
                if left[0] == 0 and before:
                    os.kill(os.getpid(), signal.SIGKILL)
                move(*arguments, **options)
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

            return moved

        os.replace, os.rename = watched(os.replace), watched(os.rename)

    return arrange


_RENAMES: dict[str, int] = {}


def renames_of(study: str) -> int:
    """How many renames an uninterrupted run does."""
    if study not in _RENAMES:
        note = scratch() / "count"

        def arrange() -> None:
            def watched(move: Callable[..., None]) -> Callable[..., None]:
                def moved(*arguments: object, **options: object) -> None:
                    with note.open("a") as file:
                        file.write("x")
                    move(*arguments, **options)

                return moved

            os.replace, os.rename = watched(os.replace), watched(os.rename)

        ended: Ended = run(words(study, note.parent / "run"), arrange)
        if ended.code:
            raise RuntimeError(ended.err)
        _RENAMES[study] = len(note.read_text())
        shutil.rmtree(note.parent)
    return _RENAMES[study]
