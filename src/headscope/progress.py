"""How far a command is, on stderr: bars with the time left where somebody watches, lines with time and share done in a
log. The command line turns them on; libraries and tests see plain iteration.

A bar belongs to a block of work and may stand inside another; a unit of work that is finished is told by `done`.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.progress import TaskID

BEGAN = time.monotonic()
# A log gets a line at least this often, in seconds.
EVERY = 60.0


class Display(Protocol):
    """Where bars are shown."""

    def show(self, bar: Bar) -> None: ...
    def hide(self, bar: Bar) -> None: ...
    def done(self, text: str, seconds: float) -> None: ...


_SHOWN: ContextVar[Display | None] = ContextVar("headscope_progress", default=None)


class Bar:
    """One line of progress; does nothing while progress is not shown."""

    def __init__(self, title: str, total: float | None, *, unit: str = "steps"):
        self.title, self.total, self.unit = title, total, unit
        self.state, self.completed, self.began = "", 0.0, time.monotonic()
        self._display = _SHOWN.get()
        self._changed()

    def advance(self, amount: float = 1) -> None:
        self.reach(self.completed + amount)

    def reach(self, completed: float, total: float | None = None) -> None:
        self.completed, self.total = completed, self.total if total is None else total
        self._changed()

    def say(self, state: str) -> None:
        """Show how things stand behind the title."""
        self.state = state
        self._changed()

    def close(self) -> None:
        if self._display is not None:
            self._display.hide(self)

    def _changed(self) -> None:
        if self._display is not None:
            self._display.show(self)

    @property
    def words(self) -> str:
        return f"{self.title}: {self.state}" if self.state else self.title

    @property
    def left(self) -> str:
        """About how long it will still take, if it goes on as it has gone; empty where nobody knows."""
        if not self.total or not 0 < self.completed < self.total:
            return ""
        return clock((time.monotonic() - self.began) * (self.total / self.completed - 1))


@contextmanager
def bar(title: str, total: float | None = None, *, unit: str = "steps") -> Iterator[Bar]:
    """A bar for the time of a block."""
    line = Bar(title, total, unit=unit)
    try:
        yield line
    finally:
        line.close()


def done(text: str, seconds: float) -> None:
    """Say that a unit of work is finished, and how long it took."""
    place = _SHOWN.get()
    if place is not None:
        place.done(text, seconds)


def tell(text: str) -> None:
    """A line for people, on standard error, above the bars where some are shown."""
    place = _SHOWN.get()
    if isinstance(place, Bars):
        place.progress.console.print(text, markup=False, highlight=False, soft_wrap=True)
    else:
        print(text, file=sys.stderr, flush=True)


def clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class Bars:
    """For a terminal, however narrow: what a bar is of gives way, the time left does not."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn
        from rich.table import Column

        console = Console(stderr=True)
        columns = (
            TextColumn("{task.description}", table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis")),
            BarColumn(bar_width=12 if console.width < 100 else 30),
            TextColumn("{task.fields[count]}", justify="right", table_column=Column(no_wrap=True)),
            TextColumn("{task.fields[left]}", justify="right", table_column=Column(no_wrap=True, min_width=12)),
        )
        self.progress = Progress(*columns, console=console, transient=True, expand=True)
        self._ids: dict[Bar, TaskID] = {}

    def show(self, bar: Bar) -> None:
        if bar not in self._ids:
            self._ids[bar] = self.progress.add_task(bar.words, total=bar.total, count="", left="")
        count = f"{bar.completed:,.0f}/{bar.total:,.0f} {bar.unit}" if bar.total else ""
        left = f"{bar.left} left" if bar.left else ""
        self.progress.update(
            self._ids[bar], description=bar.words, completed=bar.completed, total=bar.total, count=count, left=left
        )

    def hide(self, bar: Bar) -> None:
        self.progress.remove_task(self._ids.pop(bar))

    def done(self, text: str, seconds: float) -> None:
        """The bars have shown it."""


class Lines:
    """For a log: a line for each finished unit, and one when nothing was said for a while."""

    def __init__(self, every: float = EVERY) -> None:
        self.every, self._bars, self._last = every, [], time.monotonic()
        self._ended = threading.Event()

    def show(self, bar: Bar) -> None:
        if bar not in self._bars:
            self._bars.append(bar)
        self.tick()

    def hide(self, bar: Bar) -> None:
        self._bars.remove(bar)

    def done(self, text: str, seconds: float) -> None:
        self._say("; ".join([f"{text}: {seconds:.1f} s", *map(_share, self._bars[:2])]))

    def tick(self) -> None:
        """Say how things stand if it is time to."""
        if self._bars and time.monotonic() - self._last >= self.every:
            self._say("; ".join(map(_share, self._bars)))

    def _say(self, text: str) -> None:
        self._last = time.monotonic()
        stamp(text)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Speak inside the block also while no bar moves."""

        def watch() -> None:
            while not self._ended.wait(self.every / 4):
                self.tick()

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            self._ended.set()
            watcher.join()


def _share(bar: Bar) -> str:
    if not bar.total:
        return bar.words
    left = f", about {bar.left} left" if bar.left else ""
    return f"{bar.words}: {bar.completed:,.0f} of {bar.total:,.0f} {bar.unit} ({bar.completed / bar.total:.0%}){left}"


def stamp(text: str) -> None:
    """A line of a log: how long the program has run, and what is to be said."""
    print(f"[{clock(time.monotonic() - BEGAN)}] {text}", file=sys.stderr, flush=True)


@contextmanager
def display(*, quiet: bool = False) -> Iterator[None]:
    """Show the bars opened inside the block on stderr: as bars on a terminal, as lines elsewhere."""
    if quiet:
        yield
        return
    place = Bars() if sys.stderr.isatty() else Lines()
    token = _SHOWN.set(place)
    try:
        with place.progress if isinstance(place, Bars) else place.watched():
            yield
    finally:
        _SHOWN.reset(token)
