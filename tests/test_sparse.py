"""Sparsifying: the objective by hand, the text, the loop from its first step to a model that loads, and its stops."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command import COMMAND_LINE, headscope, killed_when
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

import headscope as hs
from headscope.models.sparse_gate import CONFIG_KEY, Gates, deciding
from headscope.records.checksums import write_sums
from headscope.runs.run import read_manifest
from headscope.sparse import checkpoint, training
from headscope.sparse.objective import Geco, cross_entropy, divergence, penalty
from headscope.sparse.settings import Settings
from headscope.sparse.text import drawn, nucleus_edge, sequences

SMALL: dict[str, Any] = {
    "sequences": 64, "held_out": 16, "length": 12, "batch": 8, "steps": 12, "every": 3, "lora_rank": 4, "lr": 2e-3,
    "lr_end": 2e-3, "margin_start": 0.05, "penalty_weight": 1.0,
}  # fmt: skip


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The text that models write goes into a cache of this session."""
    monkeypatch.setenv("HEADSCOPE_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


def test_losses_by_hand():
    logits = torch.tensor([[[0.0, 0.0], [np.log(3.0), 0.0], [5.0, 5.0]]])
    ids = torch.tensor([[1, 0, 1]])
    # Every token but the first: 1/2 for the second, 1/4 for the third.
    assert cross_entropy(logits, ids).item() == pytest.approx((np.log(2) + np.log(4)) / 2, abs=1e-6)
    other = torch.tensor([[[0.0, 0.0], [0.0, 0.0], [5.0, 5.0]]])
    # Only the second place differs: from (3/4, 1/4) to (1/2, 1/2).
    expected = (0.75 * np.log(0.75 / 0.5) + 0.25 * np.log(0.25 / 0.5)) / 3
    assert divergence(logits, other).item() == pytest.approx(expected, abs=1e-6)
    other.requires_grad_()
    divergence(logits, other).backward()
    # The gradient is the difference of the distributions, over the number of places.
    wanted = torch.tensor([[0.0, 0.0], [0.5 - 0.75, 0.5 - 0.25], [0.0, 0.0]]) / 3
    torch.testing.assert_close(other.grad[0] if other.grad is not None else None, wanted)


def test_some_places_are_the_same_places_of_the_whole():
    draw = torch.Generator().manual_seed(0)
    logits, ids = torch.randn(2, 6, 5, generator=draw), torch.randint(0, 5, (2, 6), generator=draw)
    places = torch.tensor([0, 3])
    by_hand = -torch.stack([logits[b, t].log_softmax(-1)[ids[b, t + 1]] for b in (0, 1) for t in (0, 3)]).mean()
    torch.testing.assert_close(cross_entropy(logits[:, places], ids, places), by_hand)
    torch.testing.assert_close(cross_entropy(logits[:, :5], ids, torch.arange(5)), cross_entropy(logits, ids))


def test_the_nucleus_of_a_large_vocabulary_is_that_of_the_whole_sorted_one():
    draw = torch.Generator().manual_seed(0)
    # Rows whose nucleus is among the few likeliest tokens, and flat ones where it is not.
    for spread in (6.0, 0.1):
        chance = (spread * torch.randn(4, 2000, generator=draw)).softmax(-1)
        whole = chance.sort(-1, descending=True).values
        inside = (whole.cumsum(-1) - whole < 0.9).sum(-1, keepdim=True)
        assert (inside.max() < 512) == (spread > 1)
        torch.testing.assert_close(nucleus_edge(chance, 0.9), whole.gather(1, inside - 1))


def test_tokens_are_drawn_from_the_nucleus_as_often_as_they_are_likely():
    chance = torch.tensor([0.1, 0.4, 0.02, 0.3, 0.18])
    rows, draw = chance.log().expand(20000, 5), torch.Generator().manual_seed(0)
    for top_p, wanted in ((1.0, chance), (0.85, torch.tensor([0.0, 0.4, 0.0, 0.3, 0.18]) / 0.88)):
        found = drawn(rows, top_p, draw).flatten().bincount(minlength=5) / len(rows)
        torch.testing.assert_close(found, wanted, atol=0.015, rtol=0)
        assert (found[wanted == 0] == 0).all()


def test_penalties_by_hand():
    # Two layers of two heads on sequences of 7 tokens, where a share of 1/4 is one edge per query.
    expected = {0: torch.tensor([[0.25, 0.0], [0.25, 0.0]]), 1: torch.tensor([[1.0, 0.5], [1.0, 0.0]])}
    assert penalty(expected, "mean", 7).item() == pytest.approx((0.25 + 0 + 1 + 0.25) / 4)
    assert penalty(expected, "edges", 7).item() == pytest.approx((1 + 0 + 4 + 1) / 4)
    assert penalty(expected, "sqrt", 7).item() == pytest.approx((2 * 1.01**0.5 + 0.1 + 4.01**0.5) / 4)


def test_geco_reaches_a_constraint_and_holds_it():
    """Minimise x subject to (x - 2)^2 <= 0.25: the answer is 1.5, whatever weight it starts from."""
    for weight in (0.01, 1.0, 100.0):
        geco, x, late = Geco(weight, rate=0.05), 3.0, []
        for step in range(4000):
            constraint = (x - 2) ** 2
            gradient = 2 * (x - 2) + geco.weight
            x -= 0.02 * max(-1.0, min(1.0, gradient))
            geco = geco.after(constraint, target=0.25, margin=0.25)
            if step >= 3000:
                late.append(constraint)
        assert x == pytest.approx(1.5, abs=0.02)
        assert max(late) < 0.27


def test_own_text_is_written_once_and_follows_the_seed(nano: hs.Model, monkeypatch: pytest.MonkeyPatch):
    first = sequences(nano, "self", count=40, length=10, seed=3)
    monkeypatch.setattr("headscope.sparse.text._write", None)
    assert torch.equal(first, sequences(nano, "self", count=40, length=10, seed=3))
    assert first.shape == (40, 10)
    assert len({tuple(row) for row in first.tolist()}) > 20


def test_a_file_and_a_folder_are_cut_into_sequences(nano: hs.Model, tmp_path: Path):
    words = "When Mary and John went to the store, John gave a drink to Mary. " * 40
    (tmp_path / "one.txt").write_text(words)
    found = sequences(nano, str(tmp_path / "one.txt"), count=20, length=8, seed=0)
    assert found.shape == (20, 8)
    assert torch.equal(found, sequences(nano, str(tmp_path), count=20, length=8, seed=0))
    mixed = sequences(nano, f"{tmp_path},self", count=20, length=8, seed=0)
    rows = {tuple(row) for row in found.tolist()}
    assert 5 <= sum(tuple(row) in rows for row in mixed.tolist()) <= 15
    # Unequal parts, and sequences made elsewhere.
    save_file({"ids": torch.arange(160).reshape(20, 8)}, tmp_path / "made.safetensors")
    mixed = sequences(nano, f"{tmp_path / 'made.safetensors'}:3,self", count=20, length=8, seed=0)
    made = {tuple(row) for row in torch.arange(160).reshape(20, 8).tolist()}
    assert sum(tuple(row) in made for row in mixed.tolist()) == 15
    with pytest.raises(hs.InputError, match="must hold sequences of 9 tokens"):
        sequences(nano, str(tmp_path / "made.safetensors"), count=2, length=9, seed=0)
    with pytest.raises(hs.InputError, match="must be above 0"):
        sequences(nano, "self:0", count=2, length=9, seed=0)


@pytest.mark.parametrize("rank", [4, 0])
def test_from_dense_to_a_sparse_model_that_loads(nano: hs.Model, tmp_path: Path, rank: int):
    before = nano.fingerprint()
    options = {**SMALL, "lora_rank": rank, "lr": 2e-3 if rank else 2e-4, "steps": 30, "every": 10}
    history = hs.sparsify(nano, out=tmp_path / "sparse", **options)
    assert nano.fingerprint() == before
    assert getattr(nano.hf.config, CONFIG_KEY, None) is None
    assert [row["step"] for row in history] == [0, 10, 20, 30]
    assert history[-1]["connectivity"] < history[0]["connectivity"]
    assert all(row["target"] == 0.05 for row in history)
    assert history[0]["train"] == history[0]["kl"]
    assert all(row["train"] > 0 for row in history)
    sparse = hs.load(tmp_path / "sparse")
    ids = sequences(nano, "self", count=SMALL["sequences"] + 16, length=12, seed=0)[:16]
    again = training.measured(sparse.hf, nano.hf, ids, 8)
    # (With LoRA the saved adapter is rounded to half precision.)
    assert again["kl"] == pytest.approx(history[-1]["kl"], abs=1e-3)
    assert again["connectivity"] == pytest.approx(history[-1]["connectivity"], abs=3e-3)
    rows = list(csv.DictReader((tmp_path / "sparse" / "history.csv").open()))
    assert [int(row["step"]) for row in rows] == [0, 10, 20, 30]
    if rank:
        files = list((tmp_path / "sparse" / "adapter").iterdir())
        assert {file.stat().st_mode & 0o777 for file in files} == {0o644}
        adapter = hs.load(tmp_path / "sparse" / "adapter", base="nano")
        assert adapter.fingerprint() == sparse.fingerprint()
    # Nothing downstream knows that it is sparse.
    task = hs.tasks.ioi(sparse.tokenizer, n=6, seed=0)
    curve = hs.sweep(sparse, task, hs.methods.patching(sparse, task))
    assert curve.explained[-1] == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("rank", [4, 0])
def test_learned_offsets_are_kept_wherever_the_model_goes(nano: hs.Model, tmp_path: Path, capfd, rank: int):
    options = {**SMALL, "lora_rank": rank, "lr": 2e-3 if rank else 2e-4, "offset_lr": 20.0, "penalty": "edges"}
    history = hs.sparsify(nano, out=tmp_path / "sparse", **options)
    assert history[-1]["edges_per_query"] == pytest.approx(history[-1]["connectivity"] * 6.5)
    sparse = hs.load(tmp_path / "sparse")
    ids = sequences(nano, "self", count=SMALL["sequences"] + 16, length=12, seed=0)[:16]
    again = training.measured(sparse.hf, nano.hf, ids, 8)
    assert again["kl"] == pytest.approx(history[-1]["kl"], abs=2e-3)
    assert again["connectivity"] == pytest.approx(history[-1]["connectivity"], abs=3e-3)
    gate = getattr(sparse.hf.config, CONFIG_KEY)
    assert len(gate["offsets"]) == nano.n_layers
    # They are weights: without them the model is another one, and has another name.
    logits, name = sparse.hf(input_ids=ids).logits, sparse.fingerprint()
    setattr(sparse.hf.config, CONFIG_KEY, {"bias": 0.0})
    assert (sparse.hf(input_ids=ids).logits - logits).abs().max() > 1e-3
    assert sparse.fingerprint() != name
    # Plain transformers, and what plain transformers saves again.
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "sparse")
    torch.testing.assert_close(plain(input_ids=ids).logits, logits)
    plain.save_pretrained(tmp_path / "again")
    nano.tokenizer.save_pretrained(tmp_path / "again")
    assert hs.load(tmp_path / "again").fingerprint() == name
    if rank:
        assert hs.load(tmp_path / "sparse" / "adapter", base="nano").fingerprint() == name
        said = headscope(capfd, "merge", tmp_path / "sparse" / "adapter", "nano", "--out", tmp_path / "merged")
        assert said.code == 0, said.err
        assert hs.load(tmp_path / "merged").fingerprint() == name


