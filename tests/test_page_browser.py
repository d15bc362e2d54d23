"""The page in Chromium, from disk and without a network: what it shows, and what clicks and keys do."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import run_folders
from browser import chromium, errors, opened

from headscope.records import Curve, EdgeScores, Roles, Scores
from headscope.report.page.html import build_page
from headscope.report.page.server import Viewer
from headscope.runs.manifest import Manifest
from headscope.runs.run import Run


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    chromium()
    with opened(tmp_path_factory.mktemp("profile")) as made:
        yield made


def show(driver: Any, folder: Path, **options: Any) -> None:
    path = folder.parent / f"{folder.name}.html"
    path.write_text(build_page([folder], **options))
    driver.get(path.as_uri())
    wait(driver)
    assert errors(driver) == []


def wait(driver: Any) -> None:
    """Until all is drawn. (A large page on a busy machine may still be at it when the browser says that it has
    loaded.)"""
    from selenium.webdriver.support.ui import WebDriverWait

    ready = "return document.documentElement.dataset.ready"
    WebDriverWait(driver, 60).until(lambda one: one.execute_script(ready) == "yes")


def text(driver: Any, selector: str) -> str:
    return driver.execute_script("return document.querySelector(arguments[0]).textContent", selector)


def count(driver: Any, selector: str) -> int:
    return driver.execute_script("return document.querySelectorAll(arguments[0]).length", selector)


def slide(driver: Any, k: int, run: str = "#run-0") -> None:
    """Move the slider to k, as a hand does: through the number's place among the steps."""
    driver.execute_script(
        "const number = document.querySelector(arguments[0] + ' .slider input[type=number]');"
        "number.value = arguments[1]; number.dispatchEvent(new Event('change'));",
        run, k,
    )  # fmt: skip


def click(driver: Any, selector: str, at: int = 0) -> None:
    driver.execute_script(
        "document.querySelectorAll(arguments[0])[arguments[1]]"
        ".dispatchEvent(new MouseEvent('click', {bubbles: true, clientX: 5, clientY: 5}))",
        selector, at,
    )  # fmt: skip


def test_all_studies_without_a_complaint(driver, tmp_path):
    for name, make in run_folders.ALL.items():
        make(tmp_path / "all" / name)
    show(driver, tmp_path / "all")
    assert count(driver, "section.run") == 6
    assert count(driver, "section.run .notes") == 0
    assert driver.execute_script("return performance.getEntriesByType('resource').length") == 0
    for place, part in enumerate((".chart", ".circuit", ".cell.role0", ".cell.plus", ".pattern image")):
        assert count(driver, f"#run-{place} {part}") > 0, part
    # Everything that acts has a name for those who do not see it.
    nameless = """return [...document.querySelectorAll('button, input, select, [role=application], a')].filter((one) =>
        !(one.textContent.trim() || one.getAttribute('aria-label') || one.closest('label'))).length"""
    assert driver.execute_script(nameless) == 0
    assert driver.execute_script("return document.documentElement.scrollWidth") <= 1280


def test_the_slider_says_what_the_curve_says(driver, tmp_path):
    folder = run_folders.heads_run(tmp_path / "run", shape=(6, 4)).folder
    curve = Curve.load(folder / "curve-0-task.safetensors")
    scores = Scores.load(folder / "scores-0.safetensors")
    show(driver, folder)
    for k in (0, 3, 11, 24):
        slide(driver, k)
        said = text(driver, ".readout tbody tr td:nth-child(2)").replace("\u2212", "-")
        assert said == f"{curve.explained[k]:.3f}"
        inside = driver.execute_script(
            "return [...document.querySelector('.board').querySelectorAll('.cell')].map((c, at) => c.style.getPropertyValue('--in') ? at : -1).filter((at) => at >= 0)"  # noqa: E501
        )
        assert set(inside) == {l * 4 + h for l, h in scores.ranked()[:k]}
    assert count(driver, ".panel .marker[visibility=visible]") == 2


