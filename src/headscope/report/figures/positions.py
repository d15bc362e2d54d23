"""Scores at each position: layers, or the heads that matter most, by the tokens of the prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from headscope.records import Scores
from headscope.report.figures.panels import blank, head_grid
from headscope.report.figures.titles import task_title

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def heat_map(scores: Scores, *, rows: int = 20, width: float | None = None) -> Figure:
    """Scores that are not of heads alone, coloured around zero: components by layers, or layers; or, at each position,
    layers (or the heads that matter most, at most `rows` of them) by positions, with the prompt's tokens."""
    if "position" in scores.axes:
        return position_map(scores, rows=rows, width=width)
    limit = float(np.abs(scores.values).max()) or 1.0
    figure, axes, flat = head_grid(
        scores.whole, title=title_of(scores), colours="PuOr_r", limits=(-limit, limit),
        scale="Score (positive: it helps)", width=width,
    )  # fmt: skip
    labels = [f"H{head}" for head in range(scores.whole.shape[1] - 1)] + ["MLP"] if "component" in scores.axes else [""]
    (axes.set_yticks if flat else axes.set_xticks)(range(len(labels)), labels)
    (axes.set_ylabel if flat else axes.set_xlabel)("")
    return figure


def position_map(scores: Scores, *, rows: int = 20, width: float | None = None) -> Figure:
    """Scores at each position, (L, T), or (L, H, T) of the heads that matter most."""
    T = scores.values.shape[-1]
    if scores.values.ndim == 2:
        shown = [(layer, 0) for layer in range(len(scores.values))]
    else:
        shown = sorted(scores.ranked()[:rows])
    values = np.stack([scores.values.reshape(*scores.whole.shape, T)[layer, place] for layer, place in shown])
    limit = float(np.abs(scores.values).max()) or 1.0
    figure = blank(width or max(3.6, 0.32 * T + 1.6), max(2.0, 0.2 * len(shown) + 1.3))
    axes = figure.subplots()
    image = axes.imshow(values, cmap="PuOr_r", vmin=-limit, vmax=limit, aspect="auto", interpolation="nearest")
    # (Between dollar signs matplotlib would read mathematics.)
    tokens = [token.strip().replace("$", r"\$") or repr(token)[1:-1] for token in scores.tokens]
    axes.set_xticks(range(T), tokens or list(map(str, range(T))), rotation=60, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(shown)), [scores.name(layer, place) for layer, place in shown])
    axes.tick_params(labelsize=6.5, length=2)
    if scores.values.ndim == 2:
        axes.invert_yaxis()
    axes.set_title(title_of(scores), fontsize=8, loc="left", wrap=True)
    bar = figure.colorbar(image, ax=axes, fraction=0.04, pad=0.02)
    bar.ax.tick_params(labelsize=6)
    bar.set_label("Score (positive: it helps)", fontsize=6.5)
    return figure


def title_of(scores: Scores) -> str:
    site = scores.settings.get("site", "z")
    said = "" if site == "z" else f" of {site}"
    task = task_title(scores.task)
    return f"{task}: {scores.model}, {scores.method}{said}, {len(scores.per_prompt)} prompts"
