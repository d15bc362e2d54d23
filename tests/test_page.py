"""The page: what it says is what the run folder says, damage is told, names stay names, and it stays small."""

from __future__ import annotations

import base64
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import run_folders
import typer.main
from command import headscope

import headscope as hs
from headscope.cli import app
from headscope.functions.questions import FUNCTIONS
from headscope.records import Attention, Curve, EdgeScores, Roles, Scores, multiplier
from headscope.report.command import command_line
from headscope.report.figures.titles import TITLES
from headscope.report.page.collect import Room, collect, patterns
from headscope.report.page.html import LARGEST, build_page, find_runs, script_json
from headscope.runs.run import read_manifest
from headscope.runs.settings import Settings
from headscope.sparse.settings import Settings as SparsifySettings
from headscope.studies.edges import study_edges
from headscope.studies.heads import study_heads
from headscope.studies.settings import EdgeSettings, FunctionSettings, HeadSettings, RoleSettings, SparsitySettings
from headscope.tasks import TASKS


def data_of(page: str) -> dict[str, Any]:
    """What the page holds, as a browser would read it."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found
    return json.loads(found[1])


def records(folder: Path, start: str, kind: type) -> list[Any]:
    return [kind.load(path) for path in sorted(folder.glob(f"{start}*.safetensors"))]


def test_values_are_those_of_the_run_folder(tmp_path):
    for name, make in run_folders.ALL.items():
        make(tmp_path / name)
    heads, edges, roles, functions, sparsity = data_of(build_page([tmp_path]))["runs"]

    for said, scores in zip(heads["scores"], records(tmp_path / "heads", "scores-", Scores), strict=True):
        np.testing.assert_array_equal(np.float32(said["values"]), scores.values)
        assert (said["model"], said["task"], said["n"]) == (scores.model, scores.task, len(scores.per_prompt))
    for said, curve in zip(heads["curves"], records(tmp_path / "heads", "curve-", Curve), strict=True):
        for name, values in (("k", curve.k), ("mid", curve.explained), ("low", curve.low), ("high", curve.high)):
            np.testing.assert_array_equal(said[name], values)
    first, second = records(tmp_path / "heads", "curve-", Curve)[:2]
    told, found = heads["tables"]["multipliers"][0], multiplier(first, second)
    assert (told["multiplier"], told["low"], told["first_k"]) == (found.value, found.low, found.dense_k)
    assert heads["curves"][0]["needs"] == found.dense_k
    assert heads["checks"][0]["corrupt_metric"] is None
    assert [check["usable"] for check in roles["checks"]] == [True, True, False]

    for said, scores in zip(edges["graphs"], records(tmp_path / "edges", "edges-", EdgeScores), strict=True):
        names = scores.graph
        shown = [
            (f"{names.writers[w]}->{names.readers[r]}", np.float32(score))
            for w, r, score in zip(said["writer"], said["reader"], said["score"], strict=True)
        ]
        assert shown == [(name, np.float32(score)) for name, score in scores.top(len(names))]
        assert said["writers"] == names.writers
        for k in (3, 10, 20):
            on_path = {
                f"{names.writers[said['writer'][at]]}->{names.readers[said['reader'][at]]}"
                for at in range(k)
                if said["joined"][at] is not None and said["joined"][at] <= k
            }
            assert on_path == set(scores.circuit(k, connected=True).names)

    said, found = roles["roles"][0], records(tmp_path / "roles", "roles-", Roles)[0]
    np.testing.assert_array_equal(said["role"], found.commonest)
    np.testing.assert_allclose(said["means"]["interference"], found.interference.mean(0))
    assert len(roles["ablations"]) == 2
    assert functions["tables"]["sweep"][0]["random_accuracy_high"] == 0.75
    assert len(functions["scores"]) == 2
    assert sparsity["scores"][0]["values"][2][1] == pytest.approx(0.3)
    assert sparsity["found"]["ce"]["sparse"] == 1.625


def test_heads_at_k_are_those_of_the_curve(tmp_path):
    run_folders.heads_run(tmp_path / "run", rankings=("task", "prompt"))
    said = collect(tmp_path / "run")["curves"]
    scores = records(tmp_path / "run", "scores-", Scores)[0]
    L, H = scores.values.shape
    per_prompt, per_task = next(c for c in said if c["ranking"] == "prompt"), said[0]
    assert per_task["order"] == [l * H + h for l, h in scores.ranked()]
    shares = np.frombuffer(base64.b64decode(per_prompt["shares"]), np.uint8).reshape(len(per_prompt["k"]), L * H) / 255
    best = np.abs(scores.per_prompt.reshape(len(scores.per_prompt), -1)).argmax(1)
    np.testing.assert_allclose(shares[1], np.bincount(best, minlength=L * H) / len(best), atol=1 / 255)
    np.testing.assert_allclose(shares.sum(1), per_prompt["k"], atol=0.05)


def test_attention_is_rounded_and_the_best_heads_are_kept():
    draw = np.random.default_rng(0)
    weights = np.tril(draw.random((2, 3, 4, 5, 5))).astype(np.float16)
    one = Attention("m", "t", [["a"] * 5] * 2, weights, {})
    rows, columns = np.tril_indices(5)

    def unpacked(said: dict[str, Any]) -> np.ndarray:
        return np.frombuffer(base64.b64decode(said["data"]), np.uint8).reshape(2, -1, 15) / 255

    said = patterns(one, [], 1e9)
    assert said["left_out"] == 0
    np.testing.assert_allclose(unpacked(said), weights.reshape(2, 12, 5, 5)[:, :, rows, columns], atol=0.5 / 255 + 1e-6)
    values = np.zeros((3, 4), np.float32)
    values[2, 1], values[0, 3] = -5, 4
    said = patterns(one, [Scores("m", "t", "x", values, values[None], {})], 2 * 2 * 15 * 4 / 3)
    assert (said["heads"].tolist(), said["left_out"]) == ([3, 9], 10)
    np.testing.assert_allclose(unpacked(said)[0, 1], weights[0, 2, 1][rows, columns], atol=0.5 / 255 + 1e-6)


def test_a_study_keeps_patterns_as_they_pass(nano, tmp_path):
    how: dict[str, Any] = {"n": 4, "methods": ["attribution"], "draws": 0, "formats": ["png"]}
    study_heads(HeadSettings(models=("nano",), tasks=("ioi",), **how), out=tmp_path)
    found = Attention.load(tmp_path / "attention-nano-ioi.safetensors")
    task = hs.tasks.ioi(nano.tokenizer, n=4, seed=0)
    assert "".join(found.tokens[0]) == task.clean[0]
    with hs.record(nano, patterns=True) as recording:
        nano.hf(**nano.encode([task.clean[0]]))
    np.testing.assert_allclose(found.patterns[0, 2], recording.pattern(2)[0].detach(), atol=1e-3)


DAMAGE = {
    "missing": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "cut off": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "not text": lambda path: path.write_bytes(b"\xff\xfe\x00garbage"),
}


@pytest.mark.parametrize("name", list(run_folders.ALL))
@pytest.mark.parametrize("damage", list(DAMAGE))
def test_damage_is_told_and_the_rest_is_shown(tmp_path, name, damage):
    """Every file in turn: the page is built, says which file it is, and keeps what the others say."""
    run = run_folders.ALL[name](tmp_path / "whole")
    whole = len(json.dumps(collect(run.folder)))
    for file in run.manifest.files:
        hurt = tmp_path / "hurt"
        shutil.copytree(run.folder, hurt)
        DAMAGE[damage](hurt / file)
        said = collect(hurt)
        assert [note for note in said["notes"] if note.startswith(file)], file
        assert len(json.dumps(said)) > whole / 4
        shutil.rmtree(hurt)


def test_a_damaged_manifest_is_told_and_other_runs_are_shown(tmp_path):
    run_folders.heads_run(tmp_path / "good")
    bad = run_folders.heads_run(tmp_path / "bad").folder / "manifest.json"
    for text in ("", "[1, 2", "[]", '{"command": 3, "settings": [], "models": 0, "timings": 0, "files": "x"}'):
        bad.write_text(text)
        good, damaged = data_of(build_page([tmp_path]))["runs"]
        assert (good["state"], good["notes"], damaged["state"]) == ("finished", [], "damaged")
        assert "manifest" in damaged["notes"][0]


def test_files_outside_the_run_folder_are_not_read(tmp_path):
    run = run_folders.roles_run(tmp_path / "run")
    shutil.copy(run.path("check-0.json"), tmp_path / "check-0.json")
    secret = tmp_path / "check-0.json"
    secret.write_text(secret.read_text().replace('"dense"', '"hidden"'))
    run.add("../check-0.json")
    run.path("check-0.json").unlink()
    run.path("check-0.json").symlink_to(secret)
    for within in (None, tmp_path / "run"):
        assert "hidden" not in json.dumps(collect(tmp_path / "run", within=within))


def test_names_with_markup_stay_names(tmp_path):
    name = '</script><img src=x onerror="alert(1)">&\u2028'
    run_folders.heads_run(tmp_path / "run", tasks=[name], models=[name, "b"])
    page = build_page([tmp_path / "run"], title=name)
    assert page.count("<script") == 2
    assert "<img" not in page
    assert data_of(page)["runs"][0]["curves"][0]["task"] == name
    assert script_json(["<>&\u2028"]) == '["\\u003c\\u003e\\u0026\\u2028"]'


def test_the_page_asks_for_nothing(tmp_path):
    page = build_page([run_folders.heads_run(tmp_path / "run").folder])
    outside = re.sub(r'<script type="application/json".*?</script>', "", page, flags=re.DOTALL)
    addresses = set(re.findall(r"https?://[^\"'\s)]+", outside)) - {"http://www.w3.org/2000/svg"}
    assert not addresses
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]+)"', page)
    assert policy
    assert "default-src 'none'" in policy[1]
    assert "connect-src 'none'" in policy[1]
    assert "unsafe" not in policy[1]


def test_a_large_page_stays_below_its_limit(tmp_path):
    for number in range(4):
        run_folders.heads_run(tmp_path / f"{number}", shape=(30, 9), models=["a"], tasks=["ioi"], tokens=100)
    page = build_page([tmp_path])
    assert len(page.encode()) < LARGEST
    assert data_of(page)["runs"][0]["attention"][0]["left_out"] > 0
    assert Room().half().attention < Room().attention


def test_the_command_makes_a_page(tmp_path, capfd):
    run_folders.heads_run(tmp_path / "runs" / "run")
    said = headscope(capfd, "report", tmp_path / "runs", "-o", tmp_path / "page.html", "--title", "Mine")
    assert (said.code, said.err) == (0, "")
    page = (tmp_path / "page.html").read_text()
    assert "<title>Mine</title>" in page
    first = (tmp_path / "page.html").read_bytes()
    headscope(capfd, "report", tmp_path / "runs" / "run", "-o", tmp_path / "page.html", "--title", "Mine")
    assert (tmp_path / "page.html").read_bytes() == first


def test_what_is_no_run_is_told(tmp_path, capfd):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    for path, words in (("empty", "holds no run"), ("file", "is a file"), ("nowhere", "is not there")):
        said = headscope(capfd, "report", tmp_path / path, "-o", tmp_path / "page.html")
        assert (said.code, said.out) == (2, "")
        assert words in said.err
    run_folders.heads_run(tmp_path / "run")
    said = headscope(capfd, "report", tmp_path / "run", "-o", tmp_path / "empty")
    assert said.code == 2
    assert not (tmp_path / "page.html").exists()


def test_a_reproduction_brings_its_numbers_and_its_runs(tmp_path):
    run_folders.heads_run(tmp_path / "all" / "heads-a")
    run_folders.edges_run(tmp_path / "all" / "edges-b")
    run_folders.roles_run(tmp_path / "elsewhere")
    figures = [
        {"id": "000", "title": "Heads", "run": "heads-a", "image": "heads-a/curves.png"},
        {"id": "002", "title": "Edges", "run": "edges-b", "image": "edges-b/curves.png"},
        {"id": "009", "title": "Not mine", "run": "../elsewhere", "image": ""},
    ]
    numbers = [{"figure": "000", "what": "multiplier", "published": "4.5", "measured": "1.2", "setting": "n 4"}]
    (tmp_path / "all" / "reproduce.json").write_text(
        json.dumps({"figures": figures, "numbers": numbers, "seconds": 90})
    )
    folders, extra = find_runs([tmp_path / "all"])
    assert [folder.name for folder in folders] == ["heads-a", "edges-b"]
    assert extra
    assert [figure["place"] for figure in extra["figures"]] == [0, 1, None]
    assert data_of(build_page([tmp_path / "all"]))["extra"]["numbers"] == numbers
    (tmp_path / "all" / "reproduce.json").write_text("{")
    with pytest.raises(hs.InputError, match=r"reproduce\.json: expected a reproduction, found bad JSON"):
        find_runs([tmp_path / "all"])


def test_no_torch_and_no_matplotlib(tmp_path):
    run_folders.heads_run(tmp_path / "run")
    script = f"""
