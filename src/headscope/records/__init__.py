"""The records that cross borders, and what follows from them by arithmetic alone: no model, no torch."""

from headscope.records.attention import Attention
from headscope.records.check import Check
from headscope.records.circuit import Circuit, Head, is_naming, which_heads
from headscope.records.curve import BASELINES, SHARES, Curve, resampled
from headscope.records.direct import Direct, Lens
from headscope.records.graph import CHOICES, SPLITS, Graph, head_name, parse_head
from headscope.records.multiplier import (
    THRESHOLDS,
    Multiplier,
    Multipliers,
    Needed,
    area_multiplier,
    crossing,
    multiplier,
    multipliers,
    needed,
)
from headscope.records.patterns import Patterns
from headscope.records.record import FORMAT, Record
from headscope.records.roles import (
    ROLE_THRESHOLD,
    ROLES,
    Ablation,
    Contrast,
    Roles,
    against_patching,
    agreement,
    correlation,
    ranks,
    spread,
)
from headscope.records.scores import EdgeScores, Scores
from headscope.records.sparsity import Sparsity
from headscope.records.table import Table

__all__ = [
    "BASELINES", "CHOICES", "FORMAT", "ROLES", "ROLE_THRESHOLD", "SHARES", "SPLITS", "THRESHOLDS", "Ablation",
    "Attention", "Check", "Circuit", "Contrast", "Curve", "Direct", "EdgeScores", "Graph", "Head", "Lens", "Multiplier",
    "Multipliers", "Needed", "Patterns", "Record", "Roles", "Scores", "Sparsity", "Table", "against_patching",
    "agreement", "area_multiplier", "correlation", "crossing", "head_name", "is_naming", "multiplier", "multipliers",
    "needed", "parse_head", "ranks", "resampled", "spread", "which_heads",
]  # fmt: skip
