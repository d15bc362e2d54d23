"""Headscope: which attention heads a language model uses for a task, and how we know.

import headscope as hs

model = hs.load("smollm2-135m")
task = hs.tasks.ioi(model.tokenizer, n=100, seed=0)
print(hs.check(model, task).accuracy)
scores = hs.methods.patching(model, task)
print(scores.top(5))
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from headscope.models.registration import register_with_transformers

if TYPE_CHECKING:
    from headscope import methods, tasks
    from headscope.errors import HeadscopeError, InputError, SetupError
    from headscope.models import Model, load, release
    from headscope.records import (
        Attention,
        Check,
        Circuit,
        Curve,
        Direct,
        EdgeScores,
        Graph,
        Lens,
        Multiplier,
        Multipliers,
        Needed,
        Patterns,
        Roles,
        Scores,
        Sparsity,
        Table,
        area_multiplier,
        multiplier,
        multipliers,
        needed,
    )
    from headscope.running.interventions import Recording, gated, knocked_out, masked, patched, record
    from headscope.running.measure import check
    from headscope.sparse.training import sparsify
    from headscope.sweeps import crossfit, random_band, run_circuit, sweep
    from headscope.tasks import Task

__version__ = "0.1.0"

# The public door. Each name is fetched from its module when first used: importing headscope does not import torch.
_DOOR = {
    "headscope.errors": ("HeadscopeError", "InputError", "SetupError"),
    "headscope.models": ("Model", "load", "release"),
    "headscope.records": (
        "Attention",
        "Check",
        "Circuit",
        "Curve",
        "Direct",
        "EdgeScores",
        "Graph",
        "Lens",
        "Multiplier",
        "Multipliers",
        "Needed",
        "Patterns",
        "Roles",
        "Scores",
        "Sparsity",
        "Table",
        "area_multiplier",
        "multiplier",
        "multipliers",
        "needed",
    ),
    "headscope.running.interventions": ("Recording", "gated", "knocked_out", "masked", "patched", "record"),
    "headscope.running.measure": ("check",),
    "headscope.sparse.training": ("sparsify",),
    "headscope.sweeps": ("crossfit", "random_band", "run_circuit", "sweep"),
    "headscope.tasks": ("Task",),
}
_HOME = {name: module for module, names in _DOOR.items() for name in names}

__all__ = [
    "Attention", "Check", "Circuit", "Curve", "Direct", "EdgeScores", "Graph", "HeadscopeError", "InputError",
    "Lens", "Model", "Multiplier", "Multipliers", "Needed", "Patterns", "Recording", "Roles", "Scores",
    "SetupError", "Sparsity", "Table", "Task", "area_multiplier", "check", "crossfit", "gated", "knocked_out",
    "load", "masked", "methods", "multiplier", "multipliers", "needed", "patched", "random_band", "record",
    "release", "run_circuit", "sparsify", "sweep", "tasks",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    # (A submodule such as `models` may be asked for before it is imported.)
    if name in ("methods", "models", "tasks"):
        return import_module(f"headscope.{name}")
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'headscope' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


register_with_transformers()
