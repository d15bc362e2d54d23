"""Attention patterns kept to be looked at."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from headscope.records.record import Record


@dataclass(frozen=True)
class Attention(Record):
    """Attention weights of every head on a few prompts of one length, as they pass: behind a sparse gate, if any."""

    model: str
    task: str
    tokens: list[list[str]]  # of each prompt
    patterns: np.ndarray  # (P, L, H, T, S), float16
    settings: dict[str, Any] = field(default_factory=dict)