def test_averaged_weights_are_the_mean_of_the_steps(nano: hs.Model, tmp_path: Path):
    settings = Settings(**{**SMALL, "average": 3, "offset_lr": 1.0})
    text = sequences(nano, "self", count=80, length=12, seed=0)
    trainer = training.Trainer(nano, settings, text, checkpoint.Checkpoint(tmp_path / "run", nano, settings))
    seen = []
    for trainer.step in range(4):
        trainer.train_step()
        seen.append({name: p.detach().clone() for name, p in trainer.named.items()})
    with trainer.averaged():
        for name, p in trainer.named.items():
            three = (seen[0][name] + seen[1][name] + seen[2][name]) / 3
            torch.testing.assert_close(p.detach(), three * 2 / 3 + seen[3][name] / 3)
    assert all(torch.equal(p, seen[3][name]) for name, p in trainer.named.items())


def test_the_constraint_can_be_cross_entropy_with_distillation_and_accumulation(nano: hs.Model, tmp_path: Path):
    options = {**SMALL, "constraint": "ce", "distill": 0.5, "accumulate": 2, "noise": 0.5, "checkpointing": True}
    history = hs.sparsify(nano, out=tmp_path / "sparse", **options)
    assert history[0]["target"] == pytest.approx(history[0]["dense_ce"] + 0.05)
    assert history[-1]["connectivity"] < history[0]["connectivity"]


