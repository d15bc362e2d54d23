"""Scoring methods: a file each, one signature, `(model, task, *, ...) -> Scores`."""

from __future__ import annotations

from collections.abc import Callable

from headscope.errors import InputError
from headscope.methods.ablation import ablation
from headscope.methods.attribution import attribution
from headscope.methods.attribution_ig import attribution_ig
from headscope.methods.gradient import gradient
from headscope.methods.patching import patching
from headscope.methods.random import random
from headscope.results import Scores

__all__ = ["METHODS", "ablation", "attribution", "attribution_ig", "gradient", "method", "patching", "random"]

METHODS: dict[str, Callable[..., Scores]] = {
    "patching": patching,
    "attribution": attribution,
    "attribution-ig": attribution_ig,
    "gradient": gradient,
    "ablation": ablation,
    "random": random,
}


def method(name: str) -> Callable[..., Scores]:
    """The method called `name`."""
    if name not in METHODS:
        raise InputError(f"Unknown method {name!r}. Known: {', '.join(METHODS)}.")
    return METHODS[name]
