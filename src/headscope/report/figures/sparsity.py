"""Figures of sparse attention: how a training went, and attention maps dense against sparse (no torch)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from headscope.records import Attention, head_name
from headscope.report.figures.panels import blank, panel_grid

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def training_curves(history: Sequence[Mapping[str, float]], constraint: str, *, width: float | None = None) -> Figure:
    """Three panels over steps: connectivity on a log axis, the weight of the penalty, and the loss, held out and in
    training, with the target it is held to."""
    figure, panels = panel_grid(3, (2.6, 2.2), width)
    steps = [row["step"] for row in history]
    titles = {"kl": "Divergence from the dense model", "ce": "Cross-entropy"}
    columns = (
        ("connectivity", "Open attention edges"),
        ("penalty_weight", "Weight of the penalty"),
        (constraint, titles[constraint]),
    )
    for axes, (column, title) in zip(panels, columns, strict=True):
        axes.plot(steps, [row[column] for row in history], color="#0072B2", linewidth=1.4, label="held out")
        axes.set_title(title, fontsize=9, loc="left")
        axes.set_xlabel("Step", fontsize=8)
        axes.tick_params(which="both", labelsize=7, length=2)
        axes.grid(axis="y", color="0.9", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_yscale("log")
    panels[1].set_yscale("log")
    panels[2].plot(steps, [row["train"] for row in history], color="#56B4E9", linewidth=1, label="in training")
    panels[2].axhline(history[-1]["target"], color="black", linestyle="--", linewidth=1, label="target")
    if constraint == "ce":
        panels[2].axhline(history[-1]["dense_ce"], color="0.5", linestyle=":", linewidth=1, label="dense")
    panels[2].legend(fontsize=7, frameon=False)
    return figure


# Heads shown in the attention maps.
SHOWN = 6


def open_heads(dense: Attention, sparse: Attention, *, width: float | None = None) -> Figure:
    """Attention maps on the first prompt, of the heads through which most passes in the sparse model."""
    both = [attention.patterns[0].astype(np.float32) for attention in (dense, sparse)]
    # The first token is left aside: nearly all rest there.
    columns = SHOWN if width is None else max(2, min(SHOWN, int(width / 1.4)))
    order = np.argsort(-both[1][:, :, :, 1:].sum((2, 3)), axis=None)[:columns]
    chosen = [divmod(int(at), both[1].shape[1]) for at in order]
    heads = {head_name(l, h): (both[0][l, h], both[1][l, h]) for l, h in chosen}
    return attention_maps(dense.tokens[0], heads, (dense.model, sparse.model), width=width)


def attention_maps(
    tokens: Sequence[str], heads: Mapping[str, tuple[np.ndarray, np.ndarray]], names: tuple[str, str], *,
    width: float | None = None,
) -> Figure:  # fmt: skip
    """A column per head: its attention on one prompt in the dense model above, in the sparse one below."""
    size = max(1.7, 0.115 * len(tokens))
    whole = size * len(heads) + 1.0, 2 * size + 0.9
    # Letters shrink with the whole, or they would not fit any more.
    by = 1.0 if width is None else width / whole[0]
    figure = blank(whole[0] * by, whole[1] * by)
    panels = figure.subplots(2, len(heads), squeeze=False)
    for column, (head, patterns) in enumerate(heads.items()):
        for row, pattern_TS in enumerate(patterns):
            axes = panels[row, column]
            axes.imshow(pattern_TS, cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
            axes.set_xticks(range(len(tokens)), tokens if row else [""] * len(tokens), rotation=90, fontsize=5 * by)
            axes.set_yticks(range(len(tokens)), [""] * len(tokens) if column else tokens, fontsize=5 * by)
            axes.tick_params(length=1)
            edges = int((pattern_TS > 0).sum())
            axes.set_title(f"{head}: {edges} edges", fontsize=7 * by, loc="left")
            if column == 0:
                axes.set_ylabel(names[row], fontsize=8 * by)
    return figure
