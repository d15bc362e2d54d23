"""Records show themselves: tables, data frames, figures and notebooks' HTML; circuits and names stand for masks."""

from __future__ import annotations

import html
import json
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from test_results import CIRCUIT, CURVE, SHAPE

import headscope as hs
from headscope.errors import InputError, SetupError
from headscope.records import (
    Ablation,
    Attention,
    Check,
    Circuit,
    Contrast,
    Direct,
    EdgeScores,
    Graph,
    Lens,
    Needed,
    Patterns,
    Record,
    Roles,
    Scores,
    Sparsity,
    multiplier,
    multipliers,
)
from headscope.report.figures.circuits import circuit_graph
from headscope.report.showing import FIGURES

RANDOM = np.random.default_rng(1)
SCORES = Scores("m", "ioi", "patching", RANDOM.normal(size=(2, 3)), RANDOM.normal(size=(5, 2, 3)), {"n": 5})
EDGES = EdgeScores("m", "ioi", "eap", np.array([0.5, -2, 0.25, 1, -0.125, 3, *[0.01] * 9], np.float32),
                   np.empty((0, 15)), SHAPE)  # fmt: skip
GATES = RANDOM.uniform(size=(2, 2, 3))
CURVES = [CURVE, replace(CURVE, method="random", explained=np.array([0.0, 0.2, 1.0]))]
RECORDS: list[Record] = [
    SCORES, EDGES, CIRCUIT, SCORES.circuit(2), EDGES.circuit(4), CURVE, replace(CURVE, settings={"choice": "top"}),
    multipliers(*CURVES, resamples=20), Roles("m", "syntax", GATES, 1 - GATES),
    Ablation("m", "syntax", np.arange(3), RANDOM.normal(size=(3, 2, 3, 4))),
    Contrast("m", "syntax", "math", GATES, np.ones(2), np.zeros(2), [1.0, 0.5]),
    Attention("m", "ioi", [["a", "<b>", "c"]], np.tril(np.ones((1, 2, 3, 3, 3), np.float16))),
    Direct("m", "ioi", ["embedding", "L0.H0", "M0", "biases"], RANDOM.normal(size=4), RANDOM.normal(size=(2, 4)),
           np.ones(2)),
    Direct("m", "ioi", ["L0.H0", "M0"], RANDOM.normal(size=(2, 3)), np.ones((2, 2, 3)), np.ones((2, 3)),
           [["a", "<b>", "c"], ["a", "$b", "c"]]),
    Lens("m", "ioi", ["embedding", "layer 0"], np.ones(2), RANDOM.normal(size=(3, 2)), np.ones((3, 2), int),
         np.ones((3, 2)), ["<b>", "x"]),
    Lens("m", "ioi", ["embedding", "layer 0"], np.ones((2, 3)), np.ones((1, 2, 3)), np.ones((1, 2, 3), int),
         np.ones((1, 2, 3)), ["<b>", "x$"], [["a", "<b>", "c"]]),
    Patterns("m", "repeated tokens", ["induction", "OV copying"], GATES - [[[0]], [[0.5]]]),
    Sparsity("s", "m", GATES[0], np.ones(2), np.ones(2), np.ones(2), np.zeros(2), {}, {"seed": 0}),
]  # fmt: skip
SMALL = [Check("m", "ioi", 4, 0.75, "logit difference", 1.0, -1.0), multiplier(*CURVES), Needed(3.0, None, 4.0)]
kinds = pytest.mark.parametrize("record", [*RECORDS, *SMALL], ids=lambda record: type(record).__name__)


def test_every_kind_of_record_is_here():
    every = set(Record.__subclasses__())
    assert every == {type(record) for record in RECORDS} == set(FIGURES)


@kinds
def test_a_table_and_a_data_frame_say_the_same(record):
    pandas = pytest.importorskip("pandas")
    table, frame = record.table(), record.to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame.columns) == list(table.columns)
    assert len(frame) == len(table.rows) > 0
    assert len(set(table.columns)) == len(table.columns)


