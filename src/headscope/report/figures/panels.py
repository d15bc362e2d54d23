"""Figures for people and papers, drawn from records alone (no torch; matplotlib is imported when one is drawn)."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.records import Curve, Scores
from headscope.records.files import whole_file
from headscope.report.figures.titles import task_title

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("png", "svg", "pdf")


def blank(width: float, height: float) -> Figure:
    """An empty figure, in inches."""
    return _figure_type()(figsize=(width, height), layout="constrained")


@cache
def _figure_type() -> type[Figure]:
    from matplotlib.figure import Figure

    class NotebookFigure(Figure):
        """A figure that notebooks show though pyplot does not know it."""

        def _repr_png_(self) -> bytes:
            data = io.BytesIO()
            self.savefig(data, format="png", dpi=110, bbox_inches="tight")
            return data.getvalue()

    return NotebookFigure


def save_figure(figure: Figure, path: Path, *, exact: bool = False) -> Path:
    """Save under the format of the path's ending, whole or not at all; cut to what is drawn, or exactly as large as the
    figure says."""
    with whole_file(path) as temporary:
        # Without dates in it, the same numbers give the same file.
        metadata = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(path.suffix[1:])
        figure.savefig(
            temporary, format=path.suffix[1:], dpi=200, bbox_inches=None if exact else "tight", metadata=metadata
        )
    return path


def head_map(
    scores: Scores, *, label: Sequence[tuple[int, int]] = (), title: str = "", width: float | None = None
) -> Figure:
    """Heads by layers, coloured by score around zero; those in `label` show their score where it fits. title: what to
    say behind task, model and method; how many prompts there are, if nothing else."""
    limit = float(np.abs(scores.values).max()) or 1.0
    prompts = f"{len(scores.per_prompt)} prompts" if len(scores.per_prompt) else ""
    # (Without prompts they are no effects: how much of a pattern a head has.)
    scale = "Score (positive: it helps)" if prompts else "Score"
    title = about(scores, title or prompts)
    figure, axes, flat = head_grid(
        scores.values, title=title, colours="PuOr_r", limits=(-limit, limit), scale=scale, width=width
    )
    room = width is None or cell_of(max(scores.values.shape), width) > 0.2
    for layer, head in label if room else ():
        value = scores.values[layer, head]
        x, y = (layer, head) if flat else (head, layer)
        axes.text(
            x, y, f"{value:.1f}" if limit >= 1 else f"{value:.2f}", ha="center", va="center", fontsize=5.5,
            color="white" if abs(value) > 0.55 * limit else "black",
        )  # fmt: skip
    return figure


def about(record: Any, *more: str) -> str:
    """What stands above a figure: its task, model and method, as far as they are known, and more words."""
    words = [word for word in (record.model, getattr(record, "method", ""), *more) if word]
    return f"{task_title(record.task) or 'Heads'}: {', '.join(words)}"


def head_grid(
    values_LH: np.ndarray, *, title: str, colours: str, limits: tuple[float, float], scale: str,
    width: float | None = None,
) -> tuple[Figure, Axes, bool]:  # fmt: skip
    """A coloured cell per head, and a bar that says what colours mean. The longer side lies flat: whether that is the
    layers is the third thing returned."""
    L, H = values_LH.shape
    flat = L > H
    values = values_LH.T if flat else values_LH
    rows, columns = values.shape
    cell = 0.27 if width is None else cell_of(columns, width)
    high = max(1.9 if width is None else 1.4, rows * cell + 1.0)
    figure = blank(width or max(3.2, columns * cell + 1.5), high)
    axes = figure.subplots()
    image = axes.imshow(values, cmap=colours, vmin=limits[0], vmax=limits[1], aspect="auto", interpolation="nearest")
    label_heads(axes, rows, columns, flat)
    axes.set_title(title, fontsize=8, loc="left", wrap=width is not None)
    bar = figure.colorbar(image, ax=axes, fraction=0.04, pad=0.02)
    bar.ax.tick_params(labelsize=6)
    bar.set_label(scale, fontsize=6.5)
    return figure, axes, flat


def head_grids(named: Mapping[str, np.ndarray], *, title: str, width: float | None = None) -> Figure:
    """A grid of heads for each of several (L, H) arrays, from 0 to 1, or from -1 to 1 where one has values below 0."""
    figure, panels = panel_grid(len(named), (2.2, 2.0), width)
    for axes, (name, values_LH) in zip(panels, named.items(), strict=True):
        flat = values_LH.shape[0] > values_LH.shape[1]
        values = values_LH.T if flat else values_LH
        look = {"cmap": "PuOr_r", "vmin": -1} if (values < 0).any() else {"cmap": "Blues", "vmin": 0}
        image = axes.imshow(values, vmax=1, aspect="auto", interpolation="nearest", **look)
        rows, columns = values.shape
        label_heads(axes, rows, columns, flat)
        axes.set_xticks(range(0, columns, math.ceil(columns / 6)))
        axes.set_title(name, fontsize=8, loc="left")
        figure.colorbar(image, ax=axes, fraction=0.05, pad=0.02).ax.tick_params(labelsize=6)
    figure.suptitle(title, fontsize=8, x=0.01, ha="left")
    return figure


def cell_of(columns: int, width: float) -> float:
    """Side of a cell in inches where so many stand side by side in a figure of that width."""
    return min(0.4, (width - 1.2) / columns)


def label_heads(axes: Axes, rows: int, columns: int, flat: bool) -> None:
    """Ticks and names of a grid of heads; layers go upward where they do not lie flat."""
    axes.set_xticks(range(0, columns, max(1, columns // 16)))
    axes.set_yticks(range(0, rows, max(1, rows // 16)))
    axes.tick_params(labelsize=7, length=2)
    axes.set_xlabel("Layer" if flat else "Head", fontsize=8)
    axes.set_ylabel("Head" if flat else "Layer", fontsize=8)
    if not flat:
        axes.invert_yaxis()


def panel_grid(count: int, panel: tuple[float, float], width: float | None = None) -> tuple[Figure, list[Axes]]:
    """Panels of about that size side by side; in a figure of a given width, in as many rows as they need."""
    columns = count if width is None else max(1, min(count, int(width / 1.5)))
    rows = math.ceil(count / columns)
    high = panel[1] if width is None else min(panel[1], max(1.5, panel[1] * width / columns / panel[0]))
    figure = blank(width or panel[0] * count + 0.4, high * rows)
    every = figure.subplots(rows, columns, squeeze=False).ravel().tolist()
    for axes in every[count:]:
        axes.remove()
    return figure, every[:count]


def legend_fit(columns: int, width: float | None) -> dict[str, Any]:
    """So many columns of a legend outside, or as many as fit into a figure of a given width."""
    narrow = (
        {"ncols": max(1, min(columns, int(width / 1.05))), "handlelength": 1.4, "columnspacing": 1.0} if width else {}
    )
    return {"ncols": columns, "frameon": False, **narrow}


def by_task(curves: Iterable[Curve]) -> dict[str, list[Curve]]:
    groups: dict[str, list[Curve]] = {}
    for curve in curves:
        groups.setdefault(curve.task, []).append(curve)
    return groups


# Okabe and Ito's colours, which stay apart for colour-blind readers; panels take them in pairs.
PALETTES = (("#0072B2", "#E69F00", "#D55E00", "#56B4E9"), ("#009E73", "#CC79A7", "#F0E442", "#000000"))


def times(ratio: float) -> str:
    """A multiplier as a figure shows it."""
    return f"{ratio:.1f}x" if ratio >= 0.1 else f"{ratio:.2g}x"


def common_words(labels: Iterable[str]) -> list[str]:
    """What all labels say, which a legend need say only once; nothing where a label would have nothing left."""
    said = [label.split(", ") for label in dict.fromkeys(labels)]
    common = [words for words in said[0] if all(words in other for other in said)]
    return common if all(len(words) > len(common) for words in said) else []


def curve_panels(
    curves: Mapping[str, Sequence[Curve]], *, bands: Mapping[str, Sequence[Curve]],
    segments: Mapping[str, tuple[float, float, float]], threshold: float, what: str = "Heads", log: bool = False,
    width: float | None = None,
) -> Figure:  # fmt: skip
    """A panel per task: explained effect against the number of heads kept, a line with its band per series.

    bands: rankings at random, in grey. segments: by task, where two curves reach the threshold and their multiplier,
    drawn as a dashed line between them.
    """
    figure, panels = panel_grid(len(curves), (2.5, 2.3), width)
    common = common_words(curve.label for series in curves.values() for curve in series)
    legend = {"title": ", ".join(common) or None, "title_fontsize": 6, "alignment": "left"}
    for place, (axes, (task, series)) in enumerate(zip(panels, curves.items(), strict=True)):
        # In a narrow figure one legend serves all panels, so colours must.
        colours = PALETTES[place // 2 % len(PALETTES) if width is None else 0]
        for band in bands.get(task, ())[:1]:
            axes.fill_between(band.k, band.low, band.high, color="0.5", alpha=0.25, linewidth=0)
            axes.plot(band.k, band.explained, color="0.5", linewidth=0.9, linestyle=":", label=f"{band.model}, random")
        for curve, colour in zip(series, colours * len(series), strict=False):
            # (A log axis has no place for the empty circuit.)
            drawn = curve.k > 0 if log else slice(None)
            axes.fill_between(
                curve.k[drawn], curve.low[drawn], curve.high[drawn], color=colour, alpha=0.22, linewidth=0
            )
            label = ", ".join(words for words in curve.label.split(", ") if words not in common)
            axes.plot(curve.k[drawn], curve.explained[drawn], color=colour, linewidth=1.4, label=label)
        if task in segments:
            first, second, ratio = segments[task]
            axes.plot([first, second], [threshold] * 2, color="black", linestyle="--", linewidth=1)
            middle = (first * second) ** 0.5 if log and min(first, second) > 0 else (first + second) / 2
            axes.annotate(
                times(ratio), (middle, threshold), xytext=(0, 3), textcoords="offset points", ha="center",
                fontsize=8, bbox={"facecolor": "white", "alpha": 0.5, "edgecolor": "none", "pad": 0.8},
            )  # fmt: skip
        drawn = [*series, *bands.get(task, ())[:1]]
        low = min(0.0, *(float(curve.explained.min()) for curve in drawn))
        high = max(1.0, *(float(curve.explained.max()) for curve in drawn))
        # On a log axis curves end in the upper right and begin in the lower left: the legend gets room above them.
        room = 0.04 + 0.1 * (len(drawn) + bool(common)) if log and width is None else 0.0
        axes.set_ylim(max(low, -0.5) - 0.05, min(high, 2.0) + 0.12 + room)
        axes.set_yticks([0.0, 0.5, 1.0])
        axes.grid(axis="y", color="0.9", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=7, length=2)
        if log:
            axes.set_xscale("log")
        axes.set_title(task_title(task), fontsize=9, loc="left")
        axes.set_xlabel(f"Number of {what} Kept", fontsize=8 if width is None else 7)
        axes.set_ylabel("Explained Effect", fontsize=8 if width is None else 7)
        if place % 2 == 0 and width is None:
            place_of_legend = "upper left" if log else "lower right"
            axes.legend(fontsize=6, loc=place_of_legend, framealpha=0.85, edgecolor="none", **legend)
    if width is not None:
        handles, _ = panels[0].get_legend_handles_labels()
        fit = legend_fit(len(handles), width / 1.6)
        figure.legend(handles=handles, loc="outside upper center", fontsize=6.5, **fit, **legend)
        rows = math.ceil(len(handles) / fit["ncols"]) + bool(common)
        figure.set_figheight(figure.get_figheight() + 0.15 * rows)
    return figure
