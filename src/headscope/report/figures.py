"""Figures for people and papers, drawn from records alone (no torch)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headscope.files import whole_file
from headscope.report.titles import TITLES
from headscope.results import Curve, Scores

FORMATS = ("png", "svg", "pdf")


def save_figure(figure: Figure, path: Path) -> Path:
    """Save under the format of the path's ending, whole or not at all."""
    with whole_file(path) as temporary:
        # Without dates in it, the same numbers give the same file.
        metadata = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(path.suffix[1:])
        figure.savefig(temporary, format=path.suffix[1:], dpi=200, bbox_inches="tight", metadata=metadata)
    return path


def head_map(scores: Scores, *, label: Sequence[tuple[int, int]] = ()) -> Figure:
    """Heads by layers, coloured by score around zero; those in `label` show their score."""
    limit = float(np.abs(scores.values).max()) or 1.0
    task = TITLES.get(scores.task, scores.task)
    title = f"{task}: {scores.model}, {scores.method}, {len(scores.per_prompt)} prompts"
    figure, axes, flat = head_grid(
        scores.values, title=title, colours="PuOr_r", limits=(-limit, limit), scale="Score (positive: it helps)"
    )
    for layer, head in label:
        value = scores.values[layer, head]
        x, y = (layer, head) if flat else (head, layer)
        axes.text(
            x, y, f"{value:.1f}" if limit >= 1 else f"{value:.2f}", ha="center", va="center", fontsize=5.5,
            color="white" if abs(value) > 0.55 * limit else "black",
        )  # fmt: skip
    return figure


def head_grid(
    values_LH: np.ndarray, *, title: str, colours: str, limits: tuple[float, float], scale: str
) -> tuple[Figure, Axes, bool]:
    """A coloured cell per head, and a bar that says what colours mean. The longer side lies flat: whether that is the
    layers is the third thing returned."""
    L, H = values_LH.shape
    flat = L > H
    values = values_LH.T if flat else values_LH
    rows, columns = values.shape
    cell = 0.27
    figure = Figure(figsize=(max(3.2, columns * cell + 1.5), max(1.9, rows * cell + 1.0)), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(values, cmap=colours, vmin=limits[0], vmax=limits[1], aspect="auto", interpolation="nearest")
    label_heads(axes, rows, columns, flat)
    axes.set_title(title, fontsize=8, loc="left")
    bar = figure.colorbar(image, ax=axes, fraction=0.04, pad=0.02)
    bar.ax.tick_params(labelsize=6)
    bar.set_label(scale, fontsize=6.5)
    return figure, axes, flat


def label_heads(axes: Axes, rows: int, columns: int, flat: bool) -> None:
    """Ticks and names of a grid of heads; layers go upward where they do not lie flat."""
    axes.set_xticks(range(0, columns, max(1, columns // 16)))
    axes.set_yticks(range(0, rows, max(1, rows // 16)))
    axes.tick_params(labelsize=7, length=2)
    axes.set_xlabel("Layer" if flat else "Head", fontsize=8)
    axes.set_ylabel("Head" if flat else "Layer", fontsize=8)
    if not flat:
        axes.invert_yaxis()


# Okabe and Ito's colours, which stay apart for colour-blind readers; panels take them in pairs.
PALETTES = (("#0072B2", "#E69F00", "#D55E00", "#56B4E9"), ("#009E73", "#CC79A7", "#F0E442", "#000000"))


def curve_panels(
    curves: Mapping[str, Sequence[Curve]], *, bands: Mapping[str, Sequence[Curve]],
    segments: Mapping[str, tuple[float, float, float]], threshold: float, what: str = "Heads", log: bool = False,
) -> Figure:  # fmt: skip
    """A panel per task: explained effect against the number of heads kept, a line with its band per series.

    bands: rankings at random, in grey. segments: by task, where two curves reach the threshold and their multiplier,
    drawn as a dashed line between them.
    """
    figure = Figure(figsize=(2.5 * len(curves) + 0.4, 2.3), layout="constrained")
    panels = figure.subplots(1, len(curves), squeeze=False)[0]
    for place, (axes, (task, series)) in enumerate(zip(panels, curves.items(), strict=True)):
        colours = PALETTES[place // 2 % len(PALETTES)]
        for band in bands.get(task, ())[:1]:
            axes.fill_between(band.k, band.low, band.high, color="0.5", alpha=0.25, linewidth=0)
            axes.plot(band.k, band.explained, color="0.5", linewidth=0.9, linestyle=":", label=f"{band.model}, random")
        for curve, colour in zip(series, colours * len(series), strict=False):
            axes.fill_between(curve.k, curve.low, curve.high, color=colour, alpha=0.22, linewidth=0)
            axes.plot(curve.k, curve.explained, color=colour, linewidth=1.4, label=curve.label)
        if task in segments:
            first, second, ratio = segments[task]
            axes.plot([first, second], [threshold] * 2, color="black", linestyle="--", linewidth=1)
            middle = (first * second) ** 0.5 if log and min(first, second) > 0 else (first + second) / 2
            axes.annotate(
                f"{ratio:.1f}x", (middle, threshold), xytext=(0, 3), textcoords="offset points", ha="center",
                fontsize=8, bbox={"facecolor": "white", "alpha": 0.5, "edgecolor": "none", "pad": 0.8},
            )  # fmt: skip
        drawn = [*series, *bands.get(task, ())[:1]]
        low = min(0.0, *(float(curve.explained.min()) for curve in drawn))
        high = max(1.0, *(float(curve.explained.max()) for curve in drawn))
        axes.set_ylim(max(low, -0.5) - 0.05, min(high, 2.0) + 0.12)
        axes.set_yticks([0.0, 0.5, 1.0])
        axes.grid(axis="y", color="0.9", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=7, length=2)
        if log:
            axes.set_xscale("log")
        axes.set_title(TITLES.get(task, task), fontsize=9, loc="left")
        axes.set_xlabel(f"Number of {what} Kept", fontsize=8)
        axes.set_ylabel("Explained Effect", fontsize=8)
        if place % 2 == 0:
            place_of_legend = "upper left" if log else "lower right"
            axes.legend(fontsize=6, loc=place_of_legend, frameon=True, framealpha=0.85, edgecolor="none")
    return figure
