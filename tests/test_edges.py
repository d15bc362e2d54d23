"""Edge circuits: everything kept is the clean run, everything cut the corrupt one, and single edges by hand."""

from __future__ import annotations

from copy import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from architectures import VOCAB
from handmade import handmade, handmade_task

import headscope as hs
from headscope.models.layouts import LAYOUTS
from headscope.running.edge_gradients import edge_attribution
from headscope.running.edge_session import EdgeSession, view_of
from headscope.running.edge_view import EdgeView, Streams, writer_values
from headscope.running.fills import head_fill, writer_fill
from headscope.running.gradients import embedded, embeddings
from headscope.running.targets import Targets, metrics_of
from headscope.sweeps import run_circuit

NAMES = ["gpt2", "gpt_neox", "llama-gqa", "mistral", "qwen2", "qwen3", "olmo", "olmo2", "gemma2", "gemma3"]
B, T = 3, 7


@pytest.fixture(scope="module")
def views(tiny):
    made: dict[str, EdgeView] = {}

    def get(name: str) -> EdgeView:
        if name not in made:
            made[name] = EdgeView(hs.load(str(tiny(name))))
        return made[name]

    return get


def pair() -> tuple[list[list[int]], list[list[int]], Targets]:
    draw = torch.Generator().manual_seed(3)
    clean, corrupt = (torch.randint(3, VOCAB, (B, T), generator=draw).tolist() for _ in range(2))
    return clean, corrupt, Targets.first_two(B, torch.device("cpu"))


def test_every_row_is_tested(views):
    assert {views(name).model.hf.config.model_type for name in NAMES} == set(LAYOUTS)


@pytest.mark.parametrize("split", ["none", "qkv"])
@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_all_edges_are_the_clean_run_and_none_the_corrupt(views, name, split):
    view = views(name)
    graph = view.graph(split)
    clean, corrupt, tokens = pair()
    session = EdgeSession(view, clean, corrupt, tokens, graph)
    keep = torch.stack([torch.ones(len(graph)), torch.zeros(len(graph))])
    found = session.metrics(keep)
    expected = torch.stack([metrics_of(view.model, ids, tokens) for ids in (clean, corrupt)])
    np.testing.assert_allclose(found.numpy(), expected.numpy(), atol=1e-5, rtol=1e-5)
    assert (expected[0] - expected[1]).abs().min() > 1e-3