def test_a_click_and_the_keys_choose_a_head(driver, tmp_path):
    folder = run_folders.heads_run(tmp_path / "run", shape=(4, 3)).folder
    scores = [Scores.load(folder / f"scores-{number}.safetensors") for number in (0, 1)]
    show(driver, folder)
    click(driver, ".board .cell", 7)
    told = driver.execute_script("return [...document.querySelectorAll('.told')].map((one) => one.textContent)")
    for one, words in zip(scores, told, strict=True):
        assert words.replace("\u2212", "-").startswith(f"L2.H1 · score {one.values[2, 1]:+.3f}")
    assert "L2.H1" in text(driver, "#run-0 figure:has(.pattern) h3")
    assert count(driver, ".pattern") == 2
    images = "return [...document.querySelectorAll('.pattern image')].map((one) => one.getAttribute('href'))"
    before = driver.execute_script(images)
    assert before[0] != before[1]
    from selenium.webdriver.common.keys import Keys

    board = driver.find_element("css selector", ".board")
    board.send_keys(Keys.ARROW_UP)
    # Layers lie flat where there are more of them than heads, so up is a head and right is a layer.
    assert text(driver, ".told").startswith("L2.H0")
    board.send_keys(Keys.ARROW_RIGHT)
    assert text(driver, ".told").startswith("L3.H0")
    assert driver.execute_script(images) != before
    driver.execute_script(
        "const pick = document.querySelector('.pick select'); pick.value = 1; pick.dispatchEvent(new Event('change'))"
    )
    assert "v0" in text(driver, ".pattern .token")
    click(driver, ".choice input", 1)
    assert errors(driver) == []


def test_attention_says_the_weights_of_the_record(driver, tmp_path):
    from headscope.records import Attention

    folder = run_folders.heads_run(tmp_path / "run", shape=(4, 3)).folder
    weights = Attention.load(folder / "attention-1.safetensors").patterns
    show(driver, folder)
    click(driver, ".board .cell", 5)
    said = driver.execute_script("""
        const frame = document.querySelectorAll('.pattern')[1];
        const field = frame.querySelector('.field').getBoundingClientRect();
        const side = field.width / 6;
        frame.dispatchEvent(new PointerEvent('pointermove', {bubbles: true, clientX: field.left + 2.5 * side, clientY: field.top + 4.5 * side}));
        return document.getElementById('tip').textContent""")  # noqa: E501
    assert "·w4 (4) attends to ·w2 (2)" in said
    assert float(said.split("weight ")[1]) == pytest.approx(weights[0, 1, 2, 4, 2], abs=0.5 / 255 + 6e-4)


def test_models_of_two_shapes_keep_their_heads_apart(driver, tmp_path):
    run_folders.heads_run(tmp_path / "small", shape=(4, 3), models=["small"], tasks=["ioi"])
    folder = run_folders.heads_run(tmp_path / "run", shape=(5, 2), models=["large"], tasks=["ioi"]).folder
    run = Run(folder, Manifest.read(folder))
    run_folders.keep(run, "scores-9", Scores.load(tmp_path / "small" / "scores-0.safetensors"))
    small, large = (Scores.load(folder / f"scores-{number}.safetensors") for number in (9, 0))
    show(driver, folder)
    said = "return [...document.querySelectorAll('.told')].map((one) => one.textContent.replace('\u2212', '-').trim())"
    click(driver, ".board .cell", 7)
    there, here = driver.execute_script(said)
    assert there.startswith(f"L3.H1 · score {large.values[3, 1]:+.3f}")
    assert here.startswith(f"L3.H1 · score {small.values[3, 1]:+.3f}")
    click(driver, ".board .cell", 10 + 5)
    assert driver.execute_script(said)[0] == ""
    assert driver.execute_script(said)[1].startswith("L1.H2")


def test_hover_reads_a_curve(driver, tmp_path):
    folder = run_folders.heads_run(tmp_path / "run", shape=(4, 3), models=["a"], tasks=["ioi"]).folder
    curve = Curve.load(folder / "curve-0-task.safetensors")
    show(driver, folder)
    said = driver.execute_script("""
        const chart = document.querySelector('.chart'), box = chart.getBoundingClientRect();
        const [from, to] = ['x1', 'x2'].map((end) => Number(chart.querySelector('.grid').getAttribute(end)));
        const at = (from + (to - from) * 7 / 12) / chart.viewBox.baseVal.width;
        chart.dispatchEvent(new PointerEvent('pointermove', {bubbles: true, clientX: box.left + box.width * at, clientY: box.top + 50}));
        return document.getElementById('tip').textContent""")  # noqa: E501
    low, high = curve.low[7], curve.high[7]
    assert f"k 7: {curve.explained[7]:.3f} [{low:.3f}, {high:.3f}]" in said


