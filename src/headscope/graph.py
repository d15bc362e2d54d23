"""Names and order of a model's components. Pure: no model, no torch."""

from __future__ import annotations

import re

from headscope.errors import InputError


def head_name(layer: int, head: int) -> str:
    """The name people use: L9.H6."""
    return f"L{layer}.H{head}"


def parse_head(name: str) -> tuple[int, int]:
    """(9, 6) from L9.H6; also from 9.6."""
    found = re.fullmatch(r"L?(\d+)\.H?(\d+)", name.strip(), re.IGNORECASE)
    if not found:
        raise InputError(f"{name!r} does not name a head: expected layer and head, such as L9.H6.")
    return int(found[1]), int(found[2])