@pytest.mark.parametrize("name", ["gpt2", "llama-gqa", "gpt_neox"])
@torch.no_grad()
def test_all_edges_into_a_head_cut_is_that_heads_corrupt_value(views, name):
    """A head that reads nothing but the corrupt run writes what it wrote there: head patching, by way of edges."""
    view = views(name)
    graph, model = view.graph(), view.model
    clean, corrupt, tokens = pair()
    session = EdgeSession(view, clean, corrupt, tokens, graph)
    readers = np.array(graph.readers)[graph.ends[1]]
    for layer, head in [(0, 1), (1, 2)]:
        keep = torch.from_numpy(readers != f"L{layer}.H{head}").float()
        mask = torch.ones(model.n_layers, model.n_heads)
        mask[layer, head] = 0
        with hs.record(model) as z:
            model.hf(torch.tensor(corrupt))
        with hs.patched(model, mask, fill=z):
            expected = metrics_of(model, clean, tokens)
        np.testing.assert_allclose(session.metrics(keep[None])[0].numpy(), expected.numpy(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("split", ["none", "qkv"])
@pytest.mark.parametrize("name", ["gpt2", "gpt_neox", "llama-gqa", "qwen3"])
@torch.no_grad()
def test_edges_on_no_path_explain_nothing(views, name, split):
    """What --connected leaves out changes no metric: nothing new arrives at such an edge, or nothing goes on from it.
    (Not so behind a norm over all heads, by which a head that leads nowhere changes the others' shares.)"""
    graph = views(name).graph(split)
    draw = np.random.default_rng(0)
    keep = draw.random((8, len(graph))) < np.linspace(0.02, 0.3, 8)[:, None]
    pruned = np.stack([graph.connected(row) for row in keep])
    assert (pruned.sum(1) < keep.sum(1)).sum() > 4
    session = EdgeSession(views(name), *pair(), graph)
    found, expected = (session.metrics(torch.from_numpy(each).float()) for each in (pruned, keep))
    np.testing.assert_allclose(found.numpy(), expected.numpy(), atol=1e-5)


def test_a_model_without_a_row_says_which(tiny):
    with pytest.raises(hs.InputError, match=r"(?s)phi3.*layouts\.py"):
        EdgeView(hs.load(str(tiny("phi3"))))


WRONG_ROWS: list[tuple[str, dict[str, str], str]] = [
    ("gemma2", {"after_attention": ""}, "what M0 reads is not the sum"),
    ("gemma3", {"before_mlp": "post_attention_layernorm"}, "what M0 reads is not the sum"),
    ("olmo2", {"after_mlp": ""}, r"what L1\.H0 reads is not the sum"),
    ("llama-gqa", {"final_norm": "model.layers.1.post_attention_layernorm"}, "what logits reads is not the sum"),
    ("gpt2", {"fused": "interleaved"}, "its metric is off by"),
    ("qwen2", {"mlp": "feed_forward"}, "a module that it names is not there .*feed_forward"),
]


@pytest.mark.parametrize(("name", "wrong", "message"), WRONG_ROWS)
def test_a_wrong_row_is_told_at_first_use(tiny, monkeypatch, name, wrong, message):
    model = hs.load(str(tiny(name)))
    kind = model.hf.config.model_type
    with monkeypatch.context() as patch:
        patch.setitem(LAYOUTS, kind, replace(LAYOUTS[kind], **wrong))
        with pytest.raises(hs.InputError, match=rf"The layout row of {kind} .*{message}.*layouts\.py"):
            view_of(model)
    assert view_of(model) is view_of(model), "with the right row the same model is taken, and kept"


def slopes(session: EdgeSession) -> torch.Tensor:
    """The metric of every prompt differentiated by every edge, through the exact circuit run; (B, E)."""
    keep = torch.ones(1, len(session.graph), requires_grad=True)
    with torch.enable_grad():
        metrics = session.metrics(keep)
    return torch.stack([torch.autograd.grad(metrics[0, b], keep, retain_graph=True)[0][0] for b in range(B)])


@pytest.mark.parametrize("split", ["none", "qkv"])
@pytest.mark.parametrize("name", NAMES)
def test_attribution_is_the_slope_of_running_the_circuit(views, name, split):
    """The literal definition: every reader's input apart, differentiated edge by edge through the exact circuit run."""
    view = views(name)
    graph = view.graph(split)
    clean, corrupt, tokens = pair()
    session = EdgeSession(view, clean, corrupt, tokens, graph)
    literal = slopes(session)
    found = edge_attribution(view, graph, clean, corrupt, tokens)
    np.testing.assert_allclose(found.numpy(), literal.numpy(), atol=1e-5 * literal.abs().max().item(), rtol=0)


def at_point(session: EdgeSession, point: Streams) -> EdgeSession:
    """A session like the given one, moved: with all edges kept it runs `point`, and an edge that is left out moves by
    as much as it moves between clean and corrupt. So the slope at a kept edge is (clean - corrupt) . gradient there."""
    clean, corrupt, view = session.clean, session.corrupt, session.view
    moved, shift = copy(session), Streams(len(view.blocks))
    for name in ("attention_in", "mlp_in", "mlp_out"):
        each = zip(getattr(point, name), getattr(clean, name), getattr(corrupt, name), strict=True)
        setattr(shift, name, [p - (a - b) for p, a, b in each])
    shift.final_in, shift.layer_outputs = point.final_in - (clean.final_in - corrupt.final_in), point.layer_outputs
    moved.fill_BWTD = writer_values(view, point) - (writer_values(view, clean) - session.fill_BWTD)
    moved.clean, moved.base = point, shift
    return moved


@pytest.mark.parametrize("split", ["none", "qkv"])
@pytest.mark.parametrize("name", NAMES)
def test_integrated_gradients_are_the_mean_of_slopes_along_the_way(views, name, split):
    """The literal definition: the slopes of the exact circuit run at every point between the embeddings, averaged."""
    view, steps = views(name), 3
    graph = view.graph(split)
    clean, corrupt, tokens = pair()
    session = EdgeSession(view, clean, corrupt, tokens, graph)
    near, far = embeddings(view.model, corrupt), embeddings(view.model, clean)
    total = torch.zeros(B, len(graph))
    for step in range(steps):
        with embedded(view.model, near + (step + 0.5) / steps * (far - near)):
            point = Streams.of(view, clean, tokens)
        moved = at_point(session, point)
        with torch.no_grad():
            np.testing.assert_allclose(moved.metrics(torch.ones(1, len(graph)))[0], point.metric_B, atol=1e-5)
        total += slopes(moved)
    literal = total / steps
    found = edge_attribution(view, graph, clean, corrupt, tokens, steps=steps)
    np.testing.assert_allclose(found.numpy(), literal.numpy(), atol=1e-5 * literal.abs().max().item(), rtol=0)


def test_integrated_gradients_settle(views):
    """With one step, EAP-IG is EAP at the middle; with many it settles."""
    view = views("llama-gqa")
    graph = view.graph()
    clean, corrupt, tokens = pair()
    one, many, more = (edge_attribution(view, graph, clean, corrupt, tokens, steps=s) for s in (1, 64, 128))
    assert (many - more).abs().max() < 0.01 * more.abs().max()
    assert (one - more).abs().max() > (many - more).abs().max()


@pytest.mark.parametrize("method", [hs.methods.eap_ig, hs.methods.edge_patching])
def test_the_handmade_circuit_is_found_edge_by_edge(method):
    """Token -> L0.H0 -> L1.H1 -> logits; everything else scores less than each of the three."""
    model, task = handmade(), handmade_task()
    scores = method(model, task)
    true = {"embedding->L0.H0", "L0.H0->L1.H1", "L1.H1->logits"}
    assert {name for name, _ in scores.top(3)} == true
    values = dict(zip(scores.graph.edges, scores.values, strict=True))
    assert min(values[name] for name in true) > max(value for name, value in values.items() if name not in true)
    curve = hs.sweep(model, task, scores, k=[0, 1, 2, 3, len(scores.graph)])
    np.testing.assert_allclose(curve.explained, [0, 0, 0, 1, 1], atol=1e-4)
    grown = [scores.graph.edges[edge] for edge in scores.ranked(choice="greedy")[:3]]
    assert grown == ["L1.H1->logits", "L0.H0->L1.H1", "embedding->L0.H0"]
    for k, explained in ((2, 0), (3, 1)):
        assert run_circuit(model, task, scores, scores.circuit(k).keep).explained == pytest.approx(explained, abs=1e-4)
    with pytest.raises(hs.InputError, match="top, greedy"):
        hs.sweep(model, task, scores, choice="best")
    with pytest.raises(hs.InputError, match="found 'prompt'"):
        hs.sweep(model, task, scores, ranking="prompt")


def test_patching_an_edge_is_running_the_circuit_without_it(views):
    view = views("qwen3")
    model, graph = view.model, view.graph()
    clean, corrupt, _ = pair()
    texts = [[" ".join(f"w{t}" for t in ids) for ids in side] for side in (clean, corrupt)]
    task = hs.tasks.Task("made", "logit-diff", texts[0], texts[1], clean, corrupt, [[1]] * B, [[2]] * B, "w", 0)
    names = [graph.edges[7], graph.edges[-3]]
    scores = hs.methods.edge_patching(model, task, edges=names)
    tokens = Targets.of(task, list(range(B)), model.device)
    keep = torch.ones(3, len(graph))
    keep[1, 7] = keep[2, -3] = 0
    with torch.no_grad():
        whole, *without = EdgeSession(view, clean, corrupt, tokens, graph).metrics(keep)
    for name, metric in zip(names, without, strict=True):
        assert scores.values[graph.edges.index(name)] == pytest.approx((whole - metric).mean().item(), abs=1e-5)
    with pytest.raises(hs.InputError, match="has no edge"):
        hs.methods.edge_patching(model, task, edges=["L0.H0->nowhere"])


FILL_NAMES = ["zero", "mean", "mean-position"]


def made_task() -> hs.tasks.Task:
    clean, corrupt, _ = pair()
    texts = [[" ".join(f"w{t}" for t in ids) for ids in side] for side in (clean, corrupt)]
    return hs.tasks.Task("made", "logit-diff", texts[0], texts[1], clean, corrupt, [[1]] * B, [[2]] * B, "w", 0)


@pytest.mark.parametrize("fill", FILL_NAMES)
@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_all_edges_are_the_clean_run_for_every_fill(views, name, fill):
    """And none is what the logits make of the fills alone: the same for every prompt."""
    view, task = views(name), made_task()
    graph, tokens = view.graph(), Targets.of(made_task(), list(range(B)), torch.device("cpu"))
    session = EdgeSession(view, *pair()[:2], tokens, graph, fill_WTD=writer_fill(view, task, fill))
    whole, none = session.metrics(torch.stack([torch.ones(len(graph)), torch.zeros(len(graph))]))
    np.testing.assert_allclose(whole, metrics_of(view.model, task.clean_ids, tokens), atol=1e-5, rtol=1e-5)
    np.testing.assert_allclose(none, none[:1].expand(B), atol=1e-6)
    assert (whole - none).abs().max() > 1e-3


@pytest.mark.parametrize("fill", FILL_NAMES)
@pytest.mark.parametrize("name", ["gpt2", "gpt_neox", "llama-gqa", "mistral", "qwen2", "qwen3", "olmo"])
@torch.no_grad()
def test_all_edges_out_of_heads_cut_is_patching_them_with_the_fill(views, name, fill):
    """(Not so behind a norm over all heads: taken out there, a head changes the others' shares.)"""
    view, task = views(name), made_task()
    graph, model = view.graph(), view.model
    tokens = Targets.of(task, list(range(B)), model.device)
    session = EdgeSession(view, *pair()[:2], tokens, graph, fill_WTD=writer_fill(view, task, fill))
    writers = np.array(graph.writers)[graph.ends[0]]
    keep = torch.from_numpy(~np.isin(writers, ["L0.H1", "L1.H2", "L1.H3"])).float()
    mask = torch.ones(model.n_layers, model.n_heads)
    mask[0, 1] = mask[1, 2] = mask[1, 3] = 0
    with hs.patched(model, mask, fill=head_fill(model, task, fill)):
        expected = metrics_of(model, task.clean_ids, tokens)
    np.testing.assert_allclose(session.metrics(keep[None])[0], expected, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_a_reader_that_keeps_nothing_reads_the_fills_and_the_biases(views):
    """GPT-2 with every writer zero: the logits read nothing but the biases of the output projections."""
    view, task = views("gpt2"), made_task()
    session = EdgeSession(view, *pair(), view.graph(), fill_WTD=writer_fill(view, task, "zero"))
    hf = view.model.hf
    biases = sum(block.attn.c_proj.bias for block in hf.transformer.h)
    np.testing.assert_allclose(session.base.final_in[0, 0], biases, atol=1e-6)
    expected = hf.lm_head(hf.transformer.ln_f(biases))
    found = session.metrics(torch.zeros(1, len(view.graph())))[0]
    np.testing.assert_allclose(found, (expected[1] - expected[2]).expand(B), atol=1e-5)


@pytest.mark.parametrize("fill", FILL_NAMES)
@pytest.mark.parametrize("name", ["gpt2", "gpt_neox", "llama-gqa", "olmo2", "gemma3"])
def test_attribution_towards_a_fill_is_the_slope_of_running_the_circuit_so(views, name, fill):
    view, task = views(name), made_task()
    graph, (clean, corrupt, tokens) = view.graph(), pair()
    value = writer_fill(view, task, fill)
    literal = slopes(EdgeSession(view, clean, corrupt, tokens, graph, fill_WTD=value))
    found = edge_attribution(view, graph, clean, corrupt, tokens, fill_WTD=value)
    np.testing.assert_allclose(found.numpy(), literal.numpy(), atol=1e-5 * literal.abs().max().item(), rtol=0)


@pytest.mark.parametrize("fill", ["corrupt", "zero", "mean", "mean-position"])
def test_edge_curves_know_fills_and_baselines(nano, fill):
    task = hs.tasks.ioi(nano.tokenizer, n=12, seed=1)
    task = task.take([i for i in range(12) if len(task.clean_ids[i]) == len(task.clean_ids[0])][:4])
    scores = hs.methods.eap_ig(nano, task, fill=fill, per_prompt=True)
    assert scores.settings["fill"] == fill
    total = len(scores.graph)
    curve = hs.sweep(nano, task, scores, fill=fill, baseline="empty", k=[20, total], redraw=2)
    assert curve.k.tolist() == [0, 20, total]
    assert curve.explained[[0, 2]] == pytest.approx([0, 1], abs=1e-4)
    assert (curve.settings["fill"], curve.settings["baseline"]) == (fill, "empty")
    keep = scores.circuit(20).keep
    one = run_circuit(nano, task, scores, keep, fill=fill, baseline="empty")
    assert one.explained[-1] == pytest.approx(curve.explained[1], abs=1e-4)
    rest = hs.crossfit(nano, task, lambda m, t: hs.methods.eap(m, t, fill="zero"), fill=fill, k=[total])
    assert rest.explained == pytest.approx([1.0], abs=1e-4)


def test_ablating_an_edge_is_running_without_it(nano):
    task = hs.tasks.ioi(nano.tokenizer, n=3, seed=1)
    exact = hs.methods.edge_patching(nano, task, fill="zero", edges=["L1.H0->logits", "embedding->M0"])
    for edge in np.flatnonzero(exact.values):
        keep = np.ones(len(exact.graph), bool)
        keep[edge] = False
        without = run_circuit(nano, task, exact, keep, fill="zero", resamples=0)
        assert exact.values[edge] == pytest.approx((without.clean - without.metrics[0]).mean(), abs=1e-4)
    assert (exact.values != 0).sum() == 2
