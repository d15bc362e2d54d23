"""SIGINT and SIGTERM: the unit in hand is kept, how to go on is said, and the result is that of a run left alone."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from command import COMMAND_LINE, OFFLINE, headscope

from headscope import stopping
from headscope.runs.run import read_manifest

# Goes before a program, which then gets a signal in the moment when it is about to rename a file to what the pattern
# says, and once more in the next such moment if two are asked for.
SIGNAL_ITSELF = """
import fnmatch, signal, sys
number, pattern, times = int(sys.argv.pop(1)), sys.argv.pop(1), [int(sys.argv.pop(1))]
def watch(name, arguments):
    if name == "os.rename" and fnmatch.fnmatch(str(arguments[1]), pattern) and times[0]:
        times[0] -= 1
        signal.raise_signal(number)
sys.addaudithook(watch)
"""


def signalled(number: int, pattern: str, *words: object, times: int = 1) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", SIGNAL_ITSELF + COMMAND_LINE, number, pattern, times, *words]
    return subprocess.run([*map(str, command)], capture_output=True, text=True, env=OFFLINE, stdin=subprocess.DEVNULL)


def heads(out: Path) -> tuple[object, ...]:
    return ("heads", "nano", "--task", "ioi", "--n", "4", "--draws", "0", "--format", "png", "--out", out)


def records(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.safetensors")}


@pytest.mark.slow
def test_a_run_ends_after_its_unit_and_goes_on(capfd, tmp_path: Path):
    done = signalled(signal.SIGTERM, "*scores-*", *heads(tmp_path / "run"))
    assert (done.returncode, done.stdout) == (143, "")
    assert "SIGTERM: ends when the unit in hand is safe" in done.stderr
    assert f"What is finished is safe in {tmp_path / 'run'}. To go on, give the same command again" in done.stderr
    assert "headscope heads nano --task ioi --n 4" in done.stderr
    assert "Traceback" not in done.stderr
    assert [name[:6] for name in read_manifest(tmp_path / "run")["files"]] == ["check-", "scores"]
    for name in ("run", "other"):
        assert headscope(capfd, *heads(tmp_path / name)).code == 0
    assert records(tmp_path / "run") == records(tmp_path / "other")


@pytest.mark.slow
def test_a_training_ends_after_its_step_and_goes_on(capfd, tmp_path: Path):
    words = ("--steps", 5, "--every", 10, "--sequences", 16, "--held-out", 4, "--length", 16, "--batch", 2, "--out")
    command = ("sparsify", "nano", "--text", "self", *words)
    done = signalled(signal.SIGINT, "*checkpoint.safetensors", *command, tmp_path / "run")
    assert done.returncode == 130, done.stderr
    assert "To go on, give the same command again" in done.stderr
    assert not (tmp_path / "run" / "config.json").exists()
    for name in ("run", "other"):
        assert headscope(capfd, *command, tmp_path / name).code == 0
    assert (tmp_path / "run" / "history.csv").read_bytes() == (tmp_path / "other" / "history.csv").read_bytes()
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("run", "other")]
    assert weights[0] == weights[1]


def listened(*blocks: str) -> tuple[stopping.Stopped | None, list[str], list[str]]:
    """Units, each of which gets the signals that are named, one inside the other; how it ended, and what was done and
    said."""
    done: list[str] = []
    said: list[str] = []

    def work(blocks: tuple[str, ...]) -> None:
        with stopping.unit():
            for name in blocks[0].split():
                signal.raise_signal(getattr(signal, name))
                done.append(name)
            if blocks[1:]:
                work(blocks[1:])
            done.append("unit")

    try:
        with stopping.listening(said.append):
            work(blocks)
    except stopping.Stopped as stopped:
        return stopped, done, said
    return None, done, said


def test_inside_a_unit_a_signal_waits_for_all_of_it():
    stopped, done, said = listened("", "SIGTERM")
    assert stopped is not None
    assert (stopped.exit_code, stopped.signal.name) == (143, "SIGTERM")
    assert done == ["SIGTERM", "unit", "unit"]
    assert said == ["SIGTERM: ends when the unit in hand is safe. Once more ends at once."]


def test_the_second_signal_does_not_wait():
    stopped, done, _ = listened("SIGTERM SIGINT")
    assert stopped is not None
    assert (stopped.exit_code, done) == (130, ["SIGTERM"])
    # What was asked then is not asked of the next command.
    assert listened("") == (None, ["unit"], [])


def test_outside_of_a_unit_it_ends_at_once():
    with pytest.raises(stopping.Stopped), stopping.listening(lambda text: None):
        signal.raise_signal(signal.SIGINT)


def test_a_command_that_keeps_nothing_says_so(tmp_path: Path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "manifest.json").write_text(json.dumps({}))
    done = signalled(signal.SIGINT, "*page.html", "report", tmp_path / "run", "--out", tmp_path / "page.html")
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "Stopped by SIGINT. Nothing was left half-written.\n"
    assert not (tmp_path / "page.html").exists()
