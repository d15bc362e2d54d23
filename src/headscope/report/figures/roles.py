"""Figures of head roles, drawn from records alone (no torch)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from headscope.records import ROLES, Ablation, Check, Roles
from headscope.report.figures.panels import blank, cell_of, label_heads, legend_fit, panel_grid
from headscope.report.figures.titles import task_title

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

# Green, blue and red of Okabe and Ito, which stay apart for colour-blind readers.
COLOURS = {"facilitation": "#009E73", "irrelevance": "#0072B2", "interference": "#D55E00"}
NEITHER = "#DDDDDD"


def _keys() -> list[Patch]:
    """What a legend says of colours."""
    from matplotlib.patches import Patch

    return [Patch(color=colour, label=role.capitalize()) for role, colour in COLOURS.items()]


def ablation_grid(checks: Sequence[Check], ablations: Sequence[Ablation], *, width: float | None = None) -> Figure:
    """A row per task, a column per model: change of the target's log-probability against the number of ablated heads, a
    line per score with a band from the lowest seed to the highest. A task that a model does not do says so."""
    tasks = list(dict.fromkeys(check.task for check in checks))
    models = list(dict.fromkeys(check.model for check in checks))
    curves = {(a.model, a.task): a for a in ablations}
    figure = blank(width or 2.6 * len(models) + 0.6, (1.9 if width is None else 1.5) * len(tasks) + 0.7)
    panels = figure.subplots(len(tasks), len(models), squeeze=False)
    for check in checks:
        row, column = tasks.index(check.task), models.index(check.model)
        axes = panels[row][column]
        axes.tick_params(labelsize=7, length=2)
        axes.spines[["top", "right"]].set_visible(False)
        if row == 0:
            axes.set_title(check.model, fontsize=9)
        if column == 0:
            axes.set_ylabel(f"{task_title(check.task)}\nΔ log P(target)", fontsize=8)
        curve = curves.get((check.model, check.task))
        if curve is None:
            _say(axes, f"does not do the task\n(accuracy {check.accuracy:.2f})")
            continue
        axes.axhline(0, color="0.7", linewidth=0.8)
        for role in ROLES:
            by_seed = curve.by_seed(role)
            low, high = by_seed.min(0), by_seed.max(0)
            axes.fill_between(curve.k, low, high, color=COLOURS[role], alpha=0.2, linewidth=0)
            axes.plot(curve.k, by_seed.mean(0), color=COLOURS[role], linewidth=1.4)
    for axes in panels[-1]:
        axes.set_xlabel("Number of Ablated Heads", fontsize=8)
    figure.legend(handles=_keys(), loc="outside upper center", fontsize=7 if width else 8, **legend_fit(3, width))
    return figure


def _say(axes, text: str) -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[["bottom", "left"]].set_visible(False)
    axes.text(0.5, 0.5, text, ha="center", va="center", fontsize=8, color="0.4", transform=axes.transAxes)


def score_distributions(all_roles: Sequence[Roles], *, width: float | None = None) -> Figure:
    """A panel per task: the share of heads whose score is at most x, a colour per score, a dash per model."""
    tasks = list(dict.fromkeys(roles.task for roles in all_roles))
    models = list(dict.fromkeys(roles.model for roles in all_roles))
    figure, panels = panel_grid(len(tasks), (2.5, 2.5), width)
    for roles in all_roles:
        axes = panels[tasks.index(roles.task)]
        dash = ("-", "--", ":", "-.")[models.index(roles.model) % 4]
        for role in ROLES:
            values = np.sort(getattr(roles, role).ravel())
            share = np.arange(1, len(values) + 1) / len(values)
            axes.step(values, share, where="post", color=COLOURS[role], linestyle=dash, linewidth=1.2)
    for axes, task in zip(panels, tasks, strict=True):
        axes.axvline(0.5, color="0.8", linewidth=0.8)
        axes.set_title(task_title(task), fontsize=9, loc="left")
        axes.set_xlabel("Score", fontsize=8)
        axes.set_ylabel("Share of Heads", fontsize=8)
        axes.set_xlim(0, 1)
        axes.set_ylim(0, 1.02)
        axes.tick_params(labelsize=7, length=2)
        axes.spines[["top", "right"]].set_visible(False)
    handles: list = _keys()
    if len(models) > 1:
        handles += [
            panels[0].plot([], [], color="black", linestyle=("-", "--", ":", "-.")[i % 4], label=name)[0]
            for i, name in enumerate(models)
        ]
    figure.legend(handles=handles, loc="outside upper center", fontsize=7, **legend_fit(3, width))
    return figure


def role_map(roles: Roles, *, width: float | None = None) -> Figure:
    """Heads by layers, coloured by the role that a head has in most seeds, the fainter the fewer. The longer side lies
    flat."""
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    role_LH = roles.commonest
    L, H = role_LH.shape
    flat = L > H
    mean = np.stack([getattr(roles, role).mean(0) for role in ROLES])
    opacity = np.where(role_LH >= 0, np.take_along_axis(mean, np.maximum(role_LH, 0)[None], 0)[0], 1.0)
    cells, alpha = (role_LH.T, opacity.T) if flat else (role_LH, opacity)
    rows, columns = cells.shape
    cell = 0.22 if width is None else cell_of(columns, width)
    high = max(2.0 if width is None else 1.4, rows * cell + 1.2)
    figure = blank(width or max(3.6, columns * cell + 1.0), high)
    axes = figure.subplots()
    colours = ListedColormap([NEITHER, *(COLOURS[role] for role in ROLES)])
    axes.imshow(
        cells, cmap=colours, vmin=-1.5, vmax=len(ROLES) - 0.5, alpha=np.clip(alpha, 0.25, 1.0), aspect="auto",
        interpolation="nearest",
    )  # fmt: skip
    label_heads(axes, rows, columns, flat)
    seeds = len(roles.g_plus)
    axes.set_title(f"{task_title(roles.task)}: {roles.model}, {seeds} seeds", fontsize=8, loc="left")
    handles = [*_keys(), Patch(color=NEITHER, label="None")]
    figure.legend(handles=handles, loc="outside lower center", fontsize=6.5, **legend_fit(4, width))
    return figure
