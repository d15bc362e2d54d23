"""The examples run as they stand, and say what they should."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_ten_lines_of_the_head_study():
    answer = subprocess.run([sys.executable, ROOT / "examples" / "heads.py"], capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    accuracy = re.search(r"accuracy ([\d.]+)", answer.stdout)
    assert accuracy is not None
    assert float(accuracy[1]) >= 0.95
    ratio = re.search(r"against patching: ([\d.]+)x", answer.stdout)
    assert ratio is not None
    assert float(ratio[1]) > 1, "patching needs fewer heads than a random ranking"


def test_the_addition_example_runs_through(tmp_path: Path):
    script = ROOT / "examples" / "addition.py"
    answer = subprocess.run(
        [sys.executable, script, "--out", tmp_path / "out", "--quick"], capture_output=True, text=True
    )
    assert answer.returncode == 0, answer.stderr
    dense, sparse = (float(found) for found in re.findall(r"right, ([\d.]+) open edges", answer.stdout))
    assert dense == 5
    assert sparse < dense
    assert (tmp_path / "out" / "addition.png").stat().st_size > 20_000
