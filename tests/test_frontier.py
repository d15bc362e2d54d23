"""Milestones on the way down to a sparse model, and the frontier that is drawn from them."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from command import headscope

import headscope as hs
from headscope.sparse.saving import milestones

OPTIONS: dict[str, Any] = {
    "sequences": 256, "held_out": 16, "length": 24, "batch": 8, "steps": 48, "every": 2, "lora_rank": 4, "lr": 6e-3,
    "lr_end": 2e-3, "penalty_weight": 2.0, "rate": 0.0, "penalty": "edges", "offset_lr": 5.0, "average": 2, "warmup": 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def trained(nano: hs.Model, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict]]:
    folder = tmp_path_factory.mktemp("frontier")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADSCOPE_CACHE", str(folder / "cache"))
        return folder / "run", hs.sparsify(nano, out=folder / "run", **OPTIONS)


def test_an_adapter_is_kept_when_connectivity_first_falls_below_a_milestone(nano: hs.Model, trained):
    run, history = trained
    expected, lowest = [], 101
    for row in history:
        below = [percent for percent in (30, 10, 5, 3, 2, 1) if 100 * row["connectivity"] < percent]
        if below and below[-1] < lowest:
            lowest = below[-1]
            expected.append((f"{lowest}-percent", row))
    assert len(expected) >= 2
    found = milestones(run)
    assert [(folder.name, reached) for folder, reached in found] == expected
    assert {path.name for path in (run / "milestones").iterdir()} == {name for name, _ in expected}
    first, last = (hs.load(folder, base="nano") for folder in (found[0][0], run / "adapter"))
    assert first.fingerprint() != last.fingerprint() != nano.fingerprint()


def test_the_frontier_goes_from_dense_to_sparse(trained, tmp_path: Path, capfd, monkeypatch: pytest.MonkeyPatch):
    run, history = trained
    monkeypatch.setenv("HEADSCOPE_CACHE", str(run.parent / "cache"))
    words = ["--task", "ioi", "--n", "6", "--sequences", "16", "--length", "24", "--seed", "0", "--format", "png"]
    said = headscope(capfd, "sparsity-frontier", "nano", run, "--out", tmp_path / "f", *words, "--json")
    assert said.code == 0, said.err
    rows = json.loads(said.out)["rows"]
    assert [row["point"] for row in rows] == ["dense", *(folder.name for folder, _ in milestones(run)), "last"]
    dense, last = rows[0], rows[-1]
    assert dense["edges_per_query"] == 12.5
    assert dense["ce_above_dense"] == 0
    assert 0 < last["edges_per_query"] < rows[1]["edges_per_query"] < 12.5
    assert last["divergence"] == pytest.approx(history[-1]["kl"], rel=0.5)
    assert all(1 <= row["heads"] <= 16 for row in (dense, rows[1]))
    table = list(csv.DictReader((tmp_path / "f" / "frontier.csv").open()))
    assert [float(row["edges_per_query"]) for row in table] == pytest.approx([row["edges_per_query"] for row in rows])
    assert (tmp_path / "f" / "frontier.png").stat().st_size > 5000
    again = headscope(capfd, "sparsity-frontier", "nano", run, "--out", tmp_path / "f", *words)
    assert again.code == 0, again.err
    assert "from dense to sparse" in again.out


def test_a_folder_without_adapters_is_refused(tmp_path: Path, capfd):
    said = headscope(capfd, "sparsity-frontier", "nano", tmp_path, "--task", "ioi", "--out", tmp_path / "f")
    assert said.code == 2
    assert "neither milestones nor an adapter" in said.err
