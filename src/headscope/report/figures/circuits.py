"""A circuit of edges as a picture and as files other tools read. From records alone (no torch)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.records import Circuit, Graph
from headscope.report.figures.panels import blank
from headscope.report.figures.titles import task_title

if TYPE_CHECKING:
    import networkx
    from matplotlib.figure import Figure


def circuit_graph(circuit: Circuit, **facts: Any) -> networkx.DiGraph:
    """A circuit of edges as a networkx graph, with their scores (1 each where it was named); readers q, k and v of a
    head are one node, named on the edge. facts: what more the graph says of itself."""
    import networkx

    graph = circuit.graph
    named = {name: getattr(circuit, name) for name in ("model", "task", "method")}
    out = networkx.DiGraph(**{**named, **facts}, edges_of_model=len(graph))
    values = np.ones(len(graph)) if circuit.values is None else circuit.values
    writer, reader = graph.ends
    for edge in np.flatnonzero(circuit.keep):
        source, target = graph.writers[writer[edge]], graph.readers[reader[edge]]
        node, part = _head_and_part(target)
        score, key = float(values[edge]), part or "in"
        if out.has_edge(source, node):
            out.edges[source, node]["score"] += score
            out.edges[source, node]["reads"] += f",{key}"
        else:
            out.add_edge(source, node, score=score, reads=key)
    for name in out.nodes:
        out.nodes[name]["layer"] = layer_of(name, graph)
    return out


def _head_and_part(reader: str) -> tuple[str, str]:
    """(L1.H2, q) from L1.H2.q; what is not split has no part."""
    pieces = reader.split(".")
    return ".".join(pieces[:2]), "".join(pieces[2:])


def layer_of(name: str, graph: Graph) -> float:
    """Height of a component: MLPs stand half a layer above the heads of their layer."""
    if name == "embedding":
        return -1.0
    if name == "logits":
        return float(graph.n_layers)
    layer = int(name[1:].split(".")[0])
    return layer + (0.5 if name.startswith("M") else 0.0)


def circuit_files(circuit: networkx.DiGraph) -> dict[str, bytes]:
    """The circuit as JSON (nodes and links) and as GraphML, by the ending of the file."""
    import networkx

    data: dict[str, Any] = networkx.node_link_data(circuit, edges="links")
    text = "\n".join(networkx.generate_graphml(circuit)) + "\n"
    return {".json": (json.dumps(data, indent=1) + "\n").encode(), ".graphml": text.encode()}


def circuit_picture(circuit: networkx.DiGraph, *, most: int = 60, width: float | None = None) -> Figure:
    """Layers upward, heads left and MLPs right, edges as wide as their score is large; at most the `most` largest.

    Heads keep the column of their number, so the same head is found at the same place in every picture of a model.
    """
    ordered = sorted(circuit.edges(data="score"), key=lambda edge: -abs(edge[2]))[:most]
    places = _places(circuit, {name for source, target, _ in ordered for name in (source, target)})
    right = max((x for x, _ in places.values()), default=1.0)
    height = max((y for _, y in places.values()), default=1.0)
    size = max(3.6, right * 0.55 + 0.8), max(2.8, height * 0.3 + 1.0)
    # Letters and lines shrink with the whole, or they would not fit any more.
    by = 1.0 if width is None else width / size[0]
    figure = blank(width or size[0], size[1] * by)
    axes = figure.subplots()
    largest = max((abs(score) for *_, score in ordered), default=1.0)
    for source, target, score in reversed(ordered):
        # By the root, or one large edge would leave all others as hairs.
        share = (abs(score) / largest) ** 0.5
        bend = 0.3 if places[source][0] == places[target][0] else 0.04
        arrow = {
            "arrowstyle": "-", "color": "#B35806" if score > 0 else "#542788", "linewidth": by * (0.4 + 2.8 * share),
            "alpha": 0.3 + 0.6 * share, "connectionstyle": f"arc3,rad={bend}", "shrinkA": 0, "shrinkB": 0,
        }  # fmt: skip
        axes.annotate("", places[target], places[source], arrowprops=arrow, zorder=1)
    for name, (x, y) in places.items():
        fill = "#DDEEFF" if name.startswith("L") else "#EEEEEE"
        box = {"boxstyle": "round,pad=0.22", "facecolor": fill, "edgecolor": "0.4", "linewidth": 0.6}
        axes.text(x, y, name, ha="center", va="center", fontsize=6.5 * by, bbox=box, zorder=2)
    facts = circuit.graph
    some = f"{len(ordered)} largest of " if len(ordered) < circuit.number_of_edges() else ""
    axes.set_title(
        f"{task_title(facts['task'])}: {facts['model']}, {facts['method']}\n"
        f"{some}{circuit.number_of_edges()} edges (orange helps, purple hinders)",
        fontsize=8 * min(by, 1.0),
    )
    axes.set_xlim(-0.8, right + 0.8)
    axes.set_ylim(-0.8, height + 0.8)
    axes.set_axis_off()
    return figure


def _places(circuit: networkx.DiGraph, names: set[str]) -> dict[str, tuple[float, float]]:
    """Where each component stands: heights are the layers that occur, without gaps; the columns are those of the head
    numbers that occur, and one for MLPs and both ends."""
    heights = {layer: place for place, layer in enumerate(sorted({circuit.nodes[name]["layer"] for name in names}))}
    heads = sorted({_by_number(name)[1] for name in names if name.startswith("L")})
    columns = {head: float(place) for place, head in enumerate(heads)}
    last = float(len(heads)) + 0.3
    return {
        name: (
            columns[_by_number(name)[1]] if name.startswith("L") else last,
            float(heights[circuit.nodes[name]["layer"]]),
        )
        for name in names
    }


def _by_number(name: str) -> tuple[int, ...]:
    return tuple(int(piece) for piece in "".join(c if c.isdigit() else " " for c in name).split())
