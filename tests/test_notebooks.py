"""The notebooks of examples/ run from top to bottom, are kept as they ran, and become pages of the documentation."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
SLOW = {"ioi-in-smollm2", "sparse-against-dense", "own-model-and-task"}

sys.path.insert(0, str(ROOT / "tools"))
from notebook_pages import pages_of  # noqa: E402  # pyright: ignore[reportMissingImports]


def test_there_are_four():
    assert {path.stem for path in NOTEBOOKS} == {"start", *SLOW}


MINUTES = (pytest.mark.slow, pytest.mark.long)


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=MINUTES if path.stem in SLOW else (), id=path.stem) for path in NOTEBOOKS],
)
def test_it_runs_from_top_to_bottom(path, tmp_path):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    notebook = nbformat.read(path, as_version=4)
    said = [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]
    # (A cell that fails raises.)
    nbclient.NotebookClient(notebook, timeout=900, resources={"metadata": {"path": str(tmp_path)}}).execute()
    again = [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]
    for before, after in zip(said, again, strict=True):
        kinds = [[set(output.get("data", [output.get("name")])) for output in outputs if output.get("name") != "stderr"]
                 for outputs in (before, after)]  # fmt: skip
        assert kinds[0] == kinds[1]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_was_executed_and_is_small(path):
    cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert not [output for output in outputs if output["output_type"] == "error" or output.get("name") == "stderr"]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert path.stat().st_size < 400_000
    assert "/work/" not in path.read_text()
    assert "/home/" not in path.read_text()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_a_page_of_the_documentation(path):
    made = pages_of(path)
    page, *files = made
    text = str(made[page])
    assert page in [
        name for entry in yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"] for name in entry.values()
    ]
    assert text.startswith("# ")
    assert all(file in text for file in files)
    assert "srcdoc" not in text
