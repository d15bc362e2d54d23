"""A run's figures drawn again from its records: at the width of a paper's column, in another format, or only some."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from headscope.errors import InputError
from headscope.report.figures.panels import save_figure
from headscope.report.outputs import FORMATS, outputs_of
from headscope.runs.names import file_name

INCHES = {"in": 1.0, "cm": 1 / 2.54, "mm": 1 / 25.4, "pt": 1 / 72}
NARROWEST, WIDEST = 1.5, 40.0


def redraw(
    folder: Path, out: Path, *, formats: Sequence[str], width: float | None = None, only: Sequence[str] | None = None
) -> list[Path]:
    """Draw figures of a run into the folder `out`; with a width in inches, files are exactly that wide."""
    if unknown := [name for name in formats if name not in FORMATS]:
        raise InputError(f"Unknown format {unknown[0]!r}. Known: {', '.join(FORMATS)}.")
    outputs = outputs_of(folder)
    known = outputs.run.made("figures", outputs.figures)
    if not known:
        raise InputError(f"{folder} has nothing to draw yet. Give the run's command again to go on with it.")
    if unknown := [name for name in only or () if name not in known]:
        raise InputError(f"{folder} has no figure {unknown[0]!r}. It has: {', '.join(known)}.")
    paths = []
    for name in only or known:
        figure = outputs.run.made(name, partial(known[name], width=width))
        if figure is not None:
            files = [out / f"{file_name(name)}.{ending}" for ending in formats]
            paths += [save_figure(figure, file, exact=width is not None) for file in files]
    return paths


def inches(text: str) -> float:
    """3.25in, 8cm, 85mm or 240pt in inches."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(in|cm|mm|pt)\s*", text)
    width = float(match[1]) * INCHES[match[2]] if match else 0.0
    if not NARROWEST <= width <= WIDEST:
        raise InputError(
            f"--width: expected a width such as 3.25in, 8cm, 85mm or 240pt, from {NARROWEST:g} to {WIDEST:g} inches; "
            f"found {text!r}."
        )
    return width
