"""`headscope figure`: figures again from records, exactly as wide as asked for."""

from __future__ import annotations

import re
import struct
from typing import Any

import numpy as np
import pytest
import run_folders
from command import headscope

import headscope as hs
from headscope.report.figures.panels import common_words, curve_panels, save_figure
from headscope.report.outputs import outputs_of
from headscope.report.redraw import inches
from headscope.runs.run import read_manifest
from headscope.studies.edges import study_edges
from headscope.studies.heads import study_heads
from headscope.studies.settings import EdgeSettings, HeadSettings


@pytest.mark.parametrize(
    ("text", "found"), [("3.25in", 3.25), ("8cm", 8 / 2.54), ("85mm", 85 / 25.4), ("240pt", 240 / 72), (" 4 in ", 4)]
)
def test_widths(text, found):
    assert inches(text) == pytest.approx(found)


@pytest.mark.parametrize("text", ["3.25", "in", "-3in", "3ft", "0.1in", "900cm", "nanin", "3in4"])
def test_what_is_no_width_is_told(text):
    with pytest.raises(hs.InputError, match=r"3\.25in, 8cm, 85mm or 240pt"):
        inches(text)


@pytest.mark.parametrize("name", list(run_folders.ALL))
def test_every_figure_of_every_study_is_as_wide_as_asked(tmp_path, name, capfd):
    run = run_folders.ALL[name](tmp_path / "run")
    before = read_manifest(run.folder)
    words = ("--format", "pdf,png,svg", "--width", "3.25in", "--out", tmp_path / "paper")
    said = headscope(capfd, "figure", run.folder, *words)
    assert (said.code, said.err) == (0, "")
    pdfs = sorted((tmp_path / "paper").glob("*.pdf"))
    assert {path.stem for path in pdfs} == set(outputs_of(run.folder).figures())
    for path in pdfs:
        box = re.search(rb"/MediaBox \[ ?0 0 ([\d.]+) ([\d.]+)", path.read_bytes())
        assert box
        assert float(box[1]) == pytest.approx(3.25 * 72, abs=0.01), path.name
        width, _ = struct.unpack(">II", path.with_suffix(".png").read_bytes()[16:24])
        assert width == 650
        assert 'width="234pt"' in path.with_suffix(".svg").read_text()
    assert read_manifest(run.folder) == before


def test_it_draws_what_the_studies_draw(tmp_path):
    """At their own width, figures are byte for byte those that the study drew."""
    asked: dict[str, Any] = {"models": ["nano"], "tasks": ["ioi"], "n": 4, "formats": ["png"]}
    study_heads(HeadSettings(**asked, methods=("attribution",), draws=1), out=tmp_path / "h")
    study_edges(EdgeSettings(**asked, methods=("eap",)), out=tmp_path / "e")
    for folder in (tmp_path / "h", tmp_path / "e"):
        drawn = {path.stem: path.read_bytes() for path in folder.glob("*.png")}
        assert set(outputs_of(folder).figures()) == set(drawn)
        for name, draw in outputs_of(folder).figures().items():
            assert save_figure(draw(), tmp_path / f"{name}.png").read_bytes() == drawn[name], name


@pytest.mark.parametrize("log", [False, True])
def test_a_legend_stays_in_its_panel_and_off_the_multiplier(log):
    """With names as long as real ones, ranked per prompt, as the figures of dense against sparse have them."""
    models, tasks = ("smollm2-135m", "smollm2-135m-sparse"), ("greater-than", "ioi")
    k = np.arange(0, 271, 10)
    curves = {
        task: [run_folders.curve(model, task, "attribution", k, 270, 0, ranking="prompt") for model in models]
        for task in tasks
    }
    segments = dict.fromkeys(tasks, (40.0, 10.0, 4.0))
    figure = curve_panels(curves, bands={}, segments=segments, threshold=0.9, log=log)
    figure.draw_without_rendering()
    legends = [(axes, legend) for axes in figure.axes if (legend := axes.get_legend())]
    assert legends
    for axes, legend in legends:
        assert [text.get_text() for text in legend.get_texts()] == list(models)
        assert legend.get_title().get_text() == "attribution, ranked per prompt"
        box, panel = legend.get_window_extent(), axes.get_window_extent()
        assert panel.x0 <= box.x0 < box.x1 <= panel.x1
        assert panel.y0 <= box.y0 < box.y1 <= panel.y1
        assert not any(box.overlaps(text.get_window_extent()) for text in axes.texts)


def test_what_all_labels_say_is_said_once():
    assert common_words(["a, eap", "b, eap", "a, eap"]) == ["eap"]
    assert common_words(["a, eap", "a, eap-ig"]) == ["a"]
    assert common_words(["a, eap", "a, eap, greedy"]) == common_words(["a, eap"]) == []


def test_some_figures_into_the_run_folder(tmp_path, capfd):
    run = run_folders.roles_run(tmp_path / "run")
    said = headscope(capfd, "figure", run.folder, "--only", "ablation,scores", "--format", "svg")
    assert said.code == 0
    assert {path.name for path in run.folder.glob("*.svg")} == {"ablation.svg", "scores.svg"}


def test_bad_input_is_told(tmp_path, capfd):
    run = run_folders.heads_run(tmp_path / "run")
    nowhere, empty = tmp_path / "nowhere", run_folders.start(tmp_path / "new", "heads", ["m"], ["t"], (2, 2)).folder
    for words, told in (
        ((run.folder, "--only", "nothing"), "It has: curves"), ((run.folder, "--format", "gif"), "Unknown format"),
        ((run.folder, "--width", "wide"), "--width"), ((nowhere,), "is no run"), ((empty,), "nothing to draw yet"),
    ):  # fmt: skip
        said = headscope(capfd, "figure", *words, "--out", tmp_path / "out")
        assert (said.code, said.out) == (2, "")
        assert told in said.err.replace("\n", " ")
    (run.folder / "curve-0-task.safetensors").write_bytes(b"")
    said = headscope(capfd, "figure", run.folder, "--out", tmp_path / "out")
    assert (said.code, "curve-0-task.safetensors" in said.err) == (2, True)
    assert not (tmp_path / "out").exists()
