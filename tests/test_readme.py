"""What the README shows runs as it stands, on the tiny model instead of the real one."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest
import torch

import headscope.cli

README = (Path(__file__).parents[1] / "README.md").read_text()


def test_python_blocks():
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(blocks) == 2
    code = (
        "\n".join(blocks)
        .replace("smollm2-135m", "nano")
        .replace("n=100", "n=4")
        .replace("[(23, 3), (20, 0)]", "[(2, 1)]")
    )
    exec(compile(code, "README.md", "exec"), {"mask": torch.ones(4, 4), "keep": torch.zeros(4, 4)})


COMMANDS = re.findall(r"^    headscope (.+?)(?:\s+#.*)?$", README, re.MULTILINE)


def test_there_are_commands():
    assert {"list", "check", "heads"} <= {command.split()[0] for command in COMMANDS}


# What makes each command quick; the last word on an option counts.
SMALL = {
    "check": "--n 4",
    "heads": "--n 4",
    "edges": "--n 4",
    "functions": "--n 4 --shots 1 --train 4 --k 2 --draws 1 --max-new-tokens 2",
    "sparsify": "--steps 2 --windows 32 --held-out 8 --length 12 --batch 4",
    "sparsify-report": "--n 4 --windows 8 --length 12",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all commands, in their order: some read what an earlier one wrote."""
    folder = tmp_path_factory.mktemp("readme")
    line = (
        '{"clean": "When Mary and John went to the store, John gave a drink to", "answers": " Mary", "wrong": " John", '
    )
    (folder / "my-task.jsonl").write_text(
        line + '"corrupt": "When Mary and John went to the store, Anna gave a drink to"}\n'
    )
    return folder


@pytest.mark.parametrize("command", COMMANDS)
def test_commands(command, folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HEADSCOPE_CACHE", str(folder / "cache"))
    words = shlex.split(re.sub(r"smollm2-135m|path/to/model", "nano", command))
    words += SMALL.get(words[0], "").split()
    monkeypatch.setattr(sys, "argv", ["headscope", *words])
    with pytest.raises(SystemExit) as stopped:
        headscope.cli.main()
    assert stopped.value.code == 0
    assert capsys.readouterr().out.strip()
