"""Run folders: a unit is known by its key, one process works in a folder, and formats are checked."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command import headscope

import headscope as hs
from headscope.errors import InputError
from headscope.models import builtin_folder
from headscope.records import Scores
from headscope.runs.manifest import FORMAT
from headscope.runs.names import file_name, file_names
from headscope.runs.run import Run, open_run, read_manifest
from headscope.studies.heads import study_heads
from headscope.studies.settings import HeadSettings

LINE = (
    '{"clean": "When Mary and John went to the store, John gave a drink to", "answers": " Mary", "wrong": " John", '
    '"corrupt": "When Mary and John went to the store, Anna gave a drink to"}\n'
)
ASKED = HeadSettings(models=("m",), tasks=("ioi",))


def scores(model: str = "m", value: float = 1.0) -> Scores:
    each = np.full((1, 2, 2), value, np.float32)
    return Scores(model, "ioi", "patching", each[0], each, {})


def key(model: str = "m", weights: str = "00") -> dict[str, Any]:
    return {"model": {"name": model, "sha256": weights}, "task": {"name": "ioi", "sha256": "11"}}


def test_names_that_join_to_one_stay_apart(nano, tmp_path: Path):
    """Model a on the task sparse-ioi and model a-sparse on ioi: one name, two units, and each model its own scores."""
    other = hs.load("nano")
    with torch.no_grad():
        for parameter in other.hf.parameters():
            parameter.mul_(1.25)
    shutil.copytree(builtin_folder("nano"), tmp_path / "a")
    other.hf.save_pretrained(tmp_path / "a-sparse")
    other.tokenizer.save_pretrained(tmp_path / "a-sparse")
    (tmp_path / "sparse-ioi.jsonl").write_text(LINE)
    (tmp_path / "ioi.jsonl").write_text(LINE)
    settings = HeadSettings(
        models=(str(tmp_path / "a"), str(tmp_path / "a-sparse")), methods=("attribution",), draws=0, n=1,
        tasks=(str(tmp_path / "ioi.jsonl"), str(tmp_path / "sparse-ioi.jsonl")), formats=("png",),
    )  # fmt: skip
    for study in (study_heads(settings, out=tmp_path / "run") for _ in range(2)):
        found = {(s.model, s.task): s.values for s in study.scores}
        assert list(found) == [("a", "ioi"), ("a", "sparse-ioi"), ("a-sparse", "ioi"), ("a-sparse", "sparse-ioi")]
        # Both tasks hold the same prompt, so what differs is the model.
        for name in ("a", "a-sparse"):
            np.testing.assert_array_equal(found[name, "ioi"], found[name, "sparse-ioi"])
        assert not np.allclose(found["a", "ioi"], found["a-sparse", "ioi"])
        assert len(study.figures()) == 1 + 4
    assert len(list((tmp_path / "run").glob("scores-*.safetensors"))) == 4


def test_a_unit_is_made_once_and_by_its_key_alone(tmp_path: Path):
    run = Run.open(tmp_path, **ASKED.asked())
    calls: list[float] = []

    def make(value: float) -> Scores:
        calls.append(value)
        return scores(value=value)

    name = ("scores", "m", "ioi")
    first = run.unit(name, lambda: make(1.0), Scores, **key())
    assert run.unit(name, lambda: make(2.0), Scores, **key()).values[0, 0] == first.values[0, 0] == 1.0
    assert run.unit(name, lambda: make(3.0), Scores, **key(weights="22")).values[0, 0] == 3.0
    assert run.unit(name, lambda: make(4.0), Scores, **key(), settings={"fill": "zero"}).values[0, 0] == 4.0
    assert calls == [1.0, 3.0, 4.0]
    assert len(set(run.manifest.units)) == len(list(tmp_path.glob("*.safetensors"))) == 3


def test_what_is_not_what_was_saved_under_that_key_is_set_aside_and_made_again(tmp_path: Path, capfd):
    run = Run.open(tmp_path, **ASKED.asked())
    run.unit(("scores", "m"), scores, Scores, **key())
    run.unit(("texts", "m"), lambda: {"a": 1})
    for file in list(run.manifest.units):
        damaged = run.path(file).read_bytes().replace(b"1", b"2")
        run.path(file).write_bytes(damaged)
        run.unit(("scores", "m"), scores, Scores, **key()) if "scores" in file else run.unit(("texts", "m"), dict)
        said = capfd.readouterr().err
        assert f"{file} is damaged or was changed: it is not what this run saved. It is kept as {file}.damaged" in said
        assert run.path(f"{file}.damaged").read_bytes() == damaged
        run.path(file).unlink()
    assert run.unit(("texts", "m"), lambda: {"a": 3}) == {"a": 3}
    assert "texts-m.json is missing. It is made again" in capfd.readouterr().err
    # A record that was saved for another model says so, whatever the manifest says.
    run.unit(("scores", "n"), lambda: scores("other"), Scores, **key("n"))
    assert run.unit(("scores", "n"), lambda: scores("n"), Scores, **key("n")).model == "n"
    assert "says that it is of other, not of n" in capfd.readouterr().err


def test_names_become_file_names_that_stay_in_the_folder():
    for parts in (("../../etc", "passwd"), ("..",), ("a/b\\c", "d e"), ("/",), (".hidden",), ("x" * 400, "é" * 200)):
        name = file_name(*parts)
        assert Path(name).name == name
        assert not name.startswith(".")
        assert 0 < len(name.encode()) <= 200
    assert file_name("scores", "nano", "ioi", "eap-ig:steps=10") == "scores-nano-ioi-eap-ig-steps=10"
    assert file_name("x" * 400) != file_name("x" * 401)
    both = file_names([("a", "b-c"), ("a-b", "c"), ("d",)])
    assert len(set(both.values())) == 3
    assert both[("d",)] == "d"


def test_a_second_process_is_told_who_works_in_the_folder(tmp_path: Path):
    with open_run(tmp_path / "run", ASKED) as run:
        run.unit(("numbers",), lambda: [1])
        before = {path.name: path.read_bytes() for path in run.folder.iterdir()}
        code = (
            "import sys; from headscope.cli import main; "
            "sys.argv = ['headscope', 'heads', 'nano', '--task', 'ioi', '--out', sys.argv[1]]; main()"
        )
        done = subprocess.run([sys.executable, "-c", code, str(run.folder)], capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (2, "")
        assert f"is in use: process {os.getpid()} on " in done.stderr
        assert {path.name: path.read_bytes() for path in run.folder.iterdir()} == before
    with open_run(tmp_path / "run", ASKED) as run:
        assert run.unit(("numbers",), lambda: [2]) == [1]


def test_the_lock_of_a_dead_process_is_taken_over(tmp_path: Path):
    code = """
