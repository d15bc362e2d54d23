"""The command that made a run, written out again from its manifest."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

# What the command line asks for if nothing is said, where a manifest does not know it.
THRESHOLD = 0.9


def command_line(manifest: dict[str, Any], folder: Path) -> str:
    """`headscope ...` as one types it, every setting that the numbers depend on spelled out; empty where the manifest
    does not know it."""
    words = [str(word) for word in manifest.get("words") or ()]
    return shlex.join(["headscope", manifest["command"], *words, "--out", shown(folder)]) if words else ""


def figure_line(folder: Path) -> str:
    """The command that draws a run's figures again, for a column of a paper."""
    return shlex.join(["headscope", "figure", shown(folder), "--format", "pdf", "--width", "3.25in"])


def shown(folder: Path) -> str:
    """A folder as others may see it: where it lies on this disk is nobody's business."""
    return folder.name if folder.is_absolute() else str(folder)