def test_accumulating_is_the_whole_batch(nano: hs.Model, tmp_path: Path):
    whole, parts = (
        hs.sparsify(nano, out=tmp_path / str(count), **{**SMALL, "accumulate": count, "steps": 3}) for count in (1, 4)
    )
    assert parts[-1]["kl"] == pytest.approx(whole[-1]["kl"], abs=1e-5)
    assert parts[-1]["connectivity"] == pytest.approx(whole[-1]["connectivity"], abs=1e-5)


def command(out: Path, **options: Any) -> list[str]:
    words = [f"--{name.replace('_', '-')}={value}" for name, value in {**SMALL, **options}.items()]
    return ["sparsify", "nano", "--out", str(out), *words]


def test_killed_three_times_and_resumed_it_ends_with_the_same_numbers(nano: hs.Model, tmp_path: Path):
    options = {"steps": 40, "every": 2, "average": 5, "offset_lr": 2.0, "penalty": "sqrt"}
    hs.sparsify(nano, out=tmp_path / "whole", **{**SMALL, **options})
    out = tmp_path / "killed"
    reached = 0
    for often in np.random.default_rng(0).integers(14, 24, 3):
        killed_when("os.rename", out / "*", COMMAND_LINE, *command(out, **options), often=often)
        before, reached = reached, len((out / "history.csv").read_text().splitlines())
        assert reached > before
        assert not (out / "config.json").exists()
    hs.sparsify(nano, out=out, **{**SMALL, **options})
    assert (out / "history.csv").read_text() == (tmp_path / "whole" / "history.csv").read_text()
    for name in ("model.safetensors", "adapter/adapter_model.safetensors"):
        one, other = (load_file(tmp_path / run / name) for run in ("whole", "killed"))
        assert all(torch.equal(one[key], other[key]) for key in one)