import os, signal, sys
from headscope.runs.run import open_run
from headscope.studies.settings import HeadSettings
with open_run(sys.argv[1], HeadSettings(models=("m",), tasks=("ioi",))) as run:
    run.unit(("numbers",), lambda: [1])
    os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "run")])
    assert (tmp_path / "run" / ".holder.json").exists()
    with open_run(tmp_path / "run", ASKED) as run:
        assert json.loads(run.path(".holder.json").read_text())["pid"] == os.getpid()
        assert run.unit(("numbers",), lambda: [2]) == [1]


def test_a_run_that_fails_at_once_leaves_nothing_behind(tmp_path: Path):
    with pytest.raises(InputError, match="no model"), open_run(tmp_path / "run", ASKED):
        raise InputError("There is no model m.")
    assert not list(tmp_path.iterdir())


def test_formats_are_read(tmp_path: Path):
    """Of manifests the very same; of records also earlier ones."""
    Run.open(tmp_path, **ASKED.asked()).unit(("scores", "m"), scores, Scores, **key())
    path = tmp_path / "manifest.json"
    whole = json.loads(path.read_text())
    assert whole["format"] == FORMAT
    for written, told in ((FORMAT + 1, "by a newer version"), (1, "by an earlier version"), (None, "earlier")):
        path.write_text(json.dumps({**whole, "format": written}))
        for read in (lambda: read_manifest(tmp_path), lambda: Run.open(tmp_path, **ASKED.asked())):
            with pytest.raises(InputError, match=told):
                read()
    record = tmp_path / "scores-m.safetensors"
    data = record.read_bytes()
    for digit, fine in ((b"0", True), (b"9", False)):
        record.write_bytes(data.replace(b'\\"format\\": 1', b'\\"format\\": ' + digit))
        assert record.read_bytes() != data
        if fine:
            assert Scores.load(record).model == "m"
        else:
            with pytest.raises(InputError, match=r"by a newer version of Headscope \(format 9; this one reads 1\)"):
                Scores.load(record)


def test_two_variants_of_one_method_are_two_series(capfd, tmp_path: Path):
    words = ("heads", "nano", "--task", "ioi", "--n", "4", "--draws", "0", "--format", "png", "--json", "--method")
    said = headscope(capfd, *words, "attribution-ig,attribution-ig:steps=2", "--out", tmp_path / "run")
    assert said.code == 0, said.err
    plain, quick = json.loads(said.out)["scores"]
    assert (plain["method"], quick["method"]) == ("attribution-ig", "attribution-ig:steps=2")
    task = hs.tasks.ioi(hs.load("nano").tokenizer, n=4, seed=0)
    expected = hs.methods.attribution_ig(hs.load("nano"), task, steps=2)
    saved = Scores.load(tmp_path / "run" / "scores-nano-ioi-attribution-ig-steps=2.safetensors")
    np.testing.assert_allclose(saved.values, expected.values, atol=1e-6)
    assert plain["top"] != quick["top"]


@pytest.mark.parametrize(
    ("command", "method", "message"),
    [
        ("heads", "attribution-ig:stpes=2", "Unknown option 'stpes=2' of method attribution-ig. Its options, with "),
        ("heads", "attribution-ig:steps=two", "Option steps of method attribution-ig: expected a whole number, found"),
        ("heads", "gradient:steps=2", "Unknown option 'steps=2' of method gradient."),
        ("edges", "eap-ig:split=qkv", "Unknown option 'split=qkv' of method eap-ig. Its options, with "),
        ("edges", "eap:per_prompt=yes", "Option per_prompt of method eap: expected True or False, found 'yes'"),
        ("heads", "patching,patching", "Method patching is named twice"),
    ],
)
def test_options_of_methods_are_checked_before_a_model_is_loaded(capfd, tmp_path, command, method, message):
    said = headscope(capfd, command, "no-such-model", "--task", "ioi", "--method", method, "--out", tmp_path / "run")
    assert (said.code, said.out) == (2, "")
    assert message in " ".join(said.err.split())
    assert not (tmp_path / "run").exists()
