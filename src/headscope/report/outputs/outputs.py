"""What is shown of a run, from its records and manifest alone (no torch): figures, tables, other files, findings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import cached_property
from typing import TYPE_CHECKING, Any

from headscope.records import Check, Table
from headscope.report.figures.panels import FORMATS
from headscope.report.figures.titles import task_title
from headscope.report.reading import Reading

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# A figure is drawn when it is asked for: draw(width=...) in inches, or at its own width (None).
Draw = Callable[..., "Figure"]


def listed(words: Sequence[str]) -> str:
    """Words as a sentence lists them."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}" if words else "nothing"


class Outputs:
    """One run. A command has a class of its own, entered in `OUTPUTS`; whoever shows a run asks it, and nothing else.

    Names are those of files, without their ending. `on_page`: how the names of those figures begin that the page draws
    by itself; it shows the others as pictures.
    """

    on_page: tuple[str, ...] = ()

    def __init__(self, run: Reading):
        self.run = run

    def figures(self) -> dict[str, Draw]:
        return {}

    def tables(self) -> dict[str, Table]:
        return {}

    def files(self) -> dict[str, bytes]:
        """What other tools read: by name, with its ending."""
        return {}

    def findings(self, *, top: int = 10) -> dict[str, Any]:
        """What the command prints, as plain values; the whole of `--json`. top: how many to list of what is ranked."""
        return {"run": str(self.run.folder), "checks": self.told_checks, "figures": self.drawn}

    def sentences(self) -> list[str]:
        """What was found, in at most three sentences: what, how sure, and compared with what."""
        return []

    @property
    def unusable(self) -> list[str]:
        """What no number of heads explains, because the model does not do it."""
        return [
            f"{c.model} does not do {task_title(c.task)} (accuracy {c.accuracy:.2f}), so what its heads do there "
            "explains nothing."
            for c in self.checks
            if not c.usable
        ]

    @cached_property
    def checks(self) -> list[Check]:
        return self.run.checks()

    @property
    def told_checks(self) -> list[dict[str, Any]]:
        return [{**asdict(check), "usable": check.usable} for check in self.checks]

    @property
    def drawn(self) -> list[str]:
        """The pictures that lie in the run folder."""
        files = [f"{name}.{ending}" for name in self.figures() for ending in FORMATS]
        return [str(self.run.folder / file) for file in files if file in self.run.manifest["files"]]
