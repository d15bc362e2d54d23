"""Nothing lost, nothing wrong in silence: what happens to damaged, foreign and half-written files."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import run_folders
import torch
from command import headscope
from safetensors.torch import load_file, save_file

import headscope as hs
from headscope.errors import InputError
from headscope.models import builtin_folder
from headscope.records.checksums import SUMS, damaged_files, read_sums, sealed, unsealed, write_sums
from headscope.records.files import sweep, write_bytes
from headscope.report.redraw import redraw
from headscope.runs.run import Run, open_run
from headscope.sparse.checkpoint import Checkpoint
from headscope.sparse.settings import Settings
from headscope.sparse.text import sequences
from headscope.studies.settings import HeadSettings

SMALL = {
    "sequences": 8, "held_out": 4, "length": 8, "batch": 4, "every": 2, "lora_rank": 2, "text": "self", "warmup": 1,
}  # fmt: skip
BENCH = Path(__file__).parents[1] / "bench"
ASKED = HeadSettings(models=("m",), tasks=("ioi",))


def flip(path: Path, at: int = -3) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 16
    path.write_bytes(data)


@pytest.fixture(scope="module")
def trained(nano: hs.Model, tmp_path_factory) -> Path:
    """A short run of sparsify, whole; tests copy it."""
    folder = tmp_path_factory.mktemp("sparse") / "run"
    hs.sparsify(nano, out=folder, steps=4, **SMALL)
    return folder


def test_a_seal_tells_what_was_changed():
    whole = sealed({"a": [1, 2.5], "b": {"c": None}})
    assert unsealed(json.loads(json.dumps(whole))) == {"a": [1, 2.5], "b": {"c": None}}
    with pytest.raises(ValueError, match="damaged or was changed"):
        unsealed({**whole, "a": [1, 2.25]})


@pytest.mark.parametrize("damage", ["flip", "delete", "text"])
def test_a_damaged_manifest_is_replaced_by_its_copy(tmp_path: Path, capfd, damage: str):
    with open_run(tmp_path / "run", ASKED) as run:
        run.unit(("numbers",), lambda: [1])
    path = tmp_path / "run" / "manifest.json"
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b'"numbers.json"', b'"numbess.json"')) if damage == "flip" else path.unlink()
    if damage == "text":
        path.write_text("[" * 50)
    with open_run(tmp_path / "run", ASKED) as run:
        assert run.unit(("numbers",), lambda: [2]) == [1]
    assert "Its copy .manifest.json is whole" in capfd.readouterr().err
    assert json.loads(path.read_bytes())["units"] == json.loads(whole)["units"]


def test_what_dead_writers_left_is_removed(tmp_path: Path):
    code = """