def test_what_the_rows_say():
    best = SCORES.table().dicts()[0]
    layer, head = np.unravel_index(np.abs(SCORES.values).argmax(), (2, 3))
    assert (best["rank"], best["head"], best["score"]) == (1, f"L{layer}.H{head}", SCORES.values[layer, head])
    assert [row[-2:] for row in EDGES.rows(2)] == [(EDGES.graph.edges[5], 3.0), (EDGES.graph.edges[1], -2.0)]
    weights = {
        (row["query"], row["key"]): row["weight"]
        for row in next(one for one in RECORDS if isinstance(one, Attention)).table().dicts()
    }
    assert set(weights) == {(0, 0), (1, 0), (1, 1), (2, 0), (2, 1), (2, 2)}
    assert Check("m", "ioi", 4, 0.75, "x", 1.0, 2.0).table().rows == [("m", "ioi", 4, 0.75, "x", 1.0, 2.0, "")]


def test_pandas_is_told_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(SetupError, match=r"needs pandas, which is not installed: pip install pandas"):
        SCORES.to_pandas()


@kinds
def test_every_record_has_its_figure(record):
    if type(record) not in FIGURES:
        with pytest.raises(InputError, match=f"{type(record).__name__} has no figure, its table"):
            record.plot()
        return
    figure = record.plot()
    assert figure._repr_png_().startswith(b"\x89PNG")
    assert figure.axes
    assert abs(record.plot(width=3.0).get_figwidth() - 3.0) < 1e-9


def test_figures_draw_the_numbers():
    image = SCORES.plot().axes[0].images[0].get_array()
    np.testing.assert_array_equal(image, SCORES.values)
    drawn = CURVE.plot().axes[0].lines[0].get_ydata()
    np.testing.assert_array_equal(drawn, CURVE.explained)
    texts = {text.get_text() for text in EDGES.circuit(2).plot().axes[0].texts}
    assert texts - {""} == {end for edge in EDGES.circuit(2).names for end in edge.split("->")}


@kinds
def test_html_holds_no_markup_of_others(record):
    text = record._repr_html_()
    assert text.count("<table>") == 1
    assert "<b>" not in text
    assert "<script" not in text.split("srcdoc=")[0]


def framed(text: str) -> tuple[str, dict]:
    """The page in the frame of a piece, and its data."""
    found = re.search(r"<iframe sandbox=\"allow-scripts\" .*? srcdoc='([^']*)'></iframe>", text, re.DOTALL)
    assert found, "no frame"
    page = html.unescape(found[1])
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', page)
    assert data
    return page, json.loads(data[1])


def test_pieces_are_those_of_the_page():
    page, data = framed(SCORES._repr_html_())
    np.testing.assert_array_equal(data["record"]["values"], SCORES.values.astype(np.float32).astype(str).astype(float))
    assert "connect-src 'none'" in page
    _, data = framed(EDGES.circuit(4)._repr_html_())
    record = data["record"]
    edges = {
        f"{record['writers'][w]}->{record['readers'][r]}"
        for w, r in zip(record["writer"], record["reader"], strict=True)
    }
    assert edges == set(EDGES.circuit(4).names)


def test_a_name_that_is_markup_stays_a_name():
    evil = replace(SCORES, model="</script><script>alert(1)</script>'\"&<img src=x onerror=y>")
    page, data = framed(evil._repr_html_())
    assert data["record"]["model"] == evil.model
    assert page.count("<script") == 2
    assert "<img src=x" not in evil._repr_html_()


