"""Figures for people and papers, drawn from records alone (no torch)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from headscope.results import Scores, whole_file

FORMATS = ("png", "svg", "pdf")


def save_figure(figure: Figure, path: Path) -> Path:
    """Save under the format of the path's ending, whole or not at all."""
    with whole_file(path) as temporary:
        # Without dates in it, the same numbers give the same file.
        metadata = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(path.suffix[1:])
        figure.savefig(temporary, format=path.suffix[1:], dpi=200, bbox_inches="tight", metadata=metadata)
    return path


def head_map(scores: Scores, *, label: Sequence[tuple[int, int]] = ()) -> Figure:
    """Layers x heads, coloured by score around zero; the heads in `label` are named."""
    L, H = scores.values.shape
    cell = 0.34
    figure = Figure(figsize=(max(3.0, H * cell + 1.6), max(2.4, L * cell * 0.72 + 1.1)), layout="constrained")
    axes = figure.subplots()
    limit = float(np.abs(scores.values).max()) or 1.0
    image = axes.imshow(scores.values, cmap="PuOr_r", vmin=-limit, vmax=limit, aspect="auto", interpolation="nearest")
    for layer, head in label:
        dark = abs(scores.values[layer, head]) > 0.55 * limit
        axes.text(
            head, layer, f"{scores.values[layer, head]:.2f}", ha="center", va="center", fontsize=5.5,
            color="white" if dark else "black",
        )  # fmt: skip
    axes.set_xticks(range(0, H, max(1, H // 16)))
    axes.set_yticks(range(0, L, max(1, L // 16)))
    axes.tick_params(labelsize=7, length=2)
    axes.set_xlabel("Head", fontsize=8)
    axes.set_ylabel("Layer", fontsize=8)
    axes.invert_yaxis()
    axes.set_title(f"{scores.task}: {scores.model}\n{scores.method}, {len(scores.per_prompt)} prompts", fontsize=8)
    bar = figure.colorbar(image, ax=axes, fraction=0.06, pad=0.03)
    bar.ax.tick_params(labelsize=6)
    bar.set_label("Score (positive: the head helps)", fontsize=7)
    return figure
