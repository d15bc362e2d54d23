"""A circuit of edges as a picture and as files other tools read. From records alone (no torch)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import networkx
import numpy as np
from matplotlib.figure import Figure

from headscope.graph import Graph
from headscope.results import EdgeScores, write_bytes


def circuit_graph(scores: EdgeScores, k: int, *, connected: bool = True) -> networkx.DiGraph:
    """The k edges that matter most as a networkx graph; readers q, k and v of a head are one node, named on the edge.

    connected: leave out edges that lie on no path from the embedding to the logits.
    """
    graph = scores.graph
    keep = np.zeros(len(graph), bool)
    keep[scores.ranked()[:k]] = True
    whole = int(keep.sum())
    keep = graph.connected(keep) if connected else keep
    out = networkx.DiGraph(
        model=scores.model, task=scores.task, method=scores.method, chosen=whole, kept=int(keep.sum()),
        edges_of_model=len(graph),
    )  # fmt: skip
    writer, reader = graph.ends
    for edge in np.flatnonzero(keep):
        source, target = graph.writers[writer[edge]], graph.readers[reader[edge]]
        node, part = _head_and_part(target)
        score, key = float(scores.values[edge]), part or "in"
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


def export_circuit(circuit: networkx.DiGraph, stem: Path) -> list[Path]:
    """Write the circuit as JSON (nodes and links) and as GraphML."""
    data: dict[str, Any] = networkx.node_link_data(circuit, edges="links")
    text = "\n".join(networkx.generate_graphml(circuit)) + "\n"
    return [
        write_bytes(stem.with_suffix(".json"), (json.dumps(data, indent=1) + "\n").encode()),
        write_bytes(stem.with_suffix(".graphml"), text.encode()),
    ]


def circuit_picture(circuit: networkx.DiGraph, *, most: int = 60) -> Figure:
    """Layers upward, a node per component, edges as wide as their score is large; at most the `most` largest."""
    ordered = sorted(circuit.edges(data="score"), key=lambda edge: -abs(edge[2]))[:most]
    names = {name for source, target, _ in ordered for name in (source, target)}
    rows: dict[float, list[str]] = {}
    for name in sorted(names, key=_by_number):
        rows.setdefault(circuit.nodes[name]["layer"], []).append(name)
    heights = {layer: place for place, layer in enumerate(sorted(rows))}
    widest = max((len(row) for row in rows.values()), default=1)
    places = {
        name: ((column + 0.5) / len(row) * widest + 0.22 * (heights[layer] % 2 - 0.5), heights[layer])
        for layer, row in rows.items()
        for column, name in enumerate(row)
    }
    figure = Figure(figsize=(max(4.0, widest * 0.75 + 0.5), max(3.0, len(rows) * 0.42 + 0.8)), layout="constrained")
    axes = figure.subplots()
    largest = max((abs(score) for *_, score in ordered), default=1.0)
    for source, target, score in reversed(ordered):
        (x0, y0), (x1, y1) = places[source], places[target]
        strength = abs(score) / largest
        colour = "#B35806" if score > 0 else "#542788"
        axes.plot(
            [x0, x1], [y0, y1], color=colour, linewidth=0.4 + 3.2 * strength, alpha=0.25 + 0.6 * strength, zorder=1
        )
    for name, (x, y) in places.items():
        fill = "#DDEEFF" if name.startswith("L") else "#EEEEEE"
        box = {"boxstyle": "round,pad=0.22", "facecolor": fill, "edgecolor": "0.4", "linewidth": 0.6}
        axes.text(x, y, name, ha="center", va="center", fontsize=6.5, bbox=box, zorder=2)
    facts = circuit.graph
    shown = f"{len(ordered)} largest of " if len(ordered) < circuit.number_of_edges() else ""
    axes.set_title(
        f"{facts['task']}: {facts['model']}, {facts['method']}\n{shown}{circuit.number_of_edges()} edges "
        f"(orange helps, purple hinders)",
        fontsize=8,
    )
    axes.set_xlim(-0.3, widest + 0.3)
    axes.set_axis_off()
    return figure


def _by_number(name: str) -> tuple[int, ...]:
    return tuple(int(piece) for piece in "".join(c if c.isdigit() else " " for c in name).split())
