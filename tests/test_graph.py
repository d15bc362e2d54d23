"""The edge graph against counts from the literature and by hand."""

from __future__ import annotations

import numpy as np
import pytest

import headscope as hs
from headscope.records import Graph, head_name, parse_head


@pytest.mark.parametrize(
    ("shape", "none", "qkv", "between"),
    [((12, 12), 11_611, 32_491, 9_504), ((32, 32), 543_281, 1_592_881, 507_904)],
    ids=["GPT-2 small", "OLMo-7B"],
)
def test_published_counts(shape, none, qkv, between):
    whole = Graph(*shape)
    assert len(whole) == none
    assert len(Graph(*shape, split="qkv")) == qkv
    assert int(whole.between_heads.sum()) == between


def test_a_small_shape_by_hand():
    graph = Graph(2, 1)
    assert graph.edges == [
        "embedding->L0.H0",
        "embedding->M0", "L0.H0->M0",
        "embedding->L1.H0", "L0.H0->L1.H0", "M0->L1.H0",
        "embedding->M1", "L0.H0->M1", "M0->M1", "L1.H0->M1",
        "embedding->logits", "L0.H0->logits", "M0->logits", "L1.H0->logits", "M1->logits",
    ]  # fmt: skip
    assert len(graph) == len(graph.edges)


def test_parallel_blocks_by_hand():
    """In GPT-NeoX an MLP does not read the heads of its own layer: n_heads edges fewer per layer."""
    edges = Graph(2, 1, parallel=True).edges
    assert "L0.H0->M0" not in edges
    assert "L1.H0->M1" not in edges
    assert "L0.H0->M1" in edges
    assert len(edges) == 13
    assert len(Graph(3, 4)) - len(Graph(3, 4, parallel=True)) == 3 * 4


def test_split_readers_have_names():
    assert "L0.H1->L1.H0.q" in Graph(2, 2, split="qkv").edges
    with pytest.raises(hs.InputError, match="none, qkv"):
        Graph(2, 2, split="both")


def test_names_of_heads():
    assert head_name(9, 6) == "L9.H6"
    assert parse_head("L9.H6") == parse_head("9.6") == (9, 6)
    with pytest.raises(hs.InputError, match=r"L9\.H6"):
        parse_head("nine")


def test_only_edges_on_a_path_connect():
    graph = Graph(2, 1)
    names = ["embedding->L0.H0", "L0.H0->L1.H0", "L1.H0->logits", "M0->logits", "embedding->M1", "embedding->logits"]
    keep = np.isin(graph.edges, names)
    kept = [graph.edges[e] for e in np.flatnonzero(graph.connected(keep))]
    # M0 is reached by nothing, M1 leads nowhere.
    assert set(kept) == set(names) - {"M0->logits", "embedding->M1"}
    broken = np.isin(graph.edges, ["embedding->L0.H0", "L1.H0->logits"])
    assert not graph.connected(broken).any()


def test_an_edge_joins_when_its_path_is_whole():
    """Against the slow way: for every size of the circuit, take edges away until all that are left lie on a path."""
    graph = Graph(2, 2, split="qkv")
    order = np.random.default_rng(0).permutation(len(graph))
    writer, reader = graph.ends
    source = [graph.writers[at] for at in writer]
    target = [graph.readers[at].removesuffix(".q").removesuffix(".k").removesuffix(".v") for at in reader]
    joined = graph.joined(order)
    for size in range(len(graph) + 1):
        alive = set(order[:size].tolist())
        while True:
            reached, leads = {"embedding", *(target[e] for e in alive)}, {"logits", *(source[e] for e in alive)}
            now = {e for e in alive if source[e] in reached and target[e] in leads}
            if now == alive:
                break
            alive = now
        assert set(np.flatnonzero(joined <= size).tolist()) == alive
    assert np.isinf(graph.joined(order[:0])).all()


def test_a_split_reader_carries_its_head():
    graph = Graph(2, 1, split="qkv")
    names = ["embedding->L0.H0.k", "L0.H0->logits"]
    assert graph.connected(np.isin(graph.edges, names)).sum() == 2


def test_greedy_grows_from_the_logits():
    graph = Graph(2, 1)
    values = np.zeros(len(graph))
    for name, value in {"embedding->L0.H0": 9, "L0.H0->logits": 1, "L1.H0->logits": 5, "M0->L1.H0": -7}.items():
        values[graph.edges.index(name)] = value
    order = [graph.edges[e] for e in graph.greedy(values)]
    # The strongest edge of all waits until its reader is in.
    assert order[:4] == ["L1.H0->logits", "M0->L1.H0", "L0.H0->logits", "embedding->L0.H0"]
    assert sorted(order) == sorted(graph.edges)
    # By signed score, an edge that hinders is the last one.
    assert graph.edges[graph.greedy(values, signed=True)[-1]] == "M0->L1.H0"
