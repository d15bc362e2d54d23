"""The command line as people and scripts meet it: its flags, its JSON, the run folder it leaves, and resuming."""

from __future__ import annotations

import csv
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer.main
from command import COMMAND_LINE, headscope, headscope_process, killed_when, process

import headscope as hs
from headscope.cli import app
from headscope.cli.console import print_json as _print_json
from headscope.methods import EDGE_METHODS, METHODS
from headscope.models import BUILTIN
from headscope.records import Attention, Curve, Scores
from headscope.runs.run import read_manifest
from headscope.tasks import TASKS

# Scripts hold on to these: a flag may be added, but not renamed or dropped.
FLAGS = {
    "check": "model --task -t --n -n --seed --device --dtype --revision --json --quiet -q",
    "heads": (
        "models --task -t --method -m --ranking --draws --n -n --top --fill --baseline --crossfit --signed "
        "--threshold --points --seed --format --device --dtype --revision --json --quiet -q --out -o"
    ),
    "edges": (
        "models --task -t --method -m --split --choice --draws --connected --n -n --top --fill --baseline "
        "--crossfit --signed --threshold --points --seed --format --device --dtype --revision --json --quiet -q "
        "--out -o"
    ),
    "roles": (
        "models --task -t --seeds --preset --n -n --held-out --compare --forget --seed --format --device --dtype "
        "--revision --json --quiet -q --out -o"
    ),
    "functions": (
        "model --data --function --ranking --k --draws --n -n --train --ablated --shots --factor --steps "
        "--max-new-tokens --alpha --comet --embedder --seed --format --device --dtype --revision --json --quiet -q "
        "--out -o"
    ),
    "sparsify": (
        "model --text --top-p --sequences --length --steps --batch --positions --vocabulary --accumulate --lr "
        "--lr-end --warmup --clip --lora-rank --start --offset-lr --penalty --average --constraint --margin "
        "--margin-start --distill --penalty-weight --rate --bias --noise --noise-end --temperature "
        "--temperature-end --held-out --every --checkpointing --seed --format --device --dtype --revision --json "
        "--quiet -q --out -o"
    ),
    "sparsify-report": (
        "dense sparse --task --text --sequences --length --n --seed --format --device --dtype --revision --json "
        "--quiet -q --out -o"
    ),
    "sparsity-frontier": (
        "dense trained --task -t --heads-by --edges-by --text --sequences --length --threshold --n -n --seed "
        "--format --device --dtype --revision --json --quiet -q --out -o"
    ),
    "atlas": "model --runs --seed --device --dtype --revision --json --quiet -q --out -o",
    "merge": "adapter base --device --dtype --revision --json --quiet -q --out -o",
    "report": "runs --out -o --title",
    "view": "folder --port",
    "figure": "run --format --width --only --out -o",
    "reproduce": (
        "--preset --only --models --comet --open --format --device --dtype --revision --json --quiet -q --out -o"
    ),
    "doctor": "run --json",
    "cache": "--clear --json",
    "comet setup": "--checkpoint",
    "list models": "--json",
    "list tasks": "--json",
    "list methods": "--json",
}
TASKS_ASKED = ("ioi", "greater-than")
HEADS = ("heads", "nano", "--task", ",".join(TASKS_ASKED), "--n", "8", "--json")


def commands(group: Any, before: str = "") -> dict[str, str]:
    """Names of arguments and options by command."""
    found = {}
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            found |= commands(command, f"{before}{name} ")
        else:
            options = [
                word
                for parameter in command.params
                if not getattr(parameter, "hidden", False)
                for word in (*parameter.opts, *parameter.secondary_opts)
            ]
            found[before + name] = " ".join(word for word in options if word != "--help")
    return found


def test_the_flags_are_frozen():
    assert commands(typer.main.get_command(app)) == FLAGS


def test_help_names_the_commands(capfd):
    said = headscope(capfd, "--help")
    assert (said.code, said.err) == (0, "")
    assert all(name.split()[0] in said.out for name in FLAGS)
    assert "Start with headscope heads smollm2-135m --task ioi" in " ".join(said.out.split())


