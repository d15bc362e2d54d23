"""The command that made a run, written out again from its manifest."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

# By command: the settings that are arguments, then those that are options. (Those of no option are left out.)
ARGUMENTS = {
    "heads": ("models",), "edges": ("models",), "roles": ("models",), "functions": ("model",),
    "sparsify-report": ("models",),
}  # fmt: skip
OPTIONS = {
    "heads": {
        "tasks": "--task", "methods": "--method", "rankings": "--ranking", "fill": "--fill", "signed": "--signed",
        "draws": "--draws", "points": "--points", "n": "--n", "seed": "--seed",
    },
    "edges": {
        "tasks": "--task", "methods": "--method", "split": "--split", "choice": "--choice", "connected": "--connected",
        "signed": "--signed", "points": "--points", "n": "--n", "seed": "--seed",
    },
    "roles": {
        "tasks": "--task", "seeds": "--seeds", "preset": "--preset", "n": "--n", "held_out": "--held-out",
        "compare": "--compare", "forget": "--forget", "seed": "--seed",
    },
    "functions": {
        "data": "--data", "functions": "--function", "rankings": "--ranking", "ks": "--k", "draws": "--draws",
        "n": "--n", "train": "--train", "shots": "--shots", "factor": "--factor", "steps": "--steps",
        "max_new_tokens": "--max-new-tokens", "seed": "--seed",
    },
    "sparsify-report": {
        "tasks": "--task", "text": "--text", "count": "--windows", "length": "--length", "n": "--n", "seed": "--seed",
    },
}  # fmt: skip
# What the command line asks for if nothing is said, where a manifest does not know it.
THRESHOLD = 0.9


def command_line(manifest: dict[str, Any], folder: Path, *, threshold: float | None = None) -> str:
    """`headscope ...` as one types it, every setting spelled out; empty for a command that is not known here."""
    command, settings = manifest["command"], manifest["settings"]
    if command not in OPTIONS:
        return ""
    words = ["headscope", command]
    for name in ARGUMENTS[command]:
        given = settings.get(name, [])
        words += [str(value) for value in (given if isinstance(given, list) else [given])]
    for name, option in OPTIONS[command].items():
        value = settings.get(name)
        if value is True:
            words.append(option)
        elif isinstance(value, list):
            words += [option, ",".join(map(str, value))]
        elif value is not None and value is not False:
            words += [option, str(value)]
    if threshold is not None and threshold != THRESHOLD:
        words += ["--threshold", f"{threshold:g}"]
    return shlex.join([*words, "--out", shown(folder)])


def figure_line(folder: Path) -> str:
    """The command that draws a run's figures again, for a column of a paper."""
    return shlex.join(["headscope", "figure", shown(folder), "--format", "pdf", "--width", "3.25in"])


def shown(folder: Path) -> str:
    """A folder as others may see it: where it lies on this disk is nobody's business."""
    return folder.name if folder.is_absolute() else str(folder)
