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
