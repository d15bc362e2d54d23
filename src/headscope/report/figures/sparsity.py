"""Figures of sparse attention: how a training went, and attention maps dense against sparse (no torch)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from headscope.records import Attention, Sparsity, head_name
from headscope.report.figures.panels import blank, head_grid, panel_grid

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


def open_heads(*models: Attention, prompt: int = 0, width: float | None = None) -> Figure:
    """Attention maps of one or two models on a prompt, of the heads through which most passes in the last of them."""
    each = [one.patterns[prompt].astype(np.float32) for one in models]
    # The first token is left aside: nearly all rest there.
    columns = SHOWN if width is None else max(2, min(SHOWN, int(width / 1.4)))
    order = np.argsort(-each[-1][:, :, :, 1:].sum((2, 3)), axis=None)[:columns]
    chosen = [divmod(int(at), each[-1].shape[1]) for at in order]
    heads = {head_name(l, h): [patterns[l, h] for patterns in each] for l, h in chosen}
    return attention_maps(models[0].tokens[prompt], heads, [one.model for one in models], width=width)


def attention_maps(
    tokens: Sequence[str], heads: Mapping[str, Sequence[np.ndarray]], names: Sequence[str], *,
    width: float | None = None,
) -> Figure:  # fmt: skip
    """A column per head: its attention on one prompt, a row per model (the dense one above the sparse one)."""
    size = max(1.7, 0.115 * len(tokens))
    whole = size * len(heads) + 1.0, len(names) * size + 0.9
    # Letters shrink with the whole, or they would not fit any more.
    by = 1.0 if width is None else width / whole[0]
    figure = blank(whole[0] * by, whole[1] * by)
    panels, none = figure.subplots(len(names), len(heads), squeeze=False), [""] * len(tokens)
    for column, (head, patterns) in enumerate(heads.items()):
        for row, pattern_TS in enumerate(patterns):
            axes = panels[row, column]
            axes.imshow(pattern_TS, cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
            below, beside = row == len(names) - 1, column == 0
            axes.set_xticks(range(len(tokens)), tokens if below else none, rotation=90, fontsize=5 * by)
            axes.set_yticks(range(len(tokens)), tokens if beside else none, fontsize=5 * by)
            axes.tick_params(length=1)
            edges = int((pattern_TS > 0).sum())
            axes.set_title(f"{head}: {edges} edges", fontsize=7 * by, loc="left")
            if column == 0:
                axes.set_ylabel(names[row], fontsize=8 * by)
    return figure


def open_share(sparsity: Sparsity, *, width: float | None = None) -> Figure:
    """A cell per head: the share of its attention edges that are open."""
    title, limits = f"{sparsity.model}: attention edges that are open", (0.0, float(sparsity.rates.max()))
    return head_grid(sparsity.rates, title=title, colours="Blues", limits=limits, scale="Share", width=width)[0]
