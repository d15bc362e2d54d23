"""One record as an interactive piece of the page, for notebooks: the page's own code and style in a frame that may run
them and nothing else (it reaches neither the notebook nor the network)."""

from __future__ import annotations

from typing import Any

import numpy as np

from headscope.records import Circuit, Curve, EdgeScores, Graph, Roles, Scores
from headscope.report.command import THRESHOLD
from headscope.report.figures.panels import about
from headscope.report.figures.titles import TITLES
from headscope.report.page.collect import curve_part, graph_part, role_part, score_part
from headscope.report.page.html import assemble
from headscope.report.reading import plain

# What each kind of piece builds on, in order.
SCRIPTS = {
    "scores": ("elements.js", "headmap.js"),
    "roles": ("elements.js", "curves.js", "headmap.js", "roles.js"),
    "curve": ("elements.js", "curves.js", "steps.js"),
    "graph": ("elements.js", "steps.js", "circuit.js"),
}
# Edges that a slider can show, and those shown at first.
MOST, FIRST = 500, 60


def piece_of(record: object) -> str:
    """A frame with the piece of a record; empty for records that have none."""
    made = _part(record)
    if made is None:
        return ""
    kind, part, height = made
    data = {"title": type(record).__name__, "titles": TITLES, "piece": kind, "record": part}
    page = assemble(plain(data), (*SCRIPTS[kind], "piece.js"))
    text = page.replace("&", "&amp;").replace("'", "&#39;")
    style = f"width: 100%; max-width: 1000px; height: {height}px; border: 0"
    return f'<iframe sandbox="allow-scripts" loading="lazy" style="{style}" srcdoc=\'{text}\'></iframe>'


def _part(record: object) -> tuple[str, dict[str, Any], int] | None:
    """Which piece shows a record, what it shows, and how high that is in pixels."""
    if isinstance(record, Scores) and record.axes == ["layer", "head"]:
        return "scores", {**score_part(record), "title": about(record)}, _map_height(record.values)
    if isinstance(record, Circuit) and not record.shape:
        values = record.keep if record.values is None else record.values
        shown = Scores(record.model, record.task, record.method, values.astype(np.float32), values[None])
        words = about(record, f"{len(record)} of {record.keep.size} heads")
        part = {**score_part(shown), "title": words, "members": np.flatnonzero(record.keep)}
        return "scores", part, _map_height(record.keep)
    if isinstance(record, Roles):
        return "roles", role_part(record), _map_height(record.commonest) + 30
    if isinstance(record, Curve):
        more = {"log": record.what == "edges", "what": record.what, "threshold": THRESHOLD}
        return "curve", {**curve_part(record, THRESHOLD), **more}, 390
    if isinstance(record, Circuit):
        record = EdgeScores(
            record.model, record.task, record.method,
            (record.keep if record.values is None else record.values).astype(np.float32),
            np.empty((0, record.keep.size), np.float32), record.shape, {"kept": len(record)},
        )  # fmt: skip
    if isinstance(record, EdgeScores):
        kept = record.settings.get("kept")
        part = graph_part(record, min(kept or MOST, MOST))
        return "graph", {**part, "start": kept or FIRST}, _graph_height(record.graph)
    return None


def _graph_height(graph: Graph) -> int:
    """As high as the circuit draws itself (circuit.js), and the words around it; a large one scrolls."""
    row = 15 if graph.n_layers > 40 else 25 if graph.n_layers > 16 else 44
    width = (graph.n_heads + 1) * max(13.0, min(62.0, 900 / (graph.n_heads + 1))) + 40
    return min(900, int(((graph.n_layers + 1.6) * row + 44) * max(420 / width, 1.05)) + 190)


def _map_height(values_LH: np.ndarray) -> int:
    """As high as the head map draws itself (headmap.js), and the words around it."""
    rows, columns = sorted(values_LH.shape)
    cell = 32 if columns <= 8 else 24 if columns <= 16 else 18
    return int((rows * cell + 36) * (1.35 if columns > 16 else 1)) + 180
