"""The head study: names that stay apart, and figures that say what the records say."""

from __future__ import annotations

import csv
import json
import shutil
from typing import Any

import networkx
import numpy as np
import pytest

import headscope as hs
from headscope.models import builtin_folder
from headscope.records import Curve
from headscope.report.outputs.series import summary
from headscope.studies.edges import study_edges
from headscope.studies.heads import study_heads
from headscope.studies.settings import EdgeSettings, HeadSettings
from headscope.studies.subjects import distinct


def test_short_names_stay_apart():
    assert distinct(["smollm2-135m", "nano"]) == ["smollm2-135m", "nano"]
    assert distinct(["org/model", "x/y.gguf"]) == ["model", "y"]
    assert distinct(["a/model", "b/model"]) == ["a-model", "b-model"]
    assert distinct(["ioi", "my/ioi.jsonl"]) == ["ioi", "my-ioi"]
    with pytest.raises(hs.InputError, match="named twice"):
        distinct(["nano", "nano"])


def test_two_models_of_one_name_are_two_series(tmp_path):
    folders = [tmp_path / side / "model" for side in ("left", "right")]
    for folder in folders:
        shutil.copytree(builtin_folder("nano"), folder)
    names = tuple(map(str, folders))
    settings = HeadSettings(models=names, tasks=("ioi",), n=6, methods=("attribution",), draws=2)
    study = study_heads(settings, out=tmp_path / "run")
    assert [curve.model for curve in study.curves] == ["left-model", "right-model"]
    (compared,) = study.compared
    assert (compared.task, compared.found.value) == ("ioi", pytest.approx(1.0))
    assert (compared.first, compared.against) == ("left-model, attribution", "right-model, attribution")
    for name in ("curves", "heads-left-model-ioi-attribution"):
        assert (tmp_path / "run" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert (tmp_path / "run" / f"{name}.pdf").read_bytes().startswith(b"%PDF")
        assert b"<svg" in (tmp_path / "run" / f"{name}.svg").read_bytes()
    with (tmp_path / "run" / "curves.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["model"] == "left-model" and row["method"] == "attribution"]
    curve = Curve.load(tmp_path / "run" / "curve-left-model-ioi-attribution-task.safetensors")
    np.testing.assert_allclose([float(row["explained"]) for row in rows], curve.explained, rtol=1e-4, atol=1e-6)


def test_a_pair_without_an_effect_is_told(nano, tmp_path):
    file = tmp_path / "same.jsonl"
    line = (
        '{"clean": "When Mary and John went to the store, John gave a drink to", '
        '"corrupt": "When Mary and John went to the park, John gave a drink to", "answers": " Mary", "wrong": " John"}'
    )
    file.write_text(line + "\n")
    task = hs.tasks.jsonl(file, nano.tokenizer)
    scores = hs.methods.random(nano, task)
    same = hs.tasks.Task(**{**vars(task), "corrupt": task.clean, "corrupt_ids": task.clean_ids})
    with pytest.raises(hs.InputError, match="no effect to explain"):
        hs.sweep(nano, same, scores)


def test_a_changed_task_file_is_not_resumed(nano, tmp_path):
    file = tmp_path / "task.jsonl"
    line = (
        '{{"clean": "When Mary and John went to the store, John gave a {thing} to", '
        '"corrupt": "When Mary and John went to the store, Anna gave a {thing} to", '
        '"answers": " Mary", "wrong": " John"}}\n'
    )
    file.write_text(line.format(thing="drink"))
    settings = HeadSettings(
        models=("nano",), tasks=(str(file),), n=1, methods=("attribution",), draws=0, formats=("png",)
    )
    study_heads(settings, out=tmp_path / "run")
    file.write_text(line.format(thing="book"))
    with pytest.raises(hs.InputError, match=f"sha256 of {file}"):
        study_heads(settings, out=tmp_path / "run")


def test_misspelt_options_are_told_before_anything_is_written(tmp_path):
    mistakes: list[dict[str, Any]] = [
        {"rankings": ["tsak"]},
        {"fill": "corupt"},
        {"methods": ["paching"]},
        {"formats": ["gif"]},
    ]
    for wrong in mistakes:
        with pytest.raises(hs.InputError, match="Unknown"):
            study_heads(HeadSettings(models=("nano",), tasks=("ioi",), **wrong), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_misspelt_options_of_edges_are_told_before_anything_is_written(tmp_path):
    mistakes: list[dict[str, Any]] = [
        {"split": "kv"},
        {"choice": "best"},
        {"methods": ["paching"]},
        {"formats": ["gif"]},
    ]
    for wrong in mistakes:
        with pytest.raises(hs.InputError, match="Unknown"):
            study_edges(EdgeSettings(models=("nano",), tasks=("ioi",), **wrong), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("signed", [False, True])
def test_the_circuit_of_an_edge_study_is_the_chosen_one(nano, tmp_path, signed):
    """Grown from the logits and pruned: the export holds those edges, and running them gives what it says."""
    how: dict[str, Any] = {"n": 20, "choice": "greedy", "connected": True, "signed": signed, "formats": ["png"]}
    study = study_edges(EdgeSettings(models=("nano",), tasks=("ioi",), **how), out=tmp_path / "run")
    (found,), (scores, *_), (curve, *others) = study.circuits, study.scores, study.curves
    circuit, k = found.facts, found.facts["chosen"]
    chosen = scores.circuit(k, choice="greedy", signed=signed, connected=True)
    assert chosen == found.circuit
    assert (circuit["choice"], circuit["signed"]) == ("greedy", signed)
    assert circuit["kept"] == circuit["connected"] == len(chosen)
    assert signed or circuit["kept"] < k
    data = json.loads((tmp_path / "run" / "circuit-nano-ioi-eap-ig.json").read_text())
    links = {
        f"{link['source']}->{link['target']}" + ("" if part == "in" else f".{part}")
        for link in data["links"]
        for part in link["reads"].split(",")
    }
    assert links == set(chosen.names)
    task = hs.tasks.ioi(nano.tokenizer, n=20, seed=0)
    whole = hs.sweep(nano, task, scores, k=[k], choice="greedy", signed=signed)
    assert circuit["explained"] == data["graph"]["explained"] == pytest.approx(whole.explained[0], abs=1e-4)
    assert circuit["low"] <= circuit["explained"] <= circuit["high"]
    assert curve.label == "nano, eap-ig, greedy"
    for name, rows in (("circuits", [circuit]), ("summary", [summary(one, 0.9) for one in (curve, *others)])):
        with (tmp_path / "run" / f"{name}.csv").open() as file:
            read = list(csv.DictReader(file))
        # (The random ranking's row of the summary stands behind.)
        said = [{key: "" if value is None else str(value) for key, value in row.items()} for row in rows]
        assert read[: len(said)] == said


def test_the_edge_study(tmp_path):
    settings = EdgeSettings(models=("nano",), tasks=("ioi",), methods=("eap-ig", "random"), n=6, formats=("png",))
    study = study_edges(settings, out=tmp_path / "run")
    assert [curve.explained[-1] for curve in study.curves] == [pytest.approx(1.0, abs=1e-4)] * 2
    best, chance = (curve.area for curve in study.curves)
    assert best > chance
    (compared,) = study.compared
    assert compared.found.value is not None
    assert compared.found.value < 0.5
    circuit = study.circuits[0].facts
    read = networkx.read_graphml(tmp_path / "run" / "circuit-nano-ioi-eap-ig.graphml")
    assert read.number_of_edges() == circuit["kept"] == circuit["chosen"] >= circuit["connected"]
    data = json.loads((tmp_path / "run" / "circuit-nano-ioi-eap-ig.json").read_text())
    assert {(link["source"], link["target"]) for link in data["links"]} == set(read.edges)
    assert (tmp_path / "run" / "circuit-nano-ioi-eap-ig.png").read_bytes().startswith(b"\x89PNG")