def test_the_circuit_shows_k_edges_and_paths(driver, tmp_path):
    folder = run_folders.edges_run(tmp_path / "run", models=["a", "b"]).folder
    scores = EdgeScores.load(folder / "edges-0.safetensors")
    show(driver, folder)
    slide(driver, 9)
    assert count(driver, ".circuit-box:first-child .link") == 9
    first = scores.top(1)[0][0].split("->")[0]
    names = "return [...document.querySelectorAll('.circuit-box:first-child .node')].map((one) => one.textContent)"
    click(driver, ".circuit-box:first-child .node", driver.execute_script(names).index(first))
    on_path = count(driver, ".circuit-box:first-child .link.path")
    assert on_path >= 1
    assert count(driver, ".circuit-box:first-child .link.faint") == 9 - on_path
    assert f"Paths through {first}" in text(driver, ".circuit-box .told")
    driver.execute_script(
        "const floor = document.querySelector('.tools input[type=range]'); floor.value = 50;"
        "floor.dispatchEvent(new Event('input'))"
    )
    strong = int((np.abs(scores.values) >= 0.5 * np.abs(scores.values).max()).sum())
    assert count(driver, ".circuit-box:first-child .link") == min(strong, 9)


def test_tables_sort_and_find(driver, tmp_path):
    folder = run_folders.roles_run(tmp_path / "run").folder
    show(driver, folder)
    column = "return [...document.querySelectorAll('#run-0 figure .table:has(input) tbody td:nth-child(5)')].map((one) => Number(one.textContent))"  # noqa: E501
    down = driver.execute_script(column)
    assert down == sorted(down, reverse=True)
    header = "#run-0 figure .table:has(input) th:nth-child(5) button"
    click(driver, header)
    assert driver.execute_script(column) == sorted(down)
    assert driver.execute_script(
        "return document.querySelector(arguments[0]).parentNode.getAttribute('aria-sort')", header
    ) == ("ascending")
    driver.find_element("css selector", "#run-0 .table input").send_keys("L1.H2")
    assert count(driver, "#run-0 figure .table:has(input) tbody tr") == 2


def test_markup_in_names_does_nothing(driver, tmp_path):
    name = "<img src=x onerror='window.hacked = 1'></script><script>window.hacked = 2</script>"
    run_folders.heads_run(tmp_path / "run" / "h", tasks=[name], models=[name, "b"])
    run_folders.edges_run(tmp_path / "run" / "e", tasks=[name], models=[name, "b"])
    (tmp_path / "run" / "h" / "scores-0.safetensors").write_text("broken")
    show(driver, tmp_path / "run", title=name)
    click(driver, ".board .cell", 1)
    assert driver.execute_script("return window.hacked") is None
    assert count(driver, "img") == 0
    assert text(driver, "h1") == name
    assert errors(driver) == []


def test_a_damaged_run_is_shown_as_such(driver, tmp_path):
    run_folders.heads_run(tmp_path / "all" / "a")
    run_folders.edges_run(tmp_path / "all" / "b")
    run_folders.roles_run(tmp_path / "all" / "c")
    for file in (tmp_path / "all" / "a").glob("scores-*"):
        file.unlink()
    (tmp_path / "all" / "b" / "manifest.json").write_text("{")
    show(driver, tmp_path / "all")
    assert "scores-0.safetensors is missing." in text(driver, "#run-0 .notes")
    assert count(driver, "#run-0 .chart") > 0
    assert count(driver, "#run-1 .cell.role0") > 0
    assert "manifest" in text(driver, "#run-2 .notes")


def test_what_is_not_a_number_is_shown_as_nothing(driver, tmp_path):
    run = run_folders.heads_run(tmp_path / "run", models=["a"], tasks=["ioi"])
    found = Curve.load(run.folder / "curve-0-task.safetensors")
    nothing = np.full_like(found.explained, np.nan)
    Curve(**{**vars(found), "explained": nothing, "low": nothing, "high": nothing}).save(
        run.folder / "curve-0-task.safetensors"
    )
    run.add("curve-0-task.safetensors")
    show(driver, run.folder)
    assert text(driver, ".readout tbody tr td:nth-child(2)") == "–"


def test_light_and_dark(driver, tmp_path):
    show(driver, run_folders.heads_run(tmp_path / "run").folder)
    ground = "return getComputedStyle(document.body).backgroundColor"
    before = driver.execute_script(ground)
    click(driver, "#theme")
    assert driver.execute_script(ground) != before
    click(driver, "#theme")
    assert driver.execute_script(ground) == before