import os, signal, sys
from pathlib import Path
from headscope.records.files import whole_file, whole_folder
with whole_file(Path(sys.argv[1], "page.html")), whole_folder(Path(sys.argv[1])):
    os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path)])
    assert len(list(tmp_path.iterdir())) == 2
    mine = tmp_path / f".other-00000000.{os.getpid()}-x.part"
    mine.write_text("of another machine")
    write_bytes(tmp_path / "page.html", b"x")
    assert sorted(path.name for path in tmp_path.iterdir())[0].startswith(".folder-")
    assert mine.exists()
    sweep(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


@pytest.mark.parametrize(
    ("hurt", "told"),
    [
        (lambda folder: flip(folder / "model.safetensors"), "model.safetensors"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "tokenizer.json"),
        (lambda folder: flip(folder / "adapter" / "adapter_model.safetensors"), "adapter_model.safetensors"),
        # Killed behind the last checkpoint, when the model of an earlier step is there.
        (lambda folder: write_sums(folder / "adapter", step=2), SUMS),
    ],
)
def test_a_finished_training_with_another_model_writes_its_own(
    nano: hs.Model, trained: Path, tmp_path: Path, capfd, hurt: Callable[[Path], object], told: str
):
    folder = tmp_path / "run"
    shutil.copytree(trained, folder)
    hurt(folder)
    hs.sparsify(nano, out=folder, steps=4, **SMALL)
    said = capfd.readouterr().err
    assert told in said
    assert "It is written again" in said
    for name in ("model.safetensors", "tokenizer.json", "adapter/adapter_model.safetensors"):
        assert (folder / name).read_bytes() == (trained / name).read_bytes()
    assert read_sums(folder)["step"] == read_sums(folder / "adapter")["step"] == 4


def test_a_damaged_checkpoint_is_set_aside_and_a_stop_repeats_no_step(
    nano: hs.Model, trained: Path, tmp_path: Path, capfd
):
    folder = tmp_path / "run"
    shutil.copytree(trained, folder)
    flip(folder / "checkpoint.safetensors")
    (folder / "history.csv").write_text("step\n0\n")
    history = hs.sparsify(nano, out=folder, steps=4, **SMALL)
    assert "checkpoint.safetensors is damaged or not of this run" in capfd.readouterr().err
    assert (folder / "checkpoint.safetensors.damaged").exists()
    assert (folder / "history.csv").read_bytes() == (trained / "history.csv").read_bytes()
    assert [row["step"] for row in history] == [0, 2, 4]


@pytest.mark.parametrize(
    ("about", "told"),
    [
        (None, "must be an object"),
        ({"step": -1}, '"step" must be'),
        ({"history": [3]}, '"history.0" must be an object'),
        ({"average": "x"}, '"average'),
        ({}, "has no weights"),
    ],
)
def test_a_checkpoint_that_none_was_noted_of_is_read_by_its_schema(
    nano: hs.Model, tmp_path: Path, about: dict[str, Any] | None, told: str
):
    """A folder from before there were checksums, or one that somebody put together."""
    whole = {"settings": {}, "step": 2, "penalty_weight": 1.0, "average": None, "history": [], "base_sha256": "x"}
    said = {} if about is None else {"headscope": json.dumps({**whole, **about})}
    save_file({"odd": torch.zeros(2)}, tmp_path / "checkpoint.safetensors", metadata=said)
    with pytest.raises(InputError, match=told):
        Checkpoint(tmp_path, nano, Settings(**SMALL))


def test_a_checkpoint_whose_process_ended_before_it_was_noted_is_noted(nano: hs.Model, trained: Path, tmp_path: Path):
    folder = tmp_path / "run"
    shutil.copytree(trained, folder)
    settings = Settings(**{**SMALL, "steps": 4, "model": "nano"})
    with open_run(folder, settings) as run:
        whole = run.manifest.units["checkpoint.safetensors"]["sha256"]
        run.manifest.units["checkpoint.safetensors"] = {"sha256": "of the one before", "next": whole}
        run.manifest.write(folder)
    hs.sparsify(nano, out=folder, steps=4, **SMALL)
    assert json.loads((folder / "manifest.json").read_text())["units"]["checkpoint.safetensors"] == {"sha256": whole}


def test_a_stop_behind_the_first_evaluation_does_not_repeat_it(nano: hs.Model, tmp_path: Path, monkeypatch):
    from headscope.sparse.training import Trainer

    def stop(self: Trainer) -> float:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "train_step", stop)
        with pytest.raises(KeyboardInterrupt):
            hs.sparsify(nano, out=tmp_path / "run", steps=2, **SMALL)
    assert [row["step"] for row in hs.sparsify(nano, out=tmp_path / "run", steps=2, **SMALL)] == [0, 2]


def test_a_damaged_model_is_not_loaded(trained: Path, tmp_path: Path):
    shutil.copytree(trained, tmp_path / "run")
    assert hs.load(tmp_path / "run").n_layers == 4
    flip(tmp_path / "run" / "model.safetensors")
    with pytest.raises(InputError, match=r"model\.safetensors is damaged or missing"):
        hs.load(tmp_path / "run")