import sys
from pathlib import Path
from headscope.report.page.html import build_page
import headscope.report.page.server
build_page([Path({str(tmp_path / "run")!r})])
assert not {{"torch", "transformers", "matplotlib"}} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_the_printed_command_is_the_one_that_made_the_run(nano, tmp_path, capfd, monkeypatch):
    """Given again, it finds the very same settings: with any other, a run refuses."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my task.jsonl").write_text(
        '{"clean": "When Mary and John went to the store, John gave a drink to", "answers": " Mary", "wrong": " John", '
        '"corrupt": "When Mary and John went to the store, Anna gave a drink to"}\n'
    )
    out = Path("run's")
    settings = HeadSettings(
        models=("nano",), tasks=("ioi", "my task.jsonl"), n=3, seed=1, methods=("attribution-ig:steps=2", "gradient"),
        signed=True, rankings=("task", "prompt"), fill="zero", draws=1, threshold=0.8, formats=("png",),
    )  # fmt: skip
    study_heads(settings, out=out)
    line = collect(out)["line"]
    assert "--threshold 0.8" in line
    began = read_manifest(out)["started"]
    assert headscope(capfd, *shlex.split(line)[1:], "--json").code == 0
    assert read_manifest(out)["started"] == began
    how: dict[str, Any] = {"n": 3, "methods": ["eap"], "split": "qkv", "choice": "greedy", "formats": ["png"]}
    study_edges(EdgeSettings(models=("nano",), tasks=("ioi",), **how), out=Path("e"))
    began = read_manifest(Path("e"))["started"]
    assert headscope(capfd, *shlex.split(collect(Path("e"))["line"])[1:], "--json").code == 0
    assert read_manifest(Path("e"))["started"] == began


SETTINGS: list[Settings] = [
    RoleSettings(
        models=("a b", "nano"), tasks=("syntax", "math"), seeds=2, preset="paper", n=7, held_out=5, compare=0,
        forget="ioi", seed=3,
    ),
    FunctionSettings(
        model="nano", data="my data.json", functions=("retrieval",), rankings=("ablation",), ks=(2, 4), draws=2, n=5,
        train=9, shots=1, factor=0.001, steps="decode", max_new_tokens=3, alphas=(), seed=4, embedder="some/one",
    ),
    SparsitySettings(dense="nano", sparse="s p", tasks=(), text="a.txt", sequences=8, length=12, n=3, seed=5),
    SparsifySettings(model="nano", steps=3, lr=2e-4, checkpointing=True, margin=0.1, start="some/adapter"),
]  # fmt: skip


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: settings.command)
def test_the_printed_command_parses_to_the_settings(settings):
    words = shlex.split(command_line(settings.asked(), Path("runs/x y")))
    group: Any = typer.main.get_command(app)
    typed = group.commands[words[1]].make_context(words[1], words[2:]).params
    assert str(typed.pop("to")) == "runs/x y"
    typed = {name: value for name, value in typed.items() if not name.startswith("old_")}
    assert type(settings)(**typed) == settings


def test_a_command_nobody_knows_is_not_invented(tmp_path):
    assert command_line({"command": "dream", "settings": {}}, tmp_path) == ""
    assert "/" not in command_line(HeadSettings(models=("m",), tasks=("ioi",)).asked(), tmp_path / "run")


def test_every_task_and_function_has_a_title():
    assert set(TASKS) <= set(TITLES)
    assert {name: TITLES[name] for name in FUNCTIONS} == FUNCTIONS


def test_the_wheel_has_the_assets():
    from headscope.report.page.html import ASSETS, SCRIPTS

    there = {path.name for path in ASSETS.iterdir()}
    assert {*SCRIPTS, "page.html", "page.css", "live.js", "piece.js", "atlas.js"} == there
