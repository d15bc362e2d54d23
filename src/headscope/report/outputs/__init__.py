"""One way from a run folder to all that is shown of it: the end of a study, `headscope figure`, the page and what the
command line prints all ask an `Outputs`."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from headscope.errors import InputError
from headscope.records.files import write_bytes
from headscope.report.figures.panels import FORMATS, save_figure
from headscope.report.outputs.edges import Edges
from headscope.report.outputs.frontier import Frontier
from headscope.report.outputs.functions import Functions
from headscope.report.outputs.heads import Heads
from headscope.report.outputs.outputs import Draw, Outputs
from headscope.report.outputs.roles import HeadRoles
from headscope.report.outputs.sparsity import SparseModel, Sparsify
from headscope.report.reading import Reading
from headscope.runs.run import Run

__all__ = ["FORMATS", "OUTPUTS", "Draw", "Outputs", "outputs_of", "write"]

O = TypeVar("O", bound=Outputs)

OUTPUTS: dict[str, type[Outputs]] = {
    "heads": Heads, "edges": Edges, "roles": HeadRoles, "functions": Functions,
    "sparsify-report": SparseModel, "sparsify": Sparsify, "sparsity-frontier": Frontier,
}  # fmt: skip


def outputs_of(folder: Path) -> Outputs:
    """What is shown of a run, which needs all of its records: one that is missing or damaged is told."""
    if not (folder / "manifest.json").exists():
        raise InputError(f"{folder} is no run: expected a folder with manifest.json.")
    run = Reading(folder, strict=True)
    command = run.manifest["command"]
    if command not in OUTPUTS:
        raise InputError(f"{folder} is a run of {command!r}, which has no figures. Known: {', '.join(OUTPUTS)}.")
    return OUTPUTS[command](run)


def write(run: Run, kind: type[O]) -> O:
    """The end of a study: figures, tables and other files into its run folder. kind: what shows it."""
    outputs = kind(Reading(run.folder, strict=True))
    for name, draw in outputs.figures().items():
        figure = draw()
        for ending in outputs.run.shown.get("formats", FORMATS):
            save_figure(figure, run.path(f"{name}.{ending}"))
            run.add(f"{name}.{ending}")
    files = {f"{name}.csv": table.csv() for name, table in outputs.tables().items()} | outputs.files()
    for name, data in files.items():
        write_bytes(run.path(name), data)
        run.add(name)
    run.finish()
    return kind(Reading(run.folder, strict=True))
