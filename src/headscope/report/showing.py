"""How records show themselves (`Shown` in the records asks here): the figure of each kind, drawn by the functions that
the studies draw with, and its HTML: the interactive piece of the page where there is one, the figure where there is
none, and the table."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from headscope.errors import InputError
from headscope.records import (
    Ablation,
    Attention,
    Check,
    Circuit,
    Contrast,
    Curve,
    Direct,
    EdgeScores,
    Lens,
    Multipliers,
    Patterns,
    Roles,
    Scores,
    Sparsity,
)
from headscope.records.showing import Shown
from headscope.report.command import THRESHOLD
from headscope.report.figures.circuits import circuit_graph, circuit_picture
from headscope.report.figures.direct import direct_bars, lens_figure
from headscope.report.figures.multipliers import multiplier_curve
from headscope.report.figures.panels import about, curve_panels, head_grid, head_grids, head_map
from headscope.report.figures.positions import heat_map
from headscope.report.figures.roles import ablation_grid, role_map
from headscope.report.figures.sparsity import open_heads, open_share
from headscope.report.page.piece import piece_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def figure_of(record: Shown, **how: Any) -> Figure:
    """The figure of a record."""
    if type(record) not in FIGURES:
        kinds = ", ".join(kind.__name__ for kind in FIGURES)
        raise InputError(f"{type(record).__name__} has no figure, its table() says it all. Figures have: {kinds}.")
    return FIGURES[type(record)](record, **how)


def html_of(record: Shown) -> str:
    """A record as a notebook shows it."""
    table = record.table()
    shown = piece_of(record)
    if not shown and type(record) in FIGURES:
        picture = base64.b64encode(cast(Any, figure_of(record))._repr_png_()).decode()
        shown = f'<img alt="{type(record).__name__}" src="data:image/png;base64,{picture}">'
    if not shown:
        return table._repr_html_()
    return f"{shown}<details><summary>Table</summary>{table._repr_html_()}</details>"


def _scores(scores: Scores, **how: Any) -> Figure:
    if scores.axes != ["layer", "head"]:
        return heat_map(scores, **how)
    return head_map(scores, **{"label": scores.ranked()[:10], **how})


def _edges(scores: EdgeScores, *, k: int = 60, **how: Any) -> Figure:
    return _circuit(scores.circuit(k), **how)


def _circuit(circuit: Circuit, **how: Any) -> Figure:
    if circuit.shape:
        return circuit_picture(circuit_graph(circuit), **how)
    values = (circuit.keep if circuit.values is None else circuit.values).astype(np.float32)
    heads = [(int(l), int(h)) for l, h in np.argwhere(circuit.keep)]
    title = f"{len(circuit)} of {circuit.keep.size} heads"
    named = Scores(circuit.model, circuit.task, circuit.method, values, values[:0])
    return head_map(named, **{"label": () if circuit.values is None else heads, "title": title, **how})


def _curve(curve: Curve, *, threshold: float = THRESHOLD, **how: Any) -> Figure:
    what = curve.what.capitalize()
    options = {"bands": {}, "segments": {}, "what": what, "log": curve.what == "edges", **how}
    return curve_panels({curve.task: [curve]}, threshold=threshold, **options)


def _ablation(found: Ablation, **how: Any) -> Figure:
    # (The grid asks a check only which model and task it is of, where there is a curve.)
    nothing = float("nan")
    return ablation_grid([Check(found.model, found.task, 0, nothing, "", nothing, nothing)], [found], **how)


def _contrast(found: Contrast, *, width: float | None = None) -> Figure:
    title = f"{found.model}: gates that keep {found.keep} and forget {found.forget}"
    scale = "Gate, mean over seeds"
    return head_grid(found.gates.mean(0), title=title, colours="Blues", limits=(0, 1), scale=scale, width=width)[0]


def _patterns(patterns: Patterns, **how: Any) -> Figure:
    named = dict(zip(patterns.names, patterns.values, strict=True))
    return head_grids(named, title=about(patterns), **how)


FIGURES: dict[type[Shown], Callable[..., Figure]] = {
    Scores: _scores, EdgeScores: _edges, Circuit: _circuit, Curve: _curve, Multipliers: multiplier_curve,
    Roles: role_map, Ablation: _ablation, Contrast: _contrast, Attention: open_heads, Sparsity: open_share,
    Direct: direct_bars, Lens: lens_figure, Patterns: _patterns,
}  # fmt: skip
