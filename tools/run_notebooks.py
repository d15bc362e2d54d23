"""Run the notebooks of examples/ from top to bottom, keep them as they ran, and say how long each took.

python tools/run_notebooks.py [NAME ...]
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

EXAMPLES = Path(__file__).parents[1] / "examples"


def main(names: list[str]) -> None:
    total = 0.0
    for path in sorted(EXAMPLES.glob("*.ipynb")):
        if not names or path.stem in names:
            total += (seconds := run(path))
            print(f"{path.stem}: {seconds:.0f} s", flush=True)
    print(f"together: {total:.0f} s")


def run(path: Path) -> float:
    notebook: Any = nbformat.read(path, as_version=4)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(notebook, timeout=1800, resources={"metadata": {"path": folder}}).execute()
    seconds = time.monotonic() - began
    for cell in notebook.cells:
        # When a cell ran, and warnings that name a machine's paths, are nobody's business.
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    nbformat.write(notebook, path)
    return seconds


if __name__ == "__main__":
    main(sys.argv[1:])
