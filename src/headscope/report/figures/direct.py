"""What components write into the logits, and the logit lens, as figures (no torch)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from headscope.records import Direct, Lens
from headscope.report.figures.panels import PALETTES, about, blank

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Components that a figure over positions shows.
SHOWN = 24


def direct_bars(direct: Direct, *, k: int = SHOWN, prompt: int | None = None, width: float | None = None) -> Figure:
    """The k components that write most for or against the answer, as bars in the order of the model; over positions, as
    a heat map. prompt: one of them instead of the mean over all."""
    values = direct.values if prompt is None else direct.per_prompt[prompt]
    at_answer = values if values.ndim == 1 else np.abs(values).max(-1)
    chosen = np.sort(np.argsort(-np.abs(at_answer), kind="stable")[:k])
    names = [direct.components[at] for at in chosen]
    title = about(direct, "direct", f"{len(direct.total)} prompts" if prompt is None else f"prompt {prompt}")
    if values.ndim == 2:
        tokens = _tokens(direct.tokens, prompt, values.shape[1])
        return heat_map(values[chosen], names, tokens, title=title, scale="Logit difference", width=width)
    figure = blank(width or 3.8, 0.155 * len(names) + 0.8)
    axes = figure.subplots()
    colours = np.where(values[chosen] > 0, "#B35806", "#542788")
    axes.barh(range(len(names)), values[chosen], color=colours, height=0.75)
    axes.set_yticks(range(len(names)), names, fontsize=6.5)
    axes.axvline(0, color="0.6", linewidth=0.8)
    axes.set_xlabel("Written into the logit difference", fontsize=8)
    axes.tick_params(labelsize=6.5, length=2)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(title, fontsize=8, loc="left", wrap=width is not None)
    return figure


def lens_figure(lens: Lens, *, prompt: int | None = None, width: float | None = None) -> Figure:
    """Logit difference after every layer, the mean over prompts and their middle half; over positions, of one prompt,
    with the likeliest token in each cell."""
    if lens.values.ndim == 2:
        prompt = prompt or 0
        words = np.array(lens.words, dtype=object)[lens.likeliest[prompt]]
        title = about(lens, "logit lens", f"prompt {prompt}")
        tokens = _tokens(lens.tokens, prompt, lens.values.shape[1])
        return heat_map(
            lens.probability[prompt], lens.points, tokens, title=title, scale="Probability of the likeliest token",
            words=words, width=width,
        )  # fmt: skip
    each = lens.per_prompt if prompt is None else lens.per_prompt[prompt : prompt + 1]
    figure = blank(width or 3.8, 2.3)
    axes = figure.subplots()
    at = range(len(lens.points))
    low, high = np.percentile(each, [25, 75], axis=0)
    axes.fill_between(at, low, high, color=PALETTES[0][0], alpha=0.22, linewidth=0)
    axes.plot(at, each.mean(0), color=PALETTES[0][0], linewidth=1.4)
    axes.axhline(0, color="0.7", linewidth=0.8)
    every = max(1, len(lens.points) // 10)
    axes.set_xticks(at[::every], ["–", *(point.removeprefix("layer ") for point in lens.points[1:])][::every])
    axes.set_xlabel("Read after layer (–: embedding)", fontsize=8)
    axes.set_ylabel("Logit difference", fontsize=8)
    axes.tick_params(labelsize=7, length=2)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(about(lens, "logit lens", f"{len(each)} prompts"), fontsize=8, loc="left", wrap=width is not None)
    return figure


def heat_map(
    values_RT: np.ndarray, rows: Sequence[str], tokens: Sequence[str], *, title: str, scale: str,
    words: np.ndarray | None = None, width: float | None = None,
) -> Figure:  # fmt: skip
    """A row per component or layer, the first at the bottom, a column per position with its token. words: what stands
    in the cells, which are then as wide as words need."""
    R, T = values_RT.shape
    cell = 0.3 if words is None else 0.62
    figure = blank(width or max(3.4, T * cell + 1.8), max(1.6, 0.17 * R + 1.1))
    axes = figure.subplots()
    signed = bool((values_RT < 0).any())
    limit = float(np.abs(values_RT).max()) or 1.0
    look = {"cmap": "PuOr_r", "vmin": -limit} if signed else {"cmap": "Blues", "vmin": 0.0}
    image = axes.imshow(values_RT, vmax=limit, aspect="auto", interpolation="nearest", origin="lower", **look)
    axes.set_xticks(range(T), [_visible(token) for token in tokens], rotation=90, fontsize=6)
    every = max(1, R // 40)
    axes.set_yticks(range(0, R, every), list(rows)[::every], fontsize=6)
    axes.tick_params(length=2)
    if words is not None and (width is None or width / T > 0.4):
        for (row, column), word in np.ndenumerate(words):
            colour = "white" if values_RT[row, column] > 0.6 * limit else "black"
            axes.text(column, row, _visible(word)[:9], ha="center", va="center", fontsize=4.5, color=colour)
    axes.set_title(title, fontsize=8, loc="left", wrap=width is not None)
    bar = figure.colorbar(image, ax=axes, fraction=0.04, pad=0.02)
    bar.ax.tick_params(labelsize=6)
    bar.set_label(scale, fontsize=6.5)
    return figure


def _tokens(tokens: Sequence[Sequence[str]], prompt: int | None, count: int) -> list[str]:
    """The tokens of a prompt; of several, their numbers, unless all have the same token there."""
    if prompt is not None:
        return list(tokens[prompt])
    columns = [{row[at] for row in tokens} for at in range(count)]
    return [column.pop() if len(column) == 1 else f"({at})" for at, column in enumerate(columns)]


def _visible(token: str) -> str:
    return token.replace("\n", "\\n").replace("$", "\\$").strip() or "␣"
