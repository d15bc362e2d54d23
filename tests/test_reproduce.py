"""Reproducing the published figures: the studies composed, their numbers beside the published ones, and the page."""

from __future__ import annotations

import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command import headscope

import headscope as hs
from headscope.studies.reproduce import PRESETS, TITLES, Preset, chosen_figures, estimate, reproduce
from headscope.studies.settings import ReproduceSettings

TINY = Preset(
    heads={"methods": ["attribution"], "n": 4, "draws": 0, "points": 6},
    edges={"methods": ["eap"], "n": 4, "points": 6},
    functions={
        "rankings": ["attribution"], "ks": [1, 2], "draws": 1, "n": 4, "train": 4, "ablated": 2, "shots": 1,
        "alphas": [], "max_new_tokens": 2, "embedder": "none",
    },
    roles={"seeds": 1, "preset": "cpu", "n": 8, "held_out": 4, "compare": 0},
    sequences=8,
)  # fmt: skip


@pytest.fixture(scope="module")
def sparse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pair") / "nano-sparse"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADSCOPE_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        hs.sparsify(
            hs.load("nano"), out=folder, sequences=64, held_out=16, length=12, batch=8, steps=10, every=10, lora_rank=4,
            penalty_weight=1.0,
        )  # fmt: skip
    return folder


def asked(sparse: Path) -> ReproduceSettings:
    return ReproduceSettings(models=("nano", str(sparse)), formats=("png",))


@pytest.fixture(scope="module")
def whole(sparse: Path, tmp_path_factory: pytest.TempPathFactory):
    said: list[str] = []
    out = tmp_path_factory.mktemp("whole")
    found = reproduce(asked(sparse), out=out, how=TINY, say=said.append)
    return found, said


def test_every_figure_is_drawn_in_its_run(whole):
    found, said = whole
    assert [figure.id for figure in found.figures] == ["000", "001", "002", "003", "004", "sparse"]
    assert len(said) == 5
    for figure in found.figures:
        assert (found.folder / figure.image).read_bytes().startswith(b"\x89PNG"), figure
        assert json.loads((found.folder / figure.run / "manifest.json").read_text())["finished"]


def test_numbers_are_those_of_the_runs(whole):
    found, _ = whole
    by_figure: dict[str, list[Any]] = {}
    for number in found.numbers:
        by_figure.setdefault(number.figure, []).append(number)
    assert [number.published for number in by_figure["000"]] == ["4.5x", "2.2x", "2.2x", "1.4x"]
    assert [number.published for number in by_figure["001"]] == ["0.6x", "2x", "1.3x", "1.6x"]
    assert [number.published for number in by_figure["002"]] == ["97x", "42.8x", "8.6x", "5.4x"]
    for id, run in (("000", "heads"), ("001", "heads"), ("002", "edges")):
        with (found.folder / run / "multipliers.csv").open() as file:
            rows = [row for row in csv.DictReader(file) if ("per prompt" in row["against"]) == (id == "001")]
        for number, row in zip(by_figure[id], rows, strict=True):
            assert number.what.startswith(row["task"])
            wanted = f"{float(row['multiplier']):.2f}x" if row["multiplier"] else "not reached"
            assert number.measured.startswith(wanted)
    report = json.loads((found.folder / "sparsity" / "report.json").read_text())
    assert by_figure["sparse"][0].measured == f"{100 * report['connectivity']:.2f} %"


def test_a_second_time_costs_nothing_and_says_the_same(whole, sparse):
    found, _ = whole
    before = {path: path.stat().st_mtime_ns for path in found.folder.rglob("*.safetensors")}
    again = reproduce(asked(sparse), out=found.folder, how=TINY)
    assert [n.measured for n in again.numbers] == [n.measured for n in found.numbers]
    assert {path: path.stat().st_mtime_ns for path in found.folder.rglob("*.safetensors")} == before


def test_the_command_ends_with_the_table_and_the_page(whole, sparse, capfd, monkeypatch, tmp_path):
    found, _ = whole
    # The command's presets are for real models; a finished run of this size stands in for them.
    monkeypatch.setitem(PRESETS, "quick", TINY)
    folder = tmp_path / "reproduced"
    shutil.copytree(found.folder, folder)
    said = headscope(capfd, "reproduce", "--models", f"nano,{sparse}", "--out", folder, "--format", "png")
    assert said.code == 0, said.err
    assert "About" in said.log
    assert "not the same experiment" in " ".join(said.out.split())
    assert "Page:" in said.out
    page = (folder / "report.html").read_text()
    assert 10_000 < len(page.encode()) < 8_000_000
    assert "97x" in page
    said = headscope(
        capfd, "reproduce", "--models", f"nano,{sparse}", "--out", folder, "--format", "png", "--json", "--only", "001"
    )
    assert said.code == 0, said.err
    assert [figure["image"] for figure in json.loads(said.out)["figures"]] == ["heads-001/curves.png"]


def test_what_is_misspelt_is_told(capfd, tmp_path):
    wrongs: list[tuple[dict[str, Any], str]] = [
        ({"only": ["005"]}, "Unknown figure '005'"),
        ({"preset": "fast"}, "Known: quick, full"),
    ]
    for wrong, message in wrongs:
        with pytest.raises(hs.InputError, match=message):
            ReproduceSettings(**wrong)
    assert chosen_figures(ReproduceSettings()) == list(TITLES)
    for words, part in ((["--only", "7"], "Unknown figure"), (["--preset", "fast"], "Unknown preset")):
        said = headscope(capfd, "reproduce", "--models", "nano", "--out", tmp_path / "none", *words)
        assert said.code == 2
        assert part in said.err
        assert len(said.err.strip().splitlines()) <= 2
    assert not (tmp_path / "none").exists()


def test_an_estimate_grows_with_what_is_asked():
    all_of_it = ReproduceSettings(models=("nano",))
    some, more = (estimate(settings, TINY) for settings in (replace(all_of_it, only=("000",)), all_of_it))
    assert 0 < some < more
