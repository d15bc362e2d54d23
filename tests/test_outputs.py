"""Outputs come from records: a figure or a table is added in one place, and all that show a run show it."""

from __future__ import annotations

import base64
import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import run_folders
from command import headscope

from headscope.records import Scores, Table
from headscope.report.figures.panels import blank, head_map
from headscope.report.outputs import OUTPUTS, Outputs, outputs_of, write
from headscope.report.page.collect import collect
from headscope.report.page.html import build_page
from headscope.runs.run import Run, read_manifest


class Small(Outputs):
    """A study of one record: what it shows stands here, and nowhere else."""

    @property
    def scores(self) -> list[Scores]:
        return list(self.run.records("scores-", Scores).values())

    def figures(self):
        return {"map": partial(head_map, self.scores[0])}

    def tables(self):
        return {"best": Table.of("head score", self.scores[0].top(2))}

    def findings(self, *, top: int = 10):
        return {**super().findings(top=top), "best": dict(self.scores[0].top(2))}


class Larger(Small):
    """The same study with one figure and one table more."""

    def figures(self):
        def bars(*, width: float | None = None):
            figure = blank(width or 3.0, 2.0)
            figure.subplots().bar(*zip(*self.scores[0].top(3), strict=True))
            return figure

        return {**super().figures(), "bars": bars}

    def tables(self):
        return {**super().tables(), "worst": Table.of("head score", self.scores[0].top(6)[-2:])}


def study_small(folder: Path) -> Run:
    """Computes and saves, nothing else."""
    run = Run.open(folder, command="small", settings={"models": ["m"]}, shown={"formats": ["png"]})
    values = np.array([[1, 2, 3], [-4, 5, -6]], np.float32)
    run_folders.keep(run, "scores-m", Scores("m", "t", "x", values, values[None], {}))
    return run


@pytest.mark.parametrize("kind", [Small, Larger])
def test_what_is_added_in_one_place_is_shown_everywhere(tmp_path, capfd, monkeypatch, kind):
    monkeypatch.setitem(OUTPUTS, "small", kind)
    run = study_small(tmp_path / "run")
    figures, tables = ({"map"}, {"best"}) if kind is Small else ({"map", "bars"}, {"best", "worst"})

    # At the end of the study,
    shown = write(run, kind)
    made = set(read_manifest(run.folder)["files"]) - {"scores-m.safetensors"}
    assert made == {f"{name}.png" for name in figures} | {f"{name}.csv" for name in tables}
    assert run.path("best.csv").read_text() == "head,score\nL1.H2,-6.0\nL1.H1,5.0\n"
    assert shown.findings()["figures"] == [str(run.path(f"{name}.png")) for name in kind(shown.run).figures()]
    assert shown.findings()["best"] == {"L1.H2": -6.0, "L1.H1": 5.0}

    # by `headscope figure`,
    assert headscope(capfd, "figure", run.folder, "--format", "svg", "--out", tmp_path / "paper").code == 0
    assert {path.stem for path in (tmp_path / "paper").iterdir()} == figures

    # and on the page.
    said = collect(run.folder)
    assert (said["notes"], set(said["figures"]), set(said["tables"])) == ([], figures, tables)
    for picture in said["pictures"].values():
        assert base64.b64decode(picture.removeprefix("data:image/png;base64,")).startswith(b"\x89PNG")
    page = build_page([run.folder])
    assert all(picture in page for picture in said["pictures"].values())
    assert set(said["pictures"]) == figures


@pytest.mark.parametrize("name", list(run_folders.ALL))
def test_the_end_of_a_study_the_page_and_the_findings_agree(tmp_path, name):
    """Tables of the page are those of the files, and each figure is drawn or shown on the page."""
    run = run_folders.ALL[name](tmp_path / "run")
    run.manifest.shown["formats"] = ["png"]
    run.manifest.write(run.folder)
    shown = write(run, type(outputs_of(run.folder)))
    said = collect(run.folder)
    assert said["notes"] == []
    for table, rows in said["tables"].items():
        lines = run.path(f"{table}.csv").read_bytes().decode()
        assert "\r" not in lines
        assert lines.splitlines()[0] == ",".join(rows[0]) if rows else True
        assert len(lines.splitlines()) == len(rows) + 1
    assert {Path(file).stem for file in shown.findings()["figures"]} == set(said["figures"])
    assert [one for one in said["figures"] if not one.startswith(shown.on_page)] == list(said["pictures"])
    json.dumps(shown.findings())


def test_another_threshold_is_kept_and_nothing_is_computed_again(tmp_path):
    run = run_folders.heads_run(tmp_path / "run")
    before = run.path("curve-0-task.safetensors").stat().st_mtime_ns
    needs = []
    for threshold in (0.5, 0.9):
        asked = {"command": "heads", "settings": run.manifest.settings}
        again = Run.open(run.folder, **asked, shown={"threshold": threshold, "formats": ["png"]})
        write(again, OUTPUTS["heads"])
        row = outputs_of(run.folder).findings()["curves"][0]
        assert (row["threshold"], collect(run.folder)["threshold"]) == (threshold, threshold)
        needs.append(row["k_at_threshold"])
    assert needs[0] < needs[1]
    assert run.path("curve-0-task.safetensors").stat().st_mtime_ns == before
