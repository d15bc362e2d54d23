"""The records that cross borders, and what follows from them by arithmetic alone: no model, no torch."""

from headscope.records.attention import Attention
from headscope.records.check import Check
from headscope.records.curve import SHARES, Curve, resampled
from headscope.records.graph import CHOICES, SPLITS, Graph, head_name, parse_head
from headscope.records.multiplier import Multiplier, Needed, crossing, multiplier, needed
from headscope.records.record import FORMAT, Record
from headscope.records.roles import (
    ROLE_THRESHOLD,
    ROLES,
    Ablation,
    Roles,
    against_patching,
    agreement,
    correlation,
    ranks,
    spread,
)
from headscope.records.scores import Circuit, EdgeScores, Scores

__all__ = [
    "CHOICES", "FORMAT", "ROLES", "ROLE_THRESHOLD", "SHARES", "SPLITS", "Ablation", "Attention", "Check", "Circuit",
    "Curve", "EdgeScores", "Graph", "Multiplier", "Needed", "Record", "Roles", "Scores", "against_patching",
    "agreement", "correlation", "crossing", "head_name", "multiplier", "needed", "parse_head", "ranks", "resampled",
    "spread",
]  # fmt: skip