def test_records_alone_import_neither_torch_nor_matplotlib():
    script = (
        "import sys, numpy as np\nfrom headscope.records import Scores\n"
        "scores = Scores('m', 't', 'x', np.ones((2, 2)), np.ones((1, 2, 2)))\n"
        "scores.table(); scores.circuit(1).to_json()\n"
        "assert not {'torch', 'matplotlib', 'headscope.report'} & set(sys.modules)\n"
        "scores._repr_html_(); scores.plot()\nassert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


# Circuits


class Tiny:
    name, n_layers, n_heads, parallel = "tiny", 2, 1, False


def test_a_circuit_by_name_from_scores_and_from_json():
    edges = EDGES.circuit(3)
    assert Circuit.from_json(edges.to_json()) == edges
    assert edges.values is not None
    assert edges.values[edges.keep].tolist() == [EDGES.values[at] for at in np.flatnonzero(edges.keep)]
    named = Circuit.named(edges.names, Tiny(), task="ioi")
    np.testing.assert_array_equal(named.keep, edges.keep)
    assert Circuit.from_json(named.to_json()) == named
    heads = Circuit.named(["L1.H0", (0, 0), ("L1.H0", 0.5)], Tiny())
    assert heads.names == ["L0.H0", "L1.H0"]
    assert "L1.H0" in heads
    assert Circuit.named("L1.H0", Tiny()).names == Circuit.named((1, 0), Tiny()).names == ["L1.H0"]
    split = Circuit.named("L0.H0->L1.H0.q", Tiny())
    assert split.graph == Graph(2, 1, "qkv")
    assert split.heads.names == ["L0.H0", "L1.H0"]
    assert circuit_graph(split).edges["L0.H0", "L1.H0"] == {"score": 1.0, "reads": "q"}


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("L2.H0", r"There is no head L2.H0: tiny has layers 0 to 1 and heads 0 to 0"),
        ((0, -1), r"There is no head L0.H-1"),
        (["head 3"], r"'head 3' does not name a head: expected layer and head, such as L9.H6"),
        ([(1, 2, 3)], r"\(1, 2, 3\) does not name a head: expected L9.H6 or \(9, 6\)"),
        (["L0.H0->L9.H0"], r"There is no edge 'L0.H0->L9.H0' in tiny: expected such as embedding->L0.H0"),
        (["L1.H0->L0.H0"], r"There is no edge"),
    ],
)
def test_names_that_do_not_exist_are_told(names, message):
    with pytest.raises(InputError, match=message):
        Circuit.named(names, Tiny())


def test_circuits_and_names_are_masks(nano):
    inputs = nano.encode(["Once upon a time"])
    keep = torch.zeros(nano.n_layers, nano.n_heads)
    keep[1, 2] = keep[3, 0] = 1

    def logits(block):
        with block, torch.no_grad():
            return nano.hf(**inputs).logits

    expected = logits(hs.patched(nano, keep))
    names = ["L1.H2", "L3.H0"]
    values = np.zeros(keep.shape, np.float32)
    values[1, 2], values[3, 0] = 2.0, -1.0
    scores = Scores(nano.name, "t", "x", values, values[None])
    for same in (names, [(name, 0.5) for name in names], Circuit.named(names, nano), scores.circuit(2), scores.top(2)):
        torch.testing.assert_close(logits(hs.patched(nano, same)), expected, rtol=0, atol=0)
        torch.testing.assert_close(logits(hs.gated(nano, same)), expected, rtol=0, atol=0)
        removed = logits(hs.masked(nano, same))
        torch.testing.assert_close(removed, logits(hs.gated(nano, 1 - keep)), rtol=0, atol=0)
    one = logits(hs.masked(nano, "L1.H2"))
    torch.testing.assert_close(one, logits(hs.masked(nano, [(1, 2)])), rtol=0, atol=0)
    with pytest.raises(InputError, match=r"There is no head L9\.H9"):
        logits(hs.masked(nano, "L9.H9"))
    edges = Circuit.named("L0.H0->L1.H0", nano)
    with pytest.raises(InputError, match="This circuit is of edges, but heads are meant here"):
        logits(hs.patched(nano, edges))


def test_the_sentences_of_the_workbench(nano):
    """As a notebook says them, from a model in memory to heads taken away by name."""
    pytest.importorskip("pandas")
    hf_model, tokenizer = nano.hf, nano.tokenizer
    model = hs.load(hf_model, tokenizer)
    task = hs.tasks.pairs(
        tokenizer, clean=["Then Tom and Adam went to the zoo, and Tom gave a doll to"],
        corrupt=["Then Tom and Adam went to the zoo, and Luke gave a doll to"], answers=[[" Adam"]], wrong=[[" Tom"]],
    )  # fmt: skip
    scores = hs.methods.patching(model, task, positions="each")
    assert scores.values.shape == (model.n_layers, model.n_heads, len(task.clean_ids[0]))
    assert len(scores.to_pandas()) == scores.values.size
    assert scores.plot().axes
    assert "<table>" in scores._repr_html_()
    inputs = model.encode(task.clean)
    with torch.no_grad():
        whole = model.hf(**inputs).logits
        with hs.masked(model, [name for name, _ in scores.top(5)]):
            without = model.hf(**inputs).logits
    assert not torch.allclose(whole, without)
