"""A share of the counted trials of `make faults` that concern input: fuzzed words, files and requests, and models whose
weights are no numbers to compute with. And what each failure that was once found must say."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from command import headscope
from safetensors.torch import load_file, save_file
from test_bad_input import refused

import headscope as hs
from headscope.models import builtin_folder


@pytest.fixture
def nano_folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(builtin_folder("nano"), tmp_path / "model"))


def spoil(folder: Path, tensor: str, value: float) -> None:
    weights = load_file(folder / "model.safetensors")
    weights[tensor].view(-1)[3] = value
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e38])
def test_a_weight_that_is_no_number_names_its_tensor(capfd, nano_folder: Path, value: float):
    spoil(nano_folder, "model.layers.1.self_attn.k_proj.weight", value)
    told = refused(headscope(capfd, "check", nano_folder, "--task", "ioi", "--n", "2"))
    assert f"model.layers.1.self_attn.k_proj.weight has {value:g} at [0, 3]" in told
    assert "(1 of " in told


def test_logits_that_overflow_name_the_largest_weights(nano: hs.Model):
    from headscope.models.weights import refuse_overflow

    with pytest.raises(hs.InputError, match=r"not finite, though its weights are: .* largest weights are in model\."):
        refuse_overflow(nano.hf, torch.tensor([0.0, float("nan")]))
    refuse_overflow(nano.hf, torch.tensor([0.0, 1e38]))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("own.jsonl", '{"clean": ' + "1" * 5000 + "}", "found bad JSON (number out of range"),
        ("own.jsonl", '{"clean": "\\ud800", "corrupt": "b"}', "line 1: expected one JSON object, found bad JSON"),
        ("own.json", '{"examples": 3}', "examples must be a list, found a number"),
        ("own.json", '{"examples": [3]}', 'examples: "0" must be an object, found a number'),
        ("own.json", "[" * 100_000, "found bad JSON (recursion limit exceeded"),
        ("own.json", '{"examples": [{"input": 3, "target": "x"}]}', '"input" must be a text, found a number'),
    ],
)
def test_odd_task_files_are_told(capfd, tmp_path: Path, name: str, content: str, message: str):
    (tmp_path / name).write_text(content)
    assert message in refused(headscope(capfd, "check", "nano", "--task", tmp_path / name))


@pytest.mark.parametrize(
    ("gate", "message"),
    [
        ({"bias": "high"}, '"bias" must be a number, found'),
        ({"bias": float("nan")}, '"bias" must be a finite number'),
        ({"offsets": ["AAAA"]}, "offsets must be of 4 layers, found 1"),
        ({"offsets": ["?"] * 4}, "the offsets of layer 0 must be finite numbers in base64"),
    ],
)
def test_odd_gates_are_told(tmp_path: Path, gate: dict[str, object], message: str):
    from headscope.models.sparse_gate import refuse_odd_gate

    with pytest.raises(hs.InputError) as told:
        refuse_odd_gate({"bias": 0.0, **gate}, "gate.json", 4)
    assert message in str(told.value)


def test_an_embedder_runs_no_code_and_asks_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    from headscope.functions.embedding import embedder

    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked on the terminal"))
    about = {"model_type": "mine", "auto_map": {"AutoConfig": "mine.C", "AutoModel": "mine.M"}}
    (tmp_path / "config.json").write_text(json.dumps(about))
    (tmp_path / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    with pytest.raises(hs.InputError, match="cannot be loaded as a sentence embedder"):
        embedder(str(tmp_path))
    assert not (tmp_path / "ran").exists()


def test_sequences_longer_than_the_model_reads_are_refused(nano: hs.Model):
    from headscope.sparse.text import sequences

    with pytest.raises(hs.InputError, match="--length must be at most 256, the positions that nano has; found 1000"):
        sequences(nano, "self", count=2, length=1000)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(("group", "n"), [("fuzz", 60), ("numbers", 3)])
def test_a_share_of_the_counted_trials(group: str, n: int):
    from importlib import import_module

    wrong = [trial for trial in import_module(f"faults.{group}").trials(7, n) if not trial.ok]
    assert not wrong
