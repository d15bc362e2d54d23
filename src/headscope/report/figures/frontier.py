"""The sparsity frontier as a figure (no torch)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headscope.report.figures.panels import panel_grid

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")


def frontier_panels(rows: Sequence[Mapping[str, Any]], threshold: float, *, width: float | None = None) -> Figure:
    """Loss, accuracy, heads and edges needed against open edges per query; from dense on the left to sparse."""
    figure, panels = panel_grid(4, (2.5, 2.5), width)
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    first = [row for row in rows if row["task"] == tasks[0]]
    x = [row["edges_per_query"] for row in first]
    for column, label, colour in (("ce_above_dense", "cross-entropy", "black"), ("divergence", "divergence", "0.55")):
        panels[0].plot(x, [row[column] for row in first], color=colour, marker="o", markersize=3, label=label)
    for task, colour in zip(tasks, COLOURS * len(tasks), strict=False):
        some = [row for row in rows if row["task"] == task]
        panels[1].plot(x, [row["accuracy"] for row in some], color=colour, marker="o", markersize=3, label=task)
        for axes, what in ((panels[2], "heads"), (panels[3], "edges")):
            known = [row for row in some if row[what] is not None]
            at = [row["edges_per_query"] for row in known]
            axes.plot(at, [row[what] for row in known], color=colour, marker="o", markersize=3, label=task)
            # Where some resampled curves never get there, the interval has no end.
            whole = [row for row in known if row[f"{what}_low"] is not None and row[f"{what}_high"] is not None]
            low, high = ([row[f"{what}_{end}"] for row in whole] for end in ("low", "high"))
            at = [row["edges_per_query"] for row in whole]
            axes.fill_between(at, low, high, color=colour, alpha=0.15, linewidth=0)
    titles = ("Nats above dense", "Accuracy", f"Heads for {threshold:.0%}", f"Edges for {threshold:.0%}")
    for axes, title in zip(panels, titles, strict=True):
        axes.set_title(title, fontsize=9, loc="left")
        axes.set_xscale("log")
        axes.set_xlim(max(x) * 1.2, min(x) / 1.2)
        axes.set_xlabel("Open edges per query and head", fontsize=8)
        axes.tick_params(which="both", labelsize=7, length=2)
        axes.grid(axis="y", color="0.9", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    panels[1].set_ylim(0, 1.05)
    panels[2].set_ylim(bottom=0)
    panels[3].set_yscale("log")
    for axes in panels[:2]:
        axes.legend(fontsize=7, frameon=False)
    return figure
