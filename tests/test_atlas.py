"""The atlas: a card per head from a model and the runs that are there, and what is missing is told."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from browser import chromium, errors, opened
from command import headscope

import headscope as hs
from headscope.records import Scores


def data_of(page: Path) -> dict:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page.read_text())
    assert found
    return json.loads(found[1])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A head study of the tiny model, and a folder that is damaged."""
    from headscope.cli import main

    folder = tmp_path_factory.mktemp("runs")
    words = [
        "headscope",
        "heads",
        "nano",
        "--task",
        "ioi",
        "--n",
        "6",
        "--format",
        "png",
        "--out",
        str(folder / "heads"),
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", words)
        with pytest.raises(SystemExit) as stopped:
            main()
    assert not stopped.value.code
    (folder / "damaged").mkdir()
    (folder / "damaged" / "manifest.json").write_text("{")
    return folder


def test_a_card_holds_what_runs_say(runs, tmp_path, capfd):
    page = tmp_path / "atlas.html"
    said = headscope(capfd, "atlas", "nano", "--runs", runs, "--out", page, "--json")
    assert said.code == 0, said.err
    told, data = json.loads(said.out), data_of(page)
    assert told["runs"] == ["heads"]
    assert told["heads"] == 16
    assert [note for note in told["notes"] if note.startswith("damaged:")]
    wanted = {one["command"] for one in told["missing"]}
    assert "headscope heads nano --task greater-than" in wanted
    assert not any(command[-10:] == "--task ioi" for command in wanted)
    assert any(command.startswith("headscope roles nano") for command in wanted)
    assert "headscope functions nano" in wanted

    scores = Scores.load(next((runs / "heads").glob("scores-*.safetensors")))
    task = hs.tasks.ioi(hs.load("nano").tokenizer, n=6, seed=0)
    (shown,) = data["scores"]
    head = 5  # L1.H1
    each = abs(scores.per_prompt[:, 1, 1])
    assert [shown["texts"][str(at)] for at in shown["best"][head]] == [task.clean[at] for at in (-each).argsort()[:2]]
    assert shown["best_score"][head][0] == pytest.approx(float(scores.per_prompt[each.argmax(), 1, 1]))


def test_without_runs_the_patterns_are_there(tmp_path, capfd):
    said = headscope(capfd, "atlas", "nano", "--runs", tmp_path / "none", "--out", tmp_path / "atlas.html")
    assert said.code == 0, said.err
    assert "Not known yet: roles (headscope roles nano --task syntax,common-sense,math)" in " ".join(said.out.split())
    assert "runs read: none" in said.out
    assert headscope(capfd, "atlas", "nano", "--out", tmp_path).code == 2


def test_the_page_in_a_browser(runs, tmp_path, capfd):
    chromium()
    page = tmp_path / "atlas.html"
    assert headscope(capfd, "atlas", "nano", "--runs", runs, "--out", page).code == 0
    with opened(tmp_path / "profile") as driver:
        driver.get(page.as_uri())
        count = "return document.querySelectorAll(arguments[0]).length"
        assert driver.execute_script("return document.documentElement.dataset.ready") == "yes"
        assert [driver.execute_script(count, name) for name in ("article", ".cell", ".thumb", "#by option")] == [
            16,
            16,
            16,
            8,
        ]
        driver.execute_script(
            "const search = document.querySelector('[type=search]'); search.value = 'L2.H1';"
            "search.dispatchEvent(new Event('input'));"
        )
        assert driver.execute_script(count, "article:not([hidden])") == 1
        assert errors(driver) == []