def half(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return dict(list(tensors.items())[::2])


@pytest.mark.parametrize(
    "change",
    [
        lambda tensors: {"z": torch.zeros(1)},
        half,
        lambda tensors: {f"x{name}": tensor for name, tensor in tensors.items()},
        lambda tensors: {name: tensor.to(torch.int8) for name, tensor in tensors.items()},
    ],
)
def test_an_adapter_without_its_weights_is_refused(tmp_path: Path, capfd, change):
    """With checksums that are right, or none: the tensors must be those that the base needs."""
    folder = tmp_path / "adapter"
    shutil.copytree(builtin_folder("nano-sparse"), folder)
    (folder / SUMS).unlink(missing_ok=True)
    weights = folder / "adapter_model.safetensors"
    save_file(change(load_file(weights)), weights)
    said = headscope(capfd, "merge", folder, "nano", "--out", tmp_path / "merged")
    assert said.code == 2
    assert "does not belong to its adapter_config.json: of " in said.err
    assert not (tmp_path / "merged").exists()


def test_another_kind_of_adapter_and_a_changed_one_are_refused(tmp_path: Path):
    folder = tmp_path / "adapter"
    shutil.copytree(builtin_folder("nano-sparse"), folder)
    assert not damaged_files(folder)
    flip(folder / "adapter_model.safetensors")
    with pytest.raises(InputError, match=r"adapter_model\.safetensors is damaged"):
        hs.load(folder)
    flip(folder / "adapter_model.safetensors")
    config = folder / "adapter_config.json"
    config.write_text(config.read_text().replace('"LORA"', '"IA3"'))
    write_sums(folder)
    with pytest.raises(InputError, match="an adapter of type IA3; expected LORA"):
        hs.load(folder)


def test_a_damaged_text_in_the_cache_is_written_again(nano: hs.Model, tmp_path: Path, monkeypatch, capfd):
    monkeypatch.setenv("HEADSCOPE_CACHE", str(tmp_path))
    asked = {"count": 4, "length": 6}
    first = sequences(nano, "self", **asked)
    (piece,) = tmp_path.rglob("*.safetensors")
    whole = piece.read_bytes()
    sequences(nano, "self", **asked, seed=1)
    other = piece.with_name("seed-1-0.safetensors").read_bytes()
    for damaged in (whole[:-3] + bytes([whole[-3] ^ 1]) + whole[-2:], whole[:100], b"", other):
        piece.write_bytes(damaged)
        assert torch.equal(sequences(nano, "self", **asked), first)
        assert "is damaged" in capfd.readouterr().err
        assert piece.read_bytes() == whole
    # From before there were checksums.
    save_file(load_file(piece), piece)
    assert torch.equal(sequences(nano, "self", **asked), first)
    assert piece.read_bytes() == whole
    assert capfd.readouterr().err == ""


def test_figures_stay_in_their_folder(tmp_path: Path):
    """Whatever a record says of its model, task, method or ranking."""
    out = tmp_path / "a" / "b" / "c" / "d"
    odd = "x/../../../../escaped"
    run = run_folders.heads_run(out / "run", models=(odd,), tasks=(odd,))
    other = run_folders.curve(odd, odd, "patching", np.arange(13), 12, 1, ranking=odd)
    run_folders.keep(run, "curve-other", other)
    paths = redraw(run.folder, out / "drawn", formats=["png"])
    assert paths
    assert all(path.parent == out / "drawn" for path in paths)
    assert not [path for path in tmp_path.rglob("*escaped*") if path.parent.parent != out]


@pytest.mark.slow
def test_the_advice_about_a_damaged_record_is_right(tmp_path: Path, capfd):
    words = ("heads", "nano", "--task", "ioi", "--n", "2", "--method", "gradient", "--draws", "0", "--points", "3")
    run = (*words, "--format", "png", "--out", tmp_path / "run")
    assert headscope(capfd, *run).code == 0
    record = tmp_path / "run" / "scores-nano-ioi-gradient.safetensors"
    whole = record.read_bytes()
    flip(record)
    said = headscope(capfd, "figure", tmp_path / "run")
    assert said.code == 2
    assert "Give the run's command again to have it made" in said.err
    said = headscope(capfd, *run)
    assert said.code == 0
    assert "scores-nano-ioi-gradient.safetensors.damaged" in said.err
    assert record.read_bytes() == whole
    assert headscope(capfd, "figure", tmp_path / "run").code == 0


@pytest.mark.parametrize("place", ["/dev/null/x", "/sys/x", "/proc/x"])
def test_places_that_cannot_be_written_are_told(tmp_path: Path, capfd, place: str):
    for words in (("heads", "nano", "--task", "ioi"), ("merge", builtin_folder("nano-sparse"), "nano")):
        said = headscope(capfd, *words, "--out", place)
        assert said.code == 1
        assert f"Cannot write {place}" in said.err


def test_a_run_knows_all_its_files(tmp_path: Path):
    run = run_folders.heads_run(tmp_path / "run")
    assert {name for name, noted in run.manifest.units.items() if len(noted["sha256"]) == 64} == set(run.manifest.files)
    assert Run.open(run.folder, command="heads", settings=run.manifest.settings).manifest == run.manifest


def test_the_doctor_names_what_is_damaged(trained: Path, tmp_path: Path, capfd):
    folder = tmp_path / "run"
    shutil.copytree(trained, folder)
    said = headscope(capfd, "doctor", folder, "--json")
    assert said.code == 0
    files = {one["what"] for one in json.loads(said.out)}
    assert {"manifest.json", "checkpoint.safetensors", "model.safetensors", "adapter/adapter_config.json"} <= files
    flip(folder / "model.safetensors")
    flip(folder / "checkpoint.safetensors")
    (folder / "history.csv").unlink()
    said = headscope(capfd, "doctor", folder, "--json")
    assert said.code == 1
    wrong = {one["what"]: one["state"] for one in json.loads(said.out) if not one["ok"]}
    assert wrong == {"model.safetensors": "damaged", "checkpoint.safetensors": "damaged", "history.csv": "missing"}
    assert "3 of " in headscope(capfd, "doctor", folder).out
    said = headscope(capfd, "doctor", tmp_path)
    assert (said.code, "is no run: expected a folder with manifest.json" in said.err) == (2, True)


def test_the_doctor_looks_at_the_surroundings_and_the_cache_is_listed_and_cleared(
    nano: hs.Model, tmp_path: Path, capfd, monkeypatch
):
    monkeypatch.setenv("HEADSCOPE_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    sequences(nano, "self", count=2, length=4)
    (name,) = (f"text/{path.name}" for path in (tmp_path / "text").iterdir())
    found = {one["what"]: one for one in json.loads(headscope(capfd, "doctor", "--json").out)}
    assert {"python", "torch", "device", "free memory", "free disk for the cache", "hub", "COMET"} < found.keys()
    assert found[f"cache: {name}"]["state"].endswith(", whole")
    flip(next(tmp_path.rglob("*.safetensors")))
    said = headscope(capfd, "doctor", "--json")
    assert said.code == 1
    assert [one["what"] for one in json.loads(said.out) if not one["ok"]] == [f"cache: {name}"]
    assert [one["name"] for one in json.loads(headscope(capfd, "cache", "--json").out)] == [name]
    said = headscope(capfd, "cache", "--clear", "../x")
    assert (said.code, f"It has: {name}." in said.err) == (2, True)
    assert headscope(capfd, "cache", "--clear", name).code == 0
    assert json.loads(headscope(capfd, "cache", "--json").out) == []


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the trials fork")
@pytest.mark.parametrize(("group", "n"), [("kills", 2), ("damages", 3), ("disks", 2), ("pairs", 1)])
def test_a_few_trials_of_each_group_of_faults(group: str, n: int):
    """As `make faults` runs them, in a process of their own: it forks, and this one has threads."""
    command = [sys.executable, "-m", "faults", group, "--n", str(n), "--seed", "3", "--no-write"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(BENCH), *sys.path])}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{group}: {n} trials in " in done.stderr