def test_a_finished_run_can_be_asked_for_more_steps(nano: hs.Model, tmp_path: Path):
    hs.sparsify(nano, out=tmp_path / "run", **{**SMALL, "steps": 6})
    longer = hs.sparsify(nano, out=tmp_path / "run", **{**SMALL, "steps": 12})
    assert longer == hs.sparsify(nano, out=tmp_path / "whole", **SMALL)


def test_a_run_can_start_from_an_adapter(nano: hs.Model, tmp_path: Path):
    first = hs.sparsify(nano, out=tmp_path / "first", **SMALL)
    options = {**SMALL, "steps": 3, "start": str(tmp_path / "first" / "adapter")}
    second = hs.sparsify(nano, out=tmp_path / "second", **options)
    # (The adapter is kept in half precision.)
    assert second[0]["kl"] == pytest.approx(first[-1]["kl"], abs=1e-3)
    assert second[0]["connectivity"] == pytest.approx(first[-1]["connectivity"], abs=3e-3)
    assert second[0]["connectivity"] < first[0]["connectivity"]
    # From an adapter without offsets they start at nothing; from one that has them, with those.
    third = hs.sparsify(nano, out=tmp_path / "offsets", **{**options, "offset_lr": 20.0})
    assert third[0] == second[0]
    kept = {**options, "start": str(tmp_path / "offsets" / "adapter")}
    fourth = hs.sparsify(nano, out=tmp_path / "kept", **kept)
    assert fourth[0]["connectivity"] == pytest.approx(third[-1]["connectivity"], abs=3e-3)
    gates = [
        json.loads((tmp_path / run / "adapter" / "headscope_gate.json").read_text()) for run in ("offsets", "kept")
    ]
    assert gates[0]["offsets"] == gates[1]["offsets"]
    with pytest.raises(hs.InputError, match="has rank 4, not 2"):
        hs.sparsify(nano, out=tmp_path / "third", **{**options, "lora_rank": 2})
    with pytest.raises(hs.InputError, match="is no adapter"):
        hs.sparsify(nano, out=tmp_path / "third", **{**options, "start": str(tmp_path)})
    gate = tmp_path / "first" / "adapter" / "headscope_gate.json"
    gate.write_text(json.dumps({**json.loads(gate.read_text()), "base_sha256": "0" * 64}))
    write_sums(gate.parent)
    with pytest.raises(hs.InputError, match="belongs to other weights"):
        hs.sparsify(nano, out=tmp_path / "third", **options)
    assert not (tmp_path / "third").exists()


