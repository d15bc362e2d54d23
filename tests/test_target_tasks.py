"""Tasks of prompts and targets: those written here, published sets, files of one's own, and the study over them."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import headscope
from conftest import shared
from test_bad_input import refused

import headscope as hs
from headscope.records import Ablation, Roles
from headscope.runs.run import read_manifest
from headscope.tasks import make_task
from headscope.tasks.datasets import read_blimp, read_gsm8k, targets_from_rows

WRITTEN = ("syntax", "common-sense", "common-sense-letters", "math")


@pytest.mark.parametrize("name", WRITTEN)
def test_targets_follow_their_prompts(nano: hs.Model, smollm2_tokenizer, name: str):
    """Derived again from the texts: prompt + target is the prompt's tokens and then the target's, foils differ."""
    for tokenizer, n in ((smollm2_tokenizer, 300), (nano.tokenizer, 60)):
        task = make_task(name, tokenizer, n=n, seed=3)
        assert len(set(task.clean)) == len(task) == n
        for i in range(0, n, 7):
            whole = tokenizer(task.clean[i])["input_ids"] + task.targets[i]
            assert whole[: len(task.clean_ids[i])] == task.clean_ids[i]
            assert str(tokenizer.decode(whole)).endswith(str(tokenizer.decode(task.targets[i])))
            assert len(task.corrupt_ids[i]) == len(task.clean_ids[i])
            assert task.corrupt[i] != task.clean[i]
            assert task.foils[i]
            assert task.targets[i] not in task.foils[i]
        assert make_task(name, tokenizer, n=n // 2, seed=3) == task.take(slice(n // 2))
        assert make_task(name, tokenizer, n=9, seed=4).clean != task.clean[:9]


def test_math_is_right(smollm2_tokenizer):
    task = hs.tasks.math(smollm2_tokenizer, n=200)
    for prompt, target in zip(task.clean, task.targets, strict=True):
        had, change = (int(number) for number in re.findall(r"\d", prompt.splitlines()[-2]))
        left, right = str(smollm2_tokenizer.decode(target)).split("=")
        assert f" {had} " in left
        assert f" {change} " in left
        assert eval(left) == int(right.split(".")[0])
        assert right.count(str(eval(left))) == 2
        assert ("gets" in prompt.splitlines()[-2]) == ("+" in left)


def test_check_of_targets(capfd):
    said = headscope(capfd, "check", "nano", "--task", "syntax,math", "--n", "12", "--json")
    assert (said.code, said.err) == (0, "")
    rows = json.loads(said.out)
    assert {row["metric_name"] for row in rows} == {"target log-prob"}
    assert all(0 <= row["accuracy"] <= 1 for row in rows)
    table = headscope(capfd, "check", "nano", "--task", "math", "--n", "12")
    assert "nano does not do math" in table.err


def test_blimp(smollm2_tokenizer):
    task = make_task(shared("data", "blimp", "anaphor_gender_agreement.jsonl"), smollm2_tokenizer, n=50)
    assert len(task) == 50
    assert all(len(foils) == 1 for foils in task.foils)
    item = read_blimp({"sentence_good": "The cats sleep here.", "sentence_bad": "The cats sleeps here."})
    assert (item.clean, item.targets, item.foils) == ("The cats", (" sleep here.",), (" sleeps here.",))


def test_commonsense_qa(smollm2_tokenizer):
    task = make_task(shared("data", "commonsense_qa_validation.jsonl"), smollm2_tokenizer, n=20)
    assert len(task) == 20
    assert all(len(foils) == 4 for foils in task.foils)
    # The first row is the example.
    assert all(prompt.startswith(task.clean[0].split("\nQuestion")[0]) for prompt in task.clean)


def test_gsm8k(smollm2_tokenizer):
    task = make_task(shared("data", "gsm8k_test.jsonl"), smollm2_tokenizer, n=5)
    assert min(map(len, task.targets)) > 10
    item = read_gsm8k({"question": "q", "answer": "It is 2*3=<<2*3=6>>6.\n#### 6"})
    assert item.targets == (" It is 2*3=6.\nThe answer is 6",)


def test_big_bench(tmp_path: Path, smollm2_tokenizer):
    file = tmp_path / "task.json"
    rows: list[dict[str, Any]] = [
        {"input": "Is fire hot?", "target_scores": {"yes": 1, "no": 0}},
        {"input": "Is ice hot?", "target_scores": {"yes": 0, "no": 1}},
    ]
    file.write_text(json.dumps({"name": "hot", "examples": rows}))
    task = make_task(str(file), smollm2_tokenizer)
    assert task.clean == ["Is fire hot?\nAnswer: yes\nIs ice hot?\nAnswer:"]
    assert smollm2_tokenizer.decode(task.targets[0]) == " no"
    (one,) = targets_from_rows("t", [{"input": "a", "target": ["b", "c"]}], smollm2_tokenizer).targets
    assert smollm2_tokenizer.decode(one) == " b"


def bad_file(tmp_path: Path, *rows: dict[str, Any], name: str = "bad.jsonl") -> Path:
    path = tmp_path / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": "When Mary", "target": ""}, "a prompt or a target is empty"),
        ({"prompt": "", "target": " Mary"}, "a prompt or a target is empty"),
        (
            {"prompt": "When Mary", "target": 3},
            'row 1, of prompts and targets: "target" must be a text, found a number',
        ),
        ({"question": "What?"}, "no known form of prompts and targets"),
        ({"prompt": "When Mary went. " * 200, "target": " Mary"}, "takes at most"),
    ],
)
def test_bad_targets_are_refused(capfd, tmp_path: Path, row: dict[str, Any], message: str):
    path = bad_file(tmp_path, row, row)
    words = ("roles", "nano", "--task", path, "--held-out", "1", "--out", tmp_path / "run")
    assert message in refused(headscope(capfd, *words))


def test_bad_words_are_refused(capfd, tmp_path: Path):
    out = tmp_path / "run"
    assert "Unknown preset 'fast'" in refused(
        headscope(capfd, "roles", "nano", "--task", "ioi", "--preset", "fast", "--out", out)
    )
    assert "Unknown task 'ioy'" in refused(
        headscope(capfd, "roles", "nano", "--task", "ioi", "--forget", "ioy", "--out", out)
    )
    path = bad_file(tmp_path, {"prompt": "When Mary", "target": " went"})
    assert "no corrupt prompts" in refused(headscope(capfd, "heads", "nano", "--task", path, "--out", out))
    assert "would be held out" in refused(headscope(capfd, "roles", "nano", "--task", path, "--out", tmp_path / "b"))
    assert 'expected a JSON object with "examples"' in refused(
        headscope(capfd, "check", "nano", "--task", bad_file(tmp_path, {}, name="x.json"))
    )


ROLES_COMMAND = (
    "roles",
    "nano",
    "--task",
    "ioi,math",
    "--n",
    "12",
    "--held-out",
    "6",
    "--compare",
    "4",
    "--seeds",
    "2",
)


def test_the_role_study(capfd, tmp_path: Path):
    """A task that is done is fitted and drawn; one that is not is said not to be; the same command computes nothing."""
    words = (*ROLES_COMMAND, "--forget", "docstring", "--format", "png", "--json", "--out", tmp_path / "run")
    said = headscope(capfd, *words)
    assert said.code == 0, said.err
    printed = json.loads(said.out)
    assert [(check["task"], check["usable"]) for check in printed["checks"]] == [("ioi", True), ("math", False)]
    assert [found["task"] for found in printed["roles"]] == ["ioi"]
    roles = Roles.load(tmp_path / "run" / "roles-nano-ioi.safetensors")
    assert roles.facilitation.shape == roles.interference.shape == roles.irrelevance.shape == (2, 4, 4)
    curves = Ablation.load(tmp_path / "run" / "ablation-nano-ioi.safetensors")
    assert curves.change.shape == (3, 2, len(curves.k), 6)
    np.testing.assert_allclose(printed["curves"][0]["facilitation"]["mean"], curves.mean("facilitation"), rtol=1e-5)
    assert {"rank correlation", "shared", "by chance"} <= printed["patching"][0].keys()
    assert (printed["contrasts"][0]["keep"], printed["contrasts"][0]["forget"]) == ("ioi", "docstring")
    for name in ("ablation", "scores", "map-nano-ioi"):
        assert (tmp_path / "run" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    with (tmp_path / "run" / "roles.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 16
    there = {path.name for path in (tmp_path / "run").iterdir()}
    assert there == {".lock", ".manifest.json", "manifest.json", *read_manifest(tmp_path / "run")["files"]}
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "run").glob("*.safetensors")}
    assert json.loads(headscope(capfd, *words).out) == printed
    assert before == {path.name: path.stat().st_mtime_ns for path in (tmp_path / "run").glob("*.safetensors")}
