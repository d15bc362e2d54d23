"""What is shown of making a model sparse, and of a sparse model beside its dense origin."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import cached_property, partial
from typing import Any

import numpy as np

from headscope.records import Attention, Sparsity, Table, head_name
from headscope.report.figures.sparsity import open_heads, open_share, training_curves
from headscope.report.figures.titles import task_title
from headscope.report.outputs.outputs import Draw, Outputs, listed


class Sparsify(Outputs):
    """How the training went."""

    @cached_property
    def history(self) -> list[dict[str, float]]:
        """A row per evaluation, as the checkpoint keeps them."""
        return (self.run.metadata("checkpoint.safetensors") or {}).get("history", [])

    def figures(self) -> dict[str, Draw]:
        constraint = self.run.manifest["settings"].get("constraint", "kl")
        return {"training": partial(training_curves, self.history, constraint)} if self.history else {}

    def tables(self) -> dict[str, Table]:
        return {"history": Table.of_dicts(self.history)}

    def findings(self, *, top: int = 10) -> dict[str, Any]:
        settings = {**self.run.manifest["settings"], **self.run.shown}
        about = {name: settings[name] for name in ("model", "length", "constraint", "margin")}
        return {"run": str(self.run.folder), **about, "history": self.history, "figures": self.drawn}

    def sentences(self) -> list[str]:
        if not self.history:
            return []
        last = self.history[-1]
        return [
            f"After {last['step']:.0f} steps {last['connectivity']:.2%} of the attention edges are open, at a "
            f"divergence of {last['kl']:.4f} nats from the dense model (target {last['target']:.4f})."
        ]


class SparseModel(Outputs):
    """Where edges are open, then attention maps of both models."""

    on_page = ("connectivity", "attention")

    @cached_property
    def found(self) -> Sparsity | None:
        return next(iter(self.run.records("sparsity", Sparsity).values()), None)

    @cached_property
    def attention(self) -> list[Attention]:
        return list(self.run.records("attention-", Attention).values())

    @cached_property
    def report(self) -> dict[str, Any]:
        """The comparison in numbers; nothing before it is made."""
        if self.found is None:
            return {}
        found, accuracy = self.found, {check.task: {} for check in self.checks}
        for check in self.checks:
            accuracy[check.task]["sparse" if check.model == found.model else "dense"] = check.accuracy
        means = {name: float(getattr(found, name).mean()) for name in ("connectivity", "ce", "dense_ce", "kl")}
        # A share of causal edges says little without the length.
        edges = (found.settings["length"] + 1) / 2
        never = np.argwhere(found.rates == 0).tolist()
        return {
            "dense": found.dense, "sparse": found.model, "connectivity": means["connectivity"],
            "edges per query": {
                "dense": edges, "sparse": edges * means["connectivity"],
                "random gates": edges * found.random["connectivity"],
            },
            "ce": {"dense": means["dense_ce"], "sparse": means["ce"], "random gates": found.random["ce"]},
            "ce above dense": found.above_dense(),
            "divergence": {"sparse": means["kl"], "random gates": found.random["kl"]},
            "random connectivity": found.random["connectivity"],
            "per layer": [round(float(rate), 6) for rate in found.rates.mean(1)],
            "never open": [head_name(l, h) for l, h in never], "accuracy": accuracy,
            "checks": [asdict(check) for check in self.checks],
            "sequences": {name: found.settings[name] for name in ("text", "count", "length")},
        }  # fmt: skip

    def figures(self) -> dict[str, Draw]:
        figures: dict[str, Draw] = {}
        if self.found is not None:
            figures["connectivity"] = partial(open_share, self.found)
        if len(self.attention) == 2:
            figures["attention"] = partial(open_heads, *self.attention)
        return figures

    def tables(self) -> dict[str, Table]:
        if self.found is None:
            return {}
        return {"connectivity": Table.of(Sparsity.COLUMNS, self.found.rows(), floats=".6f")}

    def files(self) -> dict[str, bytes]:
        return {"report.json": (json.dumps(self.report, indent=2, ensure_ascii=False) + "\n").encode()}

    def findings(self, *, top: int = 10) -> dict[str, Any]:
        return {"run": str(self.run.folder), **self.report, "checks": self.told_checks, "figures": self.drawn}

    def sentences(self) -> list[str]:
        if not self.report:
            return []
        found, lost = self.report, self.report["ce above dense"]
        tasks = [
            f"{rate['sparse']:.2f} on {task_title(task)} (dense {rate['dense']:.2f})"
            for task, rate in found["accuracy"].items()
            if len(rate) == 2
        ]
        return [
            f"{found['sparse']} keeps {found['connectivity']:.2%} of its attention edges open, at {lost['mean']:+.4f} "
            f"nats [{lost['low']:+.4f}, {lost['high']:+.4f}] of cross-entropy.",
            f"Gates open at random at the same rates have a cross-entropy of {found['ce']['random gates']:.2f}, the "
            f"sparse model {found['ce']['sparse']:.2f}, the dense one {found['ce']['dense']:.2f}.",
            *([f"Its accuracy is {listed(tasks)}."] if tasks else []),
        ]