def test_tokens_that_the_text_lacks_can_be_left_out(nano: hs.Model, tmp_path: Path):
    """The divergence of both models' distributions over the tokens seen; what is measured held out is over all."""
    text = sequences(nano, "self", count=80, length=12, seed=0)
    settings = Settings(**{**SMALL, "vocabulary": "seen", "positions": 1.0})
    trainer = training.Trainer(nano, settings, text, checkpoint.Checkpoint(tmp_path / "run", nano, settings))
    seen, ids = text.unique(), text[16:24]
    assert len(seen) < nano.hf.config.vocab_size
    _, found = trainer._loss(ids, 0)
    with torch.no_grad(), deciding(Gates()):
        sparse, dense = trainer.student(input_ids=ids).logits, nano.hf(input_ids=ids).logits
    assert sparse.shape[-1] == nano.hf.config.vocab_size
    torch.testing.assert_close(found, divergence(dense[:, :-1, seen], sparse[:, :-1, seen]), atol=1e-5, rtol=1e-5)
    with pytest.raises(hs.InputError, match="--constraint kl"):
        Settings(vocabulary="seen", constraint="ce")


def test_a_weight_can_be_kept(nano: hs.Model, tmp_path: Path):
    history = hs.sparsify(nano, out=tmp_path / "run", **{**SMALL, "rate": 0.0, "penalty_weight": 2.0})
    assert {row["penalty_weight"] for row in history} == {2.0}
    assert history[-1]["connectivity"] < history[0]["connectivity"]
    # A later run may ask for another.
    longer = hs.sparsify(nano, out=tmp_path / "run", **{**SMALL, "rate": 0.0, "penalty_weight": 3.0, "steps": 15})
    assert longer[:-1] == history
    assert longer[-1]["penalty_weight"] == 3.0