def test_lists(capfd):
    methods = [*METHODS, *(f"{name} (edges)" for name in EDGE_METHODS)]
    for what, known in {"models": BUILTIN, "tasks": TASKS, "methods": methods}.items():
        said = headscope(capfd, "list", what, "--json")
        assert (said.code, said.err) == (0, "")
        rows = json.loads(said.out)
        assert list(rows) == list(known)
        assert all(rows.values()), "each has a line that says what it is"
        table = headscope(capfd, "list", what)
        assert (table.code, table.err) == (0, "")
        assert all(name in table.out for name in known)


def test_a_closed_pipe_is_no_error():
    """As in `headscope list tasks | head -1`."""
    with subprocess.Popen(process("list", "tasks"), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as listing:
        assert listing.stdout is not None
        assert listing.stderr is not None
        listing.stdout.close()
        assert listing.stderr.read() == b""


def test_check(capfd):
    said = headscope(capfd, "check", "nano", "--task", "ioi", "--json")
    assert (said.code, said.err) == (0, "")
    found = json.loads(said.out)
    assert found["accuracy"] >= 0.95
    assert found["metric"] > found["corrupt_metric"]
    assert found.items() >= {"model": "nano", "task": "ioi", "n": 200, "metric_name": "logit-diff"}.items()
    assert found["usable"] is True


def test_check_agrees_with_python(capfd, nano: hs.Model):
    said = headscope(capfd, "check", "nano", "--task", "ioi,docstring", "--n", "20", "--seed", "3", "--json")
    rows = json.loads(said.out)
    for name, row in zip(("ioi", "docstring"), rows, strict=True):
        found = hs.check(nano, TASKS[name](nano.tokenizer, n=20, seed=3))
        assert (row["task"], row["n"]) == (name, 20)
        assert (row["accuracy"], row["metric"]) == pytest.approx((found.accuracy, found.metric), rel=1e-5)


def test_check_as_a_table(capfd, tmp_path: Path):
    said = headscope(capfd, "check", "nano", "--task", "ioi", "--n", "8")
    assert (said.code, said.err) == (0, "")
    assert "nano: how well it does" in said.out


def test_a_task_of_ones_own(capfd, tmp_path: Path, nano: hs.Model):
    task = hs.tasks.ioi(nano.tokenizer, n=3, seed=5)
    text = nano.tokenizer.decode
    path = tmp_path / "own.jsonl"
    path.write_text(
        "".join(
            json.dumps({"clean": task.clean[i], "corrupt": task.corrupt[i], "answers": text(a), "wrong": text(w)})
            + "\n"
            for i, (a, w) in enumerate(zip(task.answers, task.wrong, strict=True))
        )
    )
    found = json.loads(headscope(capfd, "check", "nano", "--task", path, "--json").out)
    expected = hs.check(nano, task)
    assert (found["task"], found["n"], found["accuracy"]) == ("own", 3, expected.accuracy)
    assert found["metric"] == pytest.approx(expected.metric, rel=1e-5)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The folder of a head study made by a process of its own, and what that printed."""
    folder = tmp_path_factory.mktemp("runs") / "nano"
    said = headscope_process(*HEADS, "--out", folder)
    assert (said.code, said.err) == (0, "")
    return folder, json.loads(said.out)


def records(folder: Path) -> dict[str, int]:
    """When each record of a run was written."""
    return {path.name: path.stat().st_mtime_ns for path in folder.glob("*.safetensors")}


def test_heads_prints_what_it_found(run):
    folder, printed = run
    assert printed["run"] == str(folder)
    assert [(c["task"], c["n"]) for c in printed["checks"]] == [(task, 8) for task in TASKS_ASKED]
    for task, said in zip(TASKS_ASKED, printed["scores"], strict=True):
        scores = Scores.load(folder / f"scores-nano-{task}-patching.safetensors")
        assert (said["model"], said["task"], said["method"]) == ("nano", task, "patching")
        assert [(row["head"], row["score"]) for row in said["top"]] == scores.top(10)
    assert {curve["total"] for curve in printed["curves"]} == {16}
    assert all(Path(path).is_file() for path in printed["figures"])


def test_heads_agrees_with_python(run, nano: hs.Model):
    folder, _ = run
    for name in TASKS_ASKED:
        task = TASKS[name](nano.tokenizer, n=8, seed=0)
        scores = hs.methods.patching(nano, task)
        saved = Scores.load(folder / f"scores-nano-{name}-patching.safetensors")
        np.testing.assert_allclose(saved.per_prompt, scores.per_prompt, atol=1e-5)
        curve = Curve.load(folder / f"curve-nano-{name}-patching-task.safetensors")
        np.testing.assert_allclose(curve.explained, hs.sweep(nano, task, scores).explained, atol=1e-4)


def test_heads_leaves_a_whole_folder(run, nano: hs.Model):
    folder, _ = run
    manifest = read_manifest(folder)
    assert manifest["command"] == "heads"
    assert manifest["settings"].items() >= {"models": ["nano"], "tasks": list(TASKS_ASKED), "n": 8, "seed": 0}.items()
    assert manifest["models"]["nano"]["sha256"] == nano.fingerprint()
    assert manifest["versions"]["torch"] == torch.__version__
    assert manifest["finished"] >= manifest["started"]
    there = {path.name for path in folder.iterdir()}
    assert there == {".lock", ".manifest.json", "manifest.json", *manifest["files"]}, (
        "a file is missing, or nobody knows of it"
    )
    assert manifest["timings"].keys() <= manifest["units"].keys()
    assert {name for name in there if name.endswith(".safetensors")} < manifest["units"].keys()
    # What a file starts with says what it is; none is a pickle (0x80) or a zip of pickles (PK), as torch.save makes.
    signs = {
        ".png": b"\x89PNG\r\n\x1a\n", ".pdf": b"%PDF-", ".svg": b"<?xml", ".json": b"{\n", ".csv": b"",
        ".safetensors": b"", "": b"",
    }  # fmt: skip
    for path in folder.iterdir():
        start = path.read_bytes()[:8]
        assert start.startswith(signs[path.suffix])
        # (A safetensors file begins with the length of its header, whatever byte that is.)
        assert path.suffix == ".safetensors" or start[:1] != b"\x80"
        assert path.suffix != ".safetensors" or path.read_bytes()[8:9] == b"{"
        assert start[:2] != b"PK"
    assert {".png", ".csv", ".safetensors"} <= {path.suffix for path in folder.iterdir()}


def test_heads_writes_tables(run):
    folder, printed = run
    with (folder / "heads.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(TASKS_ASKED) * 16
    best = [row for row in rows if row["rank"] == "1"]
    for row, said in zip(best, printed["scores"], strict=True):
        assert (row["task"], row["head"]) == (said["task"], said["top"][0]["head"])
        assert float(row["score"]) == pytest.approx(said["top"][0]["score"], rel=1e-4)
    with (folder / "curves.csv").open() as file:
        assert {row["task"] for row in csv.DictReader(file)} == set(TASKS_ASKED)


def test_the_same_command_resumes(capfd, run):
    folder, printed = run
    before = records(folder)
    said = headscope(capfd, *HEADS, "--out", folder)
    assert (said.code, said.err) == (0, "")
    assert json.loads(said.out) == printed
    assert records(folder) == before


def test_only_what_is_missing_is_computed_again(capfd, run, tmp_path: Path):
    folder = Path(shutil.copytree(run[0], tmp_path / "run"))
    before, lost = records(folder), "scores-nano-greater-than-patching.safetensors"
    whole = Scores.load(folder / lost)
    (folder / lost).unlink()
    assert headscope(capfd, *HEADS, "--format", "png", "--out", folder).code == 0
    after = records(folder)
    assert {name for name in after if after[name] != before[name]} == {lost}
    np.testing.assert_allclose(Scores.load(folder / lost).per_prompt, whole.per_prompt, atol=1e-5)


def test_a_killed_run_goes_on(capfd, run, tmp_path: Path):
    """Killed at its second record, resumed here, it ends with the numbers of the run that nobody killed."""
    folder = tmp_path / "run"
    words = (*HEADS, "--format", "png", "--out", folder)
    killed_when("os.rename", folder / "*.safetensors", COMMAND_LINE, *words, often=1)
    before = records(folder)
    assert len(before) == 1
    assert "finished" not in read_manifest(folder)
    noted = set(read_manifest(folder)["files"])
    said = headscope(capfd, *words)
    assert said.code == 0, said.err
    assert {name: when for name, when in records(folder).items() if name in noted} == {
        name: when for name, when in before.items() if name in noted
    }
    assert records(folder).keys() == records(run[0]).keys()
    kinds = {"scores": (Scores, "values"), "attention": (Attention, "patterns"), "curve": (Curve, "explained")}
    for name in records(folder):
        kind, values = kinds.get(name.partition("-")[0], kinds["curve"])
        mine, whole = (getattr(kind.load(place / name), values) for place in (folder, run[0]))
        np.testing.assert_allclose(mine, whole, atol=1e-3 if kind is Attention else 1e-4)


def test_heads_as_tables(capfd, tmp_path: Path):
    out = tmp_path / "run[bold] of :smile:"
    words = ("heads", "nano", "--task", "ioi", "--n", "4", "--draws", "0", "--format", "png", "--top", "3")
    said = headscope(capfd, *words, "--out", out)
    assert (said.code, said.err) == (0, "")
    assert f"Files: {out}: curves.png" in said.out
    assert "Found: " in said.out
    assert (out / "curves.png").is_file()


@pytest.mark.parametrize("signed", [False, True])
def test_tables_say_how_many_are_needed_and_the_measure_that_applies(capfd, tmp_path: Path, signed: bool):
    """CPR is for rankings by signed score, CMD for those by absolute score."""
    words = ["--task", "ioi", "--n", "6", "--format", "png", "--threshold", "0.8", *(["--signed"] if signed else [])]
    for command, extra in (("heads", ["--draws", "1", "--method", "attribution"]), ("edges", ["--choice", "greedy"])):
        call = [command, "nano", *words, *extra, "--out", tmp_path / command]
        said = headscope(capfd, *call, "--json")
        assert said.code == 0, said.err
        for curve in json.loads(said.out)["curves"]:
            assert curve["k_low"] <= curve["k_at_threshold"] <= curve["k_high"]
            assert [curve["cpr"] is None, curve["cmd"] is None] == [not signed, signed]
        table = headscope(capfd, *call).out
        assert re.search(r"\d+(\.\d)? \(\d+(\.\d)?-\d+(\.\d)?\)", table)
        assert "CPR: area" in table if signed else "CMD: area" in table
    assert re.search(r"Circuit of nano on ioi, eap-ig, greedy: \d+ edges, \d+ of .* it explains \d\.\d+ \[", table)


def test_without_out_the_folder_is_named_after_the_settings(capfd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    words = ("heads", "nano", "--task", "ioi", "--n", "4", "--draws", "0", "--format", "png", "--json")
    first = json.loads(headscope(capfd, *words).out)["run"]
    again = json.loads(headscope(capfd, *words).out)["run"]
    other = json.loads(headscope(capfd, *words, "--seed", "1").out)["run"]
    assert first == again != other
    assert Path(first).parent == Path("runs")
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == sorted([Path(first).name, Path(other).name])


def test_numbers_that_json_does_not_know_are_null(capfd):
    _print_json({"area": float("nan"), "ratios": [1.5, float("inf"), -float("inf")], "name": "NaN"})
    assert json.loads(capfd.readouterr().out, parse_constant=pytest.fail) == {
        "area": None, "ratios": [1.5, None, None], "name": "NaN",
    }  # fmt: skip


def test_the_installed_command():
    """The script that pip installs is the same thing."""
    script = Path(sys.executable).with_name("headscope")
    if not script.exists():
        pytest.skip("headscope is not installed beside this Python")
    done = subprocess.run([script, "list", "models", "--json"], capture_output=True, text=True, check=True)
    assert list(json.loads(done.stdout)) == list(BUILTIN)


def test_an_option_of_before_goes_on_working_with_a_note(capfd, tmp_path: Path):
    asked = ("sparsify-report", "nano", "nano-sparse", "--task", "", "--windows", "3", "--length", "8", "--json")
    said = headscope(capfd, *asked, "--out", tmp_path / "run")
    assert said.code == 0
    assert json.loads(said.out)["sequences"]["count"] == 3
    assert "--windows is now called --sequences" in said.err
