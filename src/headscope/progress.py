"""Progress bars with time left, on stderr, when somebody is watching: the command line turns them on, libraries and
tests see plain iteration."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

_SHOWN: ContextVar[Progress | None] = ContextVar("headscope_progress", default=None)


class Bar:
    """One line of progress; does nothing while progress is not shown."""

    def __init__(self, title: str, total: float | None, *, unit: str = "steps"):
        self._progress = _SHOWN.get()
        self._title = title
        if self._progress is not None:
            self._id = self._progress.add_task(title, total=total, unit=unit)

    def advance(self, amount: float = 1) -> None:
        if self._progress is not None:
            self._progress.advance(self._id, amount)

    def reach(self, completed: float, total: float | None = None) -> None:
        if self._progress is not None:
            self._progress.update(self._id, completed=completed, total=total)

    def say(self, state: str) -> None:
        """Show how things stand behind the title."""
        if self._progress is not None:
            self._progress.update(self._id, description=f"{self._title}: {state}")

    def close(self) -> None:
        if self._progress is not None:
            self._progress.remove_task(self._id)


@contextmanager
def bar(title: str, total: float | None = None, *, unit: str = "steps") -> Iterator[Bar]:
    """A bar for the time of a block."""
    line = Bar(title, total, unit=unit)
    try:
        yield line
    finally:
        line.close()


def tell(text: str) -> None:
    """A line for people, on standard error, above the bars where some are shown."""
    progress = _SHOWN.get()
    if progress is not None and not progress.disable:
        progress.console.print(text, markup=False, highlight=False, soft_wrap=True)
    else:
        print(text, file=sys.stderr, flush=True)


@contextmanager
def display() -> Iterator[None]:
    """Show the bars opened inside the block on stderr (as a single line when it is not a terminal: none)."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[unit]}"),
        TimeElapsedColumn(),
        TextColumn("elapsed,"),
        TimeRemainingColumn(),
        TextColumn("left"),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        token = _SHOWN.set(progress)
        try:
            yield
        finally:
            _SHOWN.reset(token)
