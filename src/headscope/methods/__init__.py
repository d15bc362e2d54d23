"""Scoring methods: a file each, one signature, `(model, task, *, ...) -> Scores` (or `EdgeScores`, or `Roles`)."""

from __future__ import annotations

from collections.abc import Callable

from headscope.methods.ablation import ablation
from headscope.methods.attribution import attribution
from headscope.methods.attribution_ig import attribution_ig
from headscope.methods.contrastive import contrastive
from headscope.methods.direct import direct
from headscope.methods.eap import eap
from headscope.methods.eap_ig import eap_ig
from headscope.methods.edge_patching import edge_patching
from headscope.methods.edge_random import edge_random
from headscope.methods.gating import gating
from headscope.methods.gradient import gradient
from headscope.methods.lens import lens
from headscope.methods.patching import patching
from headscope.methods.path_patching import path_patching
from headscope.methods.patterns import patterns
from headscope.methods.random import random
from headscope.records import EdgeScores, Scores

__all__ = [
    "EDGE_METHODS", "METHODS", "ablation", "attribution", "attribution_ig", "contrastive", "direct", "eap", "eap_ig",
    "edge_patching", "edge_random", "gating", "gradient", "lens", "patching", "path_patching", "patterns", "random",
]  # fmt: skip

METHODS: dict[str, Callable[..., Scores]] = {
    "patching": patching,
    "attribution": attribution,
    "attribution-ig": attribution_ig,
    "gradient": gradient,
    "ablation": ablation,
    "random": random,
}


EDGE_METHODS: dict[str, Callable[..., EdgeScores]] = {
    "eap-ig": eap_ig,
    "eap": eap,
    "patching": edge_patching,
    "random": edge_random,
}
