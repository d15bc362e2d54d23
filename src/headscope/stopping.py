"""Being told to end by SIGINT (Ctrl+C) or SIGTERM: after the unit of work in hand is safe, at once where there is none,
and at once when told again. The command line listens; in a library nothing changes."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType


class Stopped(BaseException):
    """Ends the command line as the signal would: with 128 and its number. folder: the run that can be gone on with."""

    def __init__(self, number: int):
        super().__init__(number)
        self.signal = signal.Signals(number)
        self.exit_code = 128 + number
        self.folder: Path | None = None


# The signal that waits for the unit in hand, and how many units, one in the other, that are.
_asked: int = 0
_in_hand: int = 0


def asked() -> bool:
    """Whether to end as soon as what is in hand is safe."""
    return bool(_asked)


def stop_if_asked(*, others: bool = False) -> None:
    """End here, where everything is safe, if that is asked. others: another process of this run was asked."""
    if _asked or others:
        raise Stopped(_asked or signal.SIGTERM)


@contextmanager
def unit() -> Iterator[None]:
    """Work that is to be kept: inside the block a first signal waits, and at its end it counts."""
    global _in_hand
    _in_hand += 1
    try:
        yield
    finally:
        _in_hand -= 1
    if not _in_hand:
        stop_if_asked()


@contextmanager
def listening(say: Callable[[str], None]) -> Iterator[None]:
    """Heed both signals inside the block. say: tells whoever sent one that work is finished first."""

    def told(number: int, _frame: FrameType | None) -> None:
        global _asked
        if _asked or not _in_hand:
            raise Stopped(number)
        _asked = number
        say(f"{signal.Signals(number).name}: ends when the unit in hand is safe. Once more ends at once.")

    global _asked
    _asked = 0
    before = {number: signal.signal(number, told) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        _asked = 0
        for number, handler in before.items():
            signal.signal(number, handler)
