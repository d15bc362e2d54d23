"""The multiplier between two curves as a function of the threshold (no torch)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headscope.records import Multipliers
from headscope.report.figures.panels import PALETTES, blank
from headscope.report.figures.titles import task_title

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def multiplier_curve(found: Multipliers, *, width: float | None = None) -> Figure:
    """A line with its interval on a log axis; no line where a curve does not get to the threshold."""
    from matplotlib.ticker import LogLocator

    figure = blank(width or 3.4, 2.3 if width is None else min(2.3, 0.7 * width))
    axes = figure.subplots()
    axes.axhline(1, color="0.7", linewidth=0.8)
    axes.fill_between(found.thresholds, found.low, found.high, color=PALETTES[0][0], alpha=0.22, linewidth=0)
    axes.plot(found.thresholds, found.values, color=PALETTES[0][0], linewidth=1.4)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}x")
    axes.yaxis.set_minor_formatter("")
    axes.set_title(f"{task_title(found.task)}: {found.dense}\nagainst {found.sparse}", fontsize=8, loc="left")
    axes.set_xlabel("Threshold", fontsize=8)
    axes.set_ylabel("Multiplier", fontsize=8)
    axes.tick_params(which="both", labelsize=7, length=2)
    axes.grid(axis="y", color="0.9", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    return figure