def test_two_processes_under_accelerate_share_the_batch(nano: hs.Model, tmp_path: Path):
    expected = hs.sparsify(nano, out=tmp_path / "one", **{**SMALL, "steps": 3})
    launch = [
        sys.executable,
        "-m",
        "accelerate.commands.launch",
        "--cpu",
        "--num_processes",
        "2",
        "--num_machines",
        "1",
    ]
    launch += ["--mixed_precision", "no", "--dynamo_backend", "no", "-m", "headscope"]
    done = subprocess.run([*launch, *command(tmp_path / "two", steps=3)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = list(csv.DictReader((tmp_path / "two" / "history.csv").open()))
    for row, wanted in zip(rows, expected, strict=True):
        assert float(row["kl"]) == pytest.approx(wanted["kl"], abs=1e-5)
        assert float(row["penalty_weight"]) == pytest.approx(wanted["penalty_weight"], rel=1e-4)


def test_bad_input_is_told_in_a_line_or_two(nano: hs.Model, tmp_path: Path, capfd):
    short = tmp_path / "short.txt"
    short.write_text("Mary had a little lamb.")
    sparse = tmp_path / "sparse"
    hs.sparsify(nano, out=sparse, **{**SMALL, "steps": 1})
    full = tmp_path / "full"
    full.mkdir()
    (full / "letter.txt").write_text("dear")
    cases = [
        (["sparsify", "nano", "--out", tmp_path / "a", "--text", short], "too short"),
        (["sparsify", "nano", "--out", tmp_path / "a", "--text", tmp_path / "none.txt"], "no file or folder"),
        (["sparsify", sparse, "--out", tmp_path / "a"], "sparse already"),
        (["sparsify", "nano", "--out", tmp_path / "a", "--margin", "-1"], "must be above 0"),
        (["sparsify", "nano", "--out", tmp_path / "a", "--constraint", "mse"], "Known: kl, ce"),
        (["sparsify", "nano", "--out", full], "not empty"),
        (["sparsify", "nano", "--out", sparse], "other settings"),
        (["sparsify-report", sparse, "nano", "--out", tmp_path / "r"], "dense model first"),
        (["merge", sparse, "nano", "--out", tmp_path / "m"], "no adapter"),
        (["merge", sparse / "adapter", sparse, "--out", tmp_path / "m"], "other weights"),
    ]
    for words, part in cases:
        said = headscope(capfd, *words)
        assert said.code == 2, (words, said)
        assert part in said.err
        assert len(said.err.strip().splitlines()) <= 3
    assert not (tmp_path / "a").exists()
    assert not (tmp_path / "m").exists()


def test_a_loss_that_is_no_number_keeps_the_last_checkpoint(nano: hs.Model, tmp_path: Path, monkeypatch):
    plain, calls = divergence, []

    def breaking(dense: torch.Tensor, sparse: torch.Tensor) -> torch.Tensor:
        calls.append(sparse.requires_grad)
        return plain(dense, sparse) * (float("nan") if sum(calls) == 5 else 1.0)

    monkeypatch.setattr(training, "divergence", breaking)
    with pytest.raises(hs.SetupError, match=r"became nan at step 5. The checkpoint of step 3"):
        hs.sparsify(nano, out=tmp_path / "run", **SMALL)
    monkeypatch.undo()
    resumed = hs.sparsify(nano, out=tmp_path / "run", **SMALL)
    assert resumed[-1]["step"] == 12
    assert all(np.isfinite(list(row.values())).all() for row in resumed)


def test_a_constraint_that_cannot_be_met_is_said(nano: hs.Model, tmp_path: Path):
    options = {**SMALL, "margin": 1e-6, "rate": 5.0, "bias": -20.0, "every": 1, "lr": 1e-6}
    with pytest.raises(hs.SetupError, match="cannot be met"):
        hs.sparsify(nano, out=tmp_path / "run", **options)
    assert (tmp_path / "run" / "checkpoint.safetensors").exists()


def test_a_full_disk_keeps_the_last_checkpoint(nano: hs.Model, tmp_path: Path, monkeypatch):

    plain = save_file

    def full(tensors: dict, path: Path, metadata: dict) -> None:
        if json.loads(metadata["headscope"])["step"] == 6:
            raise OSError(28, "No space left on device")
        plain(tensors, path, metadata)

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(hs.SetupError, match=r"No space left.*\n.*step 3 is kept"):
        hs.sparsify(nano, out=tmp_path / "run", **SMALL)
    monkeypatch.undo()
    assert not list((tmp_path / "run").glob("*.part"))
    assert hs.sparsify(nano, out=tmp_path / "run", **SMALL)[-1]["step"] == 12


def test_the_report_compares_dense_sparse_and_random_gates(nano: hs.Model, tmp_path: Path, capfd):
    sparse = tmp_path / "sparse"
    hs.sparsify(nano, out=sparse, **{**SMALL, "steps": 40, "every": 40})
    words = ["--task", "ioi", "--sequences", "32", "--length", "12", "--n", "10", "--json"]
    said = headscope(capfd, "sparsify-report", "nano", sparse, "--out", tmp_path / "report", *words)
    assert said.code == 0, said.err
    report = json.loads(said.out)
    assert 0 < report["connectivity"] < 1
    assert report["edges per query"]["sparse"] == pytest.approx(report["connectivity"] * 6.5)
    assert report["random connectivity"] == pytest.approx(report["connectivity"], abs=0.05)
    assert report["ce"]["random gates"] > report["ce"]["sparse"]
    lost = report["ce above dense"]
    assert lost["mean"] == pytest.approx(report["ce"]["sparse"] - report["ce"]["dense"])
    assert lost["low"] < lost["mean"] < lost["high"] < report["ce"]["random gates"] - report["ce"]["dense"]
    assert set(report["accuracy"]["ioi"]) == {"dense", "sparse"}
    rows = list(csv.DictReader((tmp_path / "report" / "connectivity.csv").open()))
    assert len(rows) == nano.n_layers * nano.n_heads
    assert np.mean([float(row["connectivity"]) for row in rows]) == pytest.approx(report["connectivity"], abs=1e-4)
    for name in ("connectivity.png", "attention.png"):
        assert (tmp_path / "report" / name).stat().st_size > 5000


def passes(run: Callable[[], Any]) -> tuple[int, Any]:
    """How often a whole model ran, and what came of it."""
    ran: list[str] = []

    def note(module: torch.nn.Module, *_: Any) -> None:
        if type(module).__name__.endswith("ForCausalLM"):
            ran.append(type(module).__name__)

    hook = torch.nn.modules.module.register_module_forward_pre_hook(note)
    try:
        found = run()
        return len(ran), found
    finally:
        hook.remove()


def test_a_second_report_runs_no_model(nano: hs.Model, tmp_path: Path, capfd):
    sparse, out = tmp_path / "sparse", tmp_path / "report"
    hs.sparsify(nano, out=sparse, **{**SMALL, "steps": 3})
    words = ["--task", "ioi", "--sequences", "8", "--length", "12", "--n", "4", "--format", "png", "--json"]
    call = partial(headscope, capfd, "sparsify-report", "nano", sparse, "--out", out, *words)
    # (Models are checked when they are loaded.)
    loading, _ = passes(lambda: (hs.load("nano"), hs.load(sparse)))
    first, said = passes(call)
    assert said.code == 0, said.err
    before = {
        name: (out / name).stat().st_mtime_ns for name, noted in read_manifest(out)["units"].items() if "key" in noted
    }
    assert len(before) == 1 + 2 + 2
    again, repeated = passes(call)
    assert (repeated.code, repeated.out) == (said.code, said.out)
    assert first > loading == again > 0
    assert {name: (out / name).stat().st_mtime_ns for name in before} == before


def test_sparsifying_is_a_run_like_the_others(nano: hs.Model, tmp_path: Path, capfd):
    out = tmp_path / "sparse"
    words = [*command(out, steps=3), "--format", "png", "--json"]
    said = headscope(capfd, *words)
    assert said.code == 0, said.err
    printed = json.loads(said.out)
    assert printed["run"] == str(out)
    assert [row["step"] for row in printed["history"]] == [0, 3]
    manifest = read_manifest(out)
    assert (manifest["command"], manifest["settings"]["model"]) == ("sparsify", "nano")
    assert manifest["files"] == ["checkpoint.safetensors", "history.csv", "training.png"]
    assert manifest["models"]["nano"]["sha256"] == nano.fingerprint()
    assert json.loads(headscope(capfd, *words).out) == printed
    # How long may change, what is trained on what may not.
    assert headscope(capfd, *command(out, steps=4), "--json").code == 0
    told = headscope(capfd, *command(out, steps=4, seed=5))
    assert told.code == 2
    assert "seed 0 there, 5 now" in told.err


def test_merging_an_adapter_gives_the_model_it_came_from(nano: hs.Model, tmp_path: Path, capfd):
    sparse = tmp_path / "sparse"
    hs.sparsify(nano, out=sparse, **{**SMALL, "steps": 3})
    said = headscope(capfd, "merge", sparse / "adapter", "nano", "--out", tmp_path / "merged")
    assert said.code == 0, said.err
    assert hs.load(tmp_path / "merged").fingerprint() == hs.load(sparse).fingerprint()


def test_schedules():
    settings = Settings(
        steps=101, lr=1.0, lr_end=0.5, warmup=10, margin=0.05, margin_start=0.2, noise=1.0, noise_end=0.0,
        temperature=4.0, temperature_end=1.0,
    )  # fmt: skip
    assert [settings.lr_at(step) for step in (0, 9, 50, 100)] == pytest.approx([0.1, 0.955, 0.75, 0.5])
    assert [settings.margin_at(step) for step in (0, 25, 51, 100)] == pytest.approx([0.2, 0.1, 0.05, 0.05], rel=0.01)
    assert [settings.temperature_at(step) for step in (0, 50, 100)] == pytest.approx([4.0, 2.0, 1.0])
    assert [settings.noise_at(step) for step in (0, 50, 100)] == pytest.approx([1.0, 0.5, 0.0])


def test_settings_refuse_what_makes_no_sense():
    wrongs: list[dict[str, Any]] = [
        {"batch": 10, "accumulate": 4}, {"length": 1}, {"noise": -1.0}, {"steps": 0}, {"rate": -0.1},
        {"positions": 1.5}, {"top_p": 0.0}, {"start": "adapter", "lora_rank": 0},
        {"penalty": "cube"}, {"offset_lr": -1.0}, {"average": -1},
    ]  # fmt: skip
    for wrong in wrongs:
        with pytest.raises(hs.InputError):
            Settings(**wrong)
