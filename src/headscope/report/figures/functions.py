"""The figure of functional heads: what masking a function's heads does to the answers, against masking others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.report.figures.panels import legend_fit, panel_grid
from headscope.report.figures.titles import task_title

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

BLUE, RED = "#1f5fbf", "#c8312b"


@dataclass(frozen=True)
class Series:
    """One score against the number of masked heads: K best, K random (mean, lowest and highest draw), and none."""

    top: np.ndarray  # (P,)
    random: np.ndarray  # (P,)
    low: np.ndarray  # (P,)
    high: np.ndarray  # (P,)
    base: float


@dataclass(frozen=True)
class Panel:
    """One function: its accuracy, and a second score where there is one."""

    title: str
    k: np.ndarray  # (P,)
    accuracy: Series
    second: Series | None = None
    second_name: str = ""  # Comet, or Similarity where that was not scored
    heads: int | None = None  # of the model, for shares


def function_panels(panels: Sequence[Panel], *, title: str = "", note: str = "", width: float | None = None) -> Figure:
    """A panel per function side by side, one legend on top; `note` stands below, and says what is not drawn."""
    figure, axes_row = panel_grid(len(panels), (2.5, 2.75), width)
    for place, (axes, panel) in enumerate(zip(axes_row, panels, strict=True)):
        if place:
            axes.sharey(axes_row[0])
        for series, colour in ((panel.accuracy, BLUE), (panel.second, RED)):
            if series is not None:
                _draw(axes, panel.k, series, colour)
        axes.set_xscale("log", base=2)
        axes.set_xticks(panel.k, [_count(int(k), panel.heads) for k in panel.k])
        axes.xaxis.set_ticks([], minor=True)
        if len(panel.k) > 1:
            axes.set_xlim(panel.k[0] / 1.25, panel.k[-1] * 1.25)
        # (COMET and cosines may leave the range from 0 to 1.)
        low, high = axes.get_ylim()
        axes.set_ylim(min(-0.04, low), max(1.06, high))
        axes.set_yticks(np.linspace(0, 1, 6))
        axes.grid(axis="y", color="0.9", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=7, length=2)
        axes.set_title(panel.title, fontsize=9)
        axes.set_xlabel("# Masked Heads", fontsize=8)
        if place == 0:
            axes.set_ylabel("Score", fontsize=8)
    second = next((panel.second_name for panel in panels if panel.second is not None), "")
    figure.legend(
        handles=_legend(second), loc="outside upper center", fontsize=7,
        **{"handlelength": 3.4, **legend_fit(5, width and width / 1.4)},
    )  # fmt: skip
    if words := " · ".join(part for part in (title, note) if part):
        figure.supxlabel(words, fontsize=6.5, color="0.35", wrap=width is not None)
    return figure


def panels_of(
    ranking: str, sweep: Sequence[dict[str, Any]], base: Sequence[dict[str, Any]], *, heads: int | None = None
) -> list[Panel]:
    """A panel per function from the rows of a study's tables: K best against K random, and no heads masked. The second
    score is COMET, or the similarity of sentence embeddings where COMET was not scored. heads: of the model."""
    panels = []
    for reference in base:
        name: str = reference["function"]
        rows = [row for row in sweep if (row["ranking"], row["function"]) == (ranking, name)]

        def series(score: str, rows: list[dict[str, Any]] = rows, reference: dict[str, Any] = reference) -> Series:
            columns = [f"top_{score}", *(f"random_{score}{end}" for end in ("", "_low", "_high"))]
            return Series(*(np.array([row[c] for row in rows]) for c in columns), base=reference[score])

        second = second_score(rows)
        k = np.array([row["k"] for row in rows])
        more = (series(second), second.capitalize()) if second else (None, "")
        panels.append(Panel(task_title(name), k, series("accuracy"), *more, heads))
    return panels


def second_score(sweep: Sequence[dict[str, Any]]) -> str:
    """What is shown beside accuracy: COMET where it was scored, otherwise the similarity of embeddings, or nothing."""
    return next((score for score in ("comet", "similarity") if sweep and f"top_{score}" in sweep[0]), "")


def _draw(axes, k: np.ndarray, series: Series, colour: str) -> None:
    style = {"color": colour, "marker": "o", "markersize": 3.5, "linewidth": 1.4}
    axes.axhline(series.base, color=colour, linewidth=0.7, linestyle=":", alpha=0.8)
    axes.fill_between(k, series.low, series.high, color=colour, alpha=0.15, linewidth=0)
    axes.plot(k, series.random, linestyle="--", **style)
    axes.plot(k, series.top, linestyle="-", **style)


def _count(k: int, heads: int | None) -> str:
    return f"{k}\n{k / heads:.1%}" if heads else str(k)


def _legend(second: str) -> list[Line2D]:
    from matplotlib.lines import Line2D

    rows: list[tuple[str, str, Any]] = [("TopK Accuracy", BLUE, "-"), ("RandomK Accuracy", BLUE, "--")]
    if second:
        rows += [(f"TopK {second}", RED, "-"), (f"RandomK {second}", RED, "--")]
    handles = [Line2D([], [], color=c, linestyle=s, marker="o", markersize=3.5, label=label) for label, c, s in rows]
    return [*handles, Line2D([], [], color="0.4", linestyle=":", linewidth=0.7, label="no heads masked")]