def test_large_runs_answer_everything(driver, tmp_path):
    """270 heads x 4 tasks x 2 models, and a curve with a point for each of 11,611 edges."""
    tasks = ["ioi", "greater-than", "docstring", "ioi-long"]
    run_folders.heads_run(
        tmp_path / "all" / "heads", shape=(30, 9), tasks=tasks, tokens=18, rankings=("task", "prompt")
    )
    run_folders.edges_run(tmp_path / "all" / "edges", shape=(12, 12), tasks=["ioi"])
    show(driver, tmp_path / "all")
    assert (tmp_path / "all.html").stat().st_size < 8e6
    driver.execute_script("window.headscope.handled = 0")
    for run in ("#run-0", "#run-1"):
        driver.execute_script(
            "const range = document.querySelector(arguments[0] + ' .slider input[type=range]');"
            "for (let at = 0; at <= 20; at++) { range.value = Math.round(at * range.max / 20); range.dispatchEvent(new Event('input')); }"  # noqa: E501
            "for (const chart of document.querySelectorAll(arguments[0] + ' .chart')) { const box = chart.getBoundingClientRect();"  # noqa: E501
            "for (let at = 0; at < 1; at += 0.1) chart.dispatchEvent(new PointerEvent('pointermove', {bubbles: true, clientX: box.left + at * box.width, clientY: box.top + 40})); }",  # noqa: E501
            run,
        )
    for place in range(4):
        click(driver, "#run-0 .choice input", place)
        click(driver, "#run-0 .board .cell", 17 * place)
        click(driver, "#run-0 th button", place)
        click(driver, "#run-1 .node", place)
        click(driver, "#run-1 th button", place)
    driver.execute_script(
        "const find = document.querySelector('#run-1 .table input'); find.value = 'L3';"
        "find.dispatchEvent(new Event('input'))"
    )
    found = driver.execute_script("return window.headscope")
    assert found["handled"] > 60
    assert errors(driver) == []


def test_a_served_page_reloads_when_its_run_gets_further(tmp_path_factory, tmp_path):
    run = Run.open(tmp_path / "runs" / "new", command="heads", settings={"models": ["m"], "tasks": ["ioi"]})
    with opened(tmp_path_factory.mktemp("profile"), offline=False) as driver, Viewer(tmp_path / "runs", 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        driver.get(f"{server.address}run/new")
        assert text(driver, "#run-0 .state") == "going on"
        run.finish()
        until = time.monotonic() + 20
        while text(driver, "#run-0 .state") != "finished":
            assert time.monotonic() < until
            time.sleep(0.2)
        assert errors(driver) == []
        driver.get(server.address)
        assert "new" in text(driver, "#index tbody")
        # What was chosen is still chosen after the page has been loaded again.
        other = run_folders.heads_run(tmp_path / "runs" / "other")
        driver.get(f"{server.address}run/other")
        slide(driver, 3)
        click(driver, ".board .cell", 7)
        driver.execute_script("window.old = true")
        other.add("more.csv")
        until = time.monotonic() + 20
        while driver.execute_script("return window.old || document.documentElement.dataset.ready !== 'yes'"):
            assert time.monotonic() < until
            time.sleep(0.2)
        assert driver.execute_script("return document.querySelector('.slider input[type=number]').value") == "3"
        assert text(driver, ".told").startswith("L2.H1")
        server.shutdown()


def test_records_in_a_notebook_are_pieces_of_the_page(driver, tmp_path):
    """In a frame that may run their code: hovering and choosing work, and nothing goes wrong."""
    values = np.array([[1.0, -2.0, 0.5], [0.25, 3.0, 0.0]], np.float32)
    scores = Scores("m", "ioi", "patching", values, values[None])
    edges = EdgeScores("m", "ioi", "eap", np.arange(15, dtype=np.float32), np.empty((0, 15), np.float32),
                       {"n_layers": 2, "n_heads": 1, "split": "none", "parallel": False})  # fmt: skip
    gates = np.linspace(0, 1, 12).reshape(2, 2, 3)
    k = np.array([0, 1, 6])
    curve = Curve(
        "m", "ioi", "patching", k, k / 6, k / 7, k / 5, np.zeros((3, 2)), np.ones(2), np.zeros(2), {"total": 6}
    )
    shown = [scores, scores.circuit(2), Roles("m", "syntax", gates, gates), curve, edges, edges.circuit(3)]
    path = tmp_path / "notebook.html"
    path.write_text("<!DOCTYPE html>" + "".join(record._repr_html_() for record in shown))
    driver.get(path.as_uri())
    frames = driver.find_elements("tag name", "iframe")
    assert len(frames) == len(shown)
    drawn = []
    for frame in frames:
        driver.execute_script("arguments[0].scrollIntoView()", frame)
        driver.switch_to.frame(frame)
        wait(driver)
        drawn.append([count(driver, name) for name in (".cell", ".line", ".link", ".slider")])
        if count(driver, ".board"):
            driver.execute_script(
                "document.querySelector('.board').dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowRight'}))"
            )
            assert text(driver, ".told").strip()
        driver.switch_to.default_content()
    assert drawn == [[6, 0, 0, 0], [6, 0, 0, 0], [6, 0, 0, 0], [0, 1, 0, 0], [0, 0, 15, 1], [0, 0, 3, 1]]
    assert errors(driver) == []
