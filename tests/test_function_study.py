"""The function study on the tiny model: what it prints and leaves behind, resuming, its figure, and what it refuses."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import COMMAND_LINE, OFFLINE, headscope, killed_when, process

import headscope as hs
from headscope.functions.comet import Comet, Environment
from headscope.report.figures.functions import BLUE, RED, Panel, Series, function_panels, panels_of
from headscope.runs.run import read_manifest

# Two functions, few questions: enough for every part of the study to have something to do.
WORDS = (
    "functions", "nano", "--function", "retrieval,math-calculation", "--ranking", "probe,attribution", "--k", "2,4",
    "--draws", "2", "--n", "5", "--train", "8", "--shots", "1", "--max-new-tokens", "4", "--format", "png",
    "--comet", "none", "--embedder", "none", "--json",
)  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("runs") / "nano"
    done = subprocess.run(process(*WORDS, "--out", folder), capture_output=True, text=True, env=OFFLINE)
    assert done.returncode == 0, done.stderr
    return folder, json.loads(done.stdout)


def units(folder: Path) -> dict[str, int]:
    """When each unit of a run was written."""
    names = ("answers-", "scores-", "masked-", "cross-", "steered-")
    return {path.name: path.stat().st_mtime_ns for path in folder.iterdir() if path.name.startswith(names)}


def test_it_prints_what_it_found(run):
    folder, printed = run
    assert printed["run"] == str(folder)
    assert [(row["function"], row["n"], row["train"]) for row in printed["base"]] == [
        ("retrieval", 5, 8), ("math-calculation", 5, 8),
    ]  # fmt: skip
    rows = [(row["ranking"], row["function"], row["k"]) for row in printed["sweep"]]
    assert len(set(rows)) == len(rows) == 2 * 2 * 2
    for row in printed["sweep"]:
        assert row["random_accuracy_low"] <= row["random_accuracy"] <= row["random_accuracy_high"]
        assert row["below"] == (row["top_accuracy"] < row["random_accuracy_low"])
    assert {(row["masked"], row["asked"]) for row in printed["cross"]} == {
        (a, b) for a in ("retrieval", "math-calculation") for b in ("retrieval", "math-calculation")
    }
    assert [row["first"] + "/" + row["second"] for row in printed["agreement"]] == ["probe/attribution"] * 2
    assert all(0 <= row["shared_2"] <= 2 for row in printed["agreement"])
    assert printed["comet"] == "COMET not scored: not asked for"


def test_with_no_head_masked_nothing_changes(run):
    _, printed = run
    for row in printed["base"]:
        assert (row["accuracy"], row["bleu"]) == (1.0, 1.0)


def test_the_heads_that_were_masked(run):
    folder, _ = run
    unit = json.loads((folder / "masked-probe-retrieval-4.json").read_text())
    scores = hs.Scores.load(folder / "scores-probe-retrieval.safetensors")
    assert [tuple(head) for head in unit["top_heads"]] == scores.ranked()[:4]
    assert [len(texts) for texts in (unit["top"], *unit["random"])] == [5] * 3
    cross = json.loads((folder / "cross-probe-retrieval-2.json").read_text())
    assert cross["retrieval"] == json.loads((folder / "masked-probe-retrieval-2.json").read_text())["top"]


def test_it_leaves_a_whole_folder(run):
    folder, printed = run
    manifest = read_manifest(folder)
    assert manifest["finished"] >= manifest["started"]
    assert {path.name for path in folder.iterdir()} == {".lock", ".manifest.json", "manifest.json", *manifest["files"]}
    assert (folder / "functions-probe.png").read_bytes().startswith(b"\x89PNG")
    with (folder / "sweep.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["top_accuracy"]) for row in rows] == [row["top_accuracy"] for row in printed["sweep"]]
    assert json.loads((folder / "functions.json").read_text())["sweep"] == printed["sweep"]


def test_only_what_is_missing_is_made_again(capfd, run, tmp_path: Path):
    folder = Path(shutil.copytree(run[0], tmp_path / "run"))
    before, lost = units(folder), "masked-attribution-retrieval-2.json"
    (folder / lost).unlink()
    said = headscope(capfd, *WORDS, "--out", folder)
    assert said.code == 0, said.err
    after = units(folder)
    assert {name for name in after if after[name] != before[name]} == {lost}
    assert json.loads(said.out)["sweep"] == run[1]["sweep"]


def test_a_killed_run_goes_on(capfd, run, tmp_path: Path):
    folder = tmp_path / "run"
    killed_when("os.rename", folder / "masked-*", COMMAND_LINE, *WORDS, "--out", folder, often=1)
    noted = {name: when for name, when in units(folder).items() if name in read_manifest(folder)["files"]}
    assert 1 <= len(noted) < len(units(run[0]))
    said = headscope(capfd, *WORDS, "--out", folder)
    assert said.code == 0, said.err
    assert {name: when for name, when in units(folder).items() if name in noted} == noted
    assert json.loads(said.out)["sweep"] == run[1]["sweep"]


def test_as_tables(capfd, run, tmp_path: Path):
    folder = Path(shutil.copytree(run[0], tmp_path / "run"))
    said = headscope(capfd, *WORDS[:-1], "--out", folder)
    assert said.code == 0
    assert "Note: nano does not do retrieval" in said.err
    for words in ("Answers with every head in place", "Accuracy with K heads masked", "COMET not scored", "functions-"):
        assert words in said.out


def test_check_shows_accuracy_by_function(capfd):
    """The real model: the built-in questions are easy enough for it."""
    said = headscope(capfd, "check", "smollm2-135m", "--task", "functions", "--n", "5", "--json")
    assert (said.code, said.err) == (0, "")
    found = {row["task"]: row["accuracy"] for row in json.loads(said.out)}
    assert list(found) == ["retrieval", "knowledge-recall", "math-calculation", "inference"]
    assert np.mean(list(found.values())) >= 0.7


def test_a_file_of_ones_own(capfd, tmp_path: Path):
    """Labels that are no function and broken items are named on standard error, and stop nothing."""
    items: list[Any] = [
        {"question": f"A{i} is red.", "answer": i, "generated": [
            {"subquestion": f"What colour is A{i}?", "answer": "red", "cognitive_skill": "Retrieval"},
            {"subquestion": f"What is {i} + 1?", "answer": i + 1, "cognitive_skill": "Math"},
            {"subquestion": "And then?", "answer": "none", "cognitive_skill": "Planning"},
        ]} for i in range(6)
    ]  # fmt: skip
    path = tmp_path / "mine.json"
    path.write_text(json.dumps([*items, "broken"]))
    words = ("functions", "nano", "--data", path, "--ranking", "attribution", "--k", "2", "--draws", "1", "--n", "2",
             "--shots", "1", "--max-new-tokens", "3", "--format", "png", "--comet", "none",
             "--embedder", "none")  # fmt: skip
    said = headscope(capfd, *words, "--out", tmp_path / "run")
    assert said.code == 0, said.err
    assert "1 items could not be used: item 7: expected an object, found a text" in said.err
    assert "labels that are no function: Planning (6)" in said.err
    path.write_text(json.dumps(items[:5]))
    said = headscope(capfd, *words, "--out", tmp_path / "run")
    assert said.code == 2
    assert f"sha256 of {path}" in " ".join(said.err.split())


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--ranking", "prob"), "Unknown ranking 'prob'. Known: probe, ablation, attribution."),
        (("--function", "magic"), "Unknown function 'magic'. Known: retrieval, knowledge-recall"),
        (("--function", "decision-making"), "has no questions of Decision-making"),
        (("--k", "16,x"), "--k: expected numbers such as 1,2, found '16,x'"),
        (("--k", "0"), "--k must be at least 1, found 0"),
        (("--steps", "prompt"), "Unknown steps 'prompt'. Known: all, decode."),
        (("--format", "gif"), "Unknown format 'gif'"),
        (("--data", "nowhere.json"), "nowhere.json: cannot be read"),
        (("--n", "400"), "need 406"),
        (("--function", "retrieval", "--ranking", "probe", "--shots", "1"), "needs at least two"),
        (("--embedder", "./nothing"), "cannot be loaded as a sentence embedder"),
    ],
)
def test_bad_input(capfd, tmp_path: Path, words: tuple[str, ...], told: str):
    said = headscope(
        capfd, "functions", "nano", "--embedder", "none", *words, "--comet", "none", "--out", tmp_path / "run"
    )
    assert (said.code, said.out) == (2, ""), said
    assert said.err.startswith("Error: ")
    assert len(said.err.splitlines()) in (1, 2)
    assert told in said.err


def panel(title: str, comet: bool) -> Panel:
    k, falling, flat = np.array([16, 32, 64, 128]), np.array([0.9, 0.7, 0.4, 0.1]), np.array([0.95, 0.9, 0.9, 0.8])
    series = Series(falling, flat, flat - 0.1, flat + 0.05, base=1.0)
    return Panel(title, k, series, series if comet else None, "Comet" if comet else "")


def test_the_figure():
    figure = function_panels([panel("Retrieval", True), panel("Inference", True)])
    first, second = figure.axes
    assert (first.get_title(), second.get_title()) == ("Retrieval", "Inference")
    assert first.get_xlabel() == "# Masked Heads"
    assert first.get_ylabel() == "Score"
    assert [label.get_text() for label in first.get_xticklabels()] == ["16", "32", "64", "128"]
    assert first.get_xscale() == "log"
    drawn = [(line.get_color(), line.get_linestyle(), line.get_marker()) for line in first.lines]
    for colour in (BLUE, RED):
        assert (colour, "-", "o") in drawn
        assert (colour, "--", "o") in drawn
    (legend,) = figure.legends
    labels = [text.get_text() for text in legend.get_texts()]
    assert labels[:4] == ["TopK Accuracy", "RandomK Accuracy", "TopK Comet", "RandomK Comet"]


def test_without_comet_the_second_score_is_similarity_and_says_so():
    base = [{"function": "retrieval", "accuracy": 1.0, "similarity": 1.0}]

    def score(name: str) -> dict[str, float]:
        return dict.fromkeys((f"top_{name}", f"random_{name}", f"random_{name}_low", f"random_{name}_high"), 0.5)

    rows = [
        {"ranking": "probe", "function": "retrieval", "k": k, **score("accuracy"), **score("similarity")}
        for k in (1, 4)
    ]
    (panel,) = panels_of("probe", rows, base, heads=270)
    figure = function_panels([panel])
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels[:4] == ["TopK Accuracy", "RandomK Accuracy", "TopK Similarity", "RandomK Similarity"]
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["1\n0.4%", "4\n1.5%"]
    with_comet = panels_of("probe", [{**row, **score("comet")} for row in rows], [{**base[0], "comet": 0.9}])
    assert with_comet[0].second_name == "Comet"


def test_the_figure_says_that_comet_is_missing():
    figure = function_panels([panel("Retrieval", False)], note="COMET not scored: no environment")
    assert figure.get_supxlabel() == "COMET not scored: no environment"
    (legend,) = figure.legends
    assert "Comet" not in " ".join(text.get_text() for text in legend.get_texts())


def test_without_an_environment_comet_says_so(capfd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HEADSCOPE_CACHE", str(tmp_path))
    assert Environment.here().missing == "no environment; `headscope comet setup` makes it"
    with pytest.raises(hs.SetupError, match="headscope comet setup"):
        Comet("Unbabel/wmt22-comet-da")
    said = headscope(capfd, "functions", "nano", "--comet", "some.ckpt", "--out", tmp_path / "run")
    assert (said.code, said.out) == (1, "")
    assert said.err.startswith("Error: COMET's environment is missing.")
    assert not (tmp_path / "run").exists(), "it is told before anything runs"
