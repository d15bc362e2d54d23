"""What is shown of an edge study."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from headscope.records import Circuit, Curve, EdgeScores, Table, crossing
from headscope.report.figures.circuits import circuit_files, circuit_graph, circuit_picture
from headscope.report.outputs.outputs import Draw
from headscope.report.outputs.series import Series
from headscope.runs.names import file_names

if TYPE_CHECKING:
    import networkx

# Edges of a ranking that stand in the table.
LISTED = 1000


@dataclass(frozen=True)
class Measured:
    """A circuit, the scores that it was chosen by, and what it explains when it is run."""

    circuit: Circuit
    scores: EdgeScores
    run: Curve

    @property
    def key(self) -> tuple[str, ...]:
        return ("circuit", self.scores.model, self.scores.task, self.scores.method)

    @cached_property
    def facts(self) -> dict[str, Any]:
        c, (k, connected) = self.circuit, (self.circuit.settings[name] for name in ("k", "connected"))
        on_path = len(c) if connected else int(self.scores.graph.connected(c.keep).sum())
        ends = {"explained": self.run.explained, "low": self.run.low, "high": self.run.high}
        return {
            "model": c.model, "task": c.task, "method": c.method, "choice": c.settings["choice"],
            "signed": c.settings["signed"], "chosen": k, "connected": on_path, "kept": len(c),
            **{name: float(value[-1]) for name, value in ends.items()}, "note": self.run.no_interval,
        }  # fmt: skip

    @cached_property
    def graph(self) -> networkx.DiGraph:
        return circuit_graph(self.circuit, **self.facts)


def circuit_at(
    scores: EdgeScores, curve: Curve, threshold: float, *, signed: bool, choice: str, connected: bool
) -> Circuit:
    """The circuit with which a curve reaches the threshold; all edges if it does not."""
    at = crossing(curve.k, curve.explained, threshold)
    k = len(scores.graph) if at is None else math.ceil(at)
    return scores.circuit(k, signed=signed, choice=choice, connected=connected)


class Edges(Series):
    """The curves first, then a picture of each circuit, which is written for other tools as well."""

    on_page = ("curves", "circuit-")
    what = "edge"
    log = True

    @cached_property
    def scores(self) -> list[EdgeScores]:
        return list(self.run.records("edges-", EdgeScores).values())

    @cached_property
    def circuits(self) -> list[Measured]:
        """The circuits at the threshold, as far as they have been run."""
        curves = {(c.model, c.task, c.method): c for c in self.curves}
        # (A run that was asked for several thresholds holds circuits of each.)
        measured = {(c.model, c.task, c.method, int(c.k[-1])): c for c in self.run.records("circuit-", Curve).values()}
        connected, circuits = bool(self.run.manifest["settings"].get("connected")), []
        for scores in self.scores:
            name = (scores.model, scores.task, scores.method)
            if curve := curves.get(name):
                how = {"signed": curve.settings["signed"], "choice": curve.settings["choice"], "connected": connected}
                circuit = circuit_at(scores, curve, self.threshold, **how)
                if run := measured.get((*name, len(circuit))):
                    circuits.append(Measured(circuit, scores, run))
        return circuits

    def figures(self) -> dict[str, Draw]:
        pictures = {self.names[one.key]: partial(circuit_picture, one.graph) for one in self.circuits}
        return super().figures() | pictures

    def files(self) -> dict[str, bytes]:
        return {
            f"{self.names[one.key]}{ending}": data
            for one in self.circuits
            for ending, data in circuit_files(one.graph).items()
        }

    @cached_property
    def names(self) -> dict[tuple[str, ...], str]:
        return file_names(one.key for one in self.circuits)

    def tables(self) -> dict[str, Table]:
        signed = {(c.model, c.task, c.method): c.settings["signed"] for c in self.curves}
        edges = [
            row for s in self.scores for row in s.rows(LISTED, signed=signed.get((s.model, s.task, s.method), False))
        ]
        return {
            "edges": Table.of(EdgeScores.COLUMNS, edges, floats=".6g"),
            **super().tables(),
            "circuits": Table.of_dicts([one.facts for one in self.circuits]),
        }

    def findings(self, *, top: int = 10) -> dict[str, Any]:
        return {**super().findings(top=top), "circuits": [one.facts for one in self.circuits]}
