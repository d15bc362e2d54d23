"""Where one intervenes: every site and position against plain PyTorch, identities on ten architectures, knocking out
attention, paths, metrics of all kinds, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import torch
from architectures import VOCAB, build
from conftest import word_tokenizer
from safetensors.numpy import save
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

import headscope as hs
from headscope.models.layouts import LAYOUTS, is_parallel
from headscope.report.figures.positions import heat_map
from headscope.running.session import Engine, Session, engine_of
from headscope.running.sites import SITES, edited, recorded, site_of
from headscope.running.targets import Targets, metrics_of
from headscope.tasks import Task
from headscope.tasks.metrics import METRICS

TEN = ["gpt2", "gpt_neox", "llama-gqa", "mistral", "qwen2", "qwen3", "olmo", "olmo2", "gemma2", "gemma3"]
T = 6


@pytest.fixture(scope="module")
def models():
    made: dict[str, hs.Model] = {}

    def get(name: str) -> hs.Model:
        if name not in made:
            made[name] = hs.load(build(name), word_tokenizer())
        return made[name]

    return get


def pairs(n: int = 2, shared: int = 1, metric: Any = "logit-diff") -> Task:
    draw = np.random.default_rng(3)
    clean = draw.integers(30, VOCAB, size=(n, T)).tolist()
    corrupt = [[*ids[:shared], *draw.integers(30, VOCAB, size=T - shared).tolist()] for ids in clean]
    texts = [[" ".join(f"w{token}" for token in ids) for ids in side] for side in (clean, corrupt)]
    return Task("pairs", metric, texts[0], texts[1], clean, corrupt, [[5]] * n, [[7]] * n, "w", None)


def sites(model: hs.Model) -> list[str]:
    return [site for site in SITES if not (site == "resid_mid" and is_parallel(model.hf))]


# The twin: attention written out once more, and hooks on the modules of a block.
EDIT: Callable[[str, int, Tensor], Tensor] = lambda part, layer, value: value  # noqa: E731


def twin_attention(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scaling: float, **_: Any) -> Any:
    share, layer = q.shape[1] // k.shape[1], module.layer_idx
    q, k, v = EDIT("q", layer, q), k.repeat_interleave(share, 1), v.repeat_interleave(share, 1)
    scores = q @ EDIT("k", layer, k).transpose(2, 3) * scaling
    hidden = torch.ones(scores.shape[-2:]).triu(1).bool()
    scores = scores.masked_fill(hidden, -1e9) if mask is None else scores + mask
    pattern = EDIT("pattern", layer, scores.softmax(-1))
    return EDIT("z", layer, pattern @ EDIT("v", layer, v)).transpose(1, 2).contiguous(), pattern


AttentionInterface.register("twin", twin_attention)
AttentionMaskInterface.register("twin", eager_mask)


@contextmanager
def edit_by_hand(hf: Any, site: str, edit: Callable[[int, Tensor], Tensor]) -> Iterator[None]:
    """`edit(layer, value)` at a site of a plain model; values of heads are (B, H, T, W), others (B, T, D)."""
    global EDIT
    row, hooks, before = LAYOUTS[hf.config.model_type], [], {}
    if site in ("q", "k", "v", "pattern", "z"):
        EDIT = lambda part, layer, value: edit(layer, value) if part == site else value  # noqa: E731
    else:
        for layer, block in enumerate(hf.get_submodule(row.layers)):

            def reads(_m: Any, args: tuple, kwargs: dict, layer: int = layer) -> Any:
                stream = args[0] if args else kwargs["hidden_states"]
                before[layer] = stream
                if site != "resid_pre":
                    return None
                stream = edit(layer, stream)
                return ((stream, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": stream})

            def writes(_m: Any, _a: Any, out: Any, layer: int = layer) -> Any:
                value = out[0] if isinstance(out, tuple) else out
                value = (
                    edit(layer, before[layer] + value) - before[layer] if site == "resid_mid" else edit(layer, value)
                )
                return (value, *out[1:]) if isinstance(out, tuple) else value

            hooks.append(block.register_forward_pre_hook(reads, with_kwargs=True))
            name = (row.after_mlp or row.mlp) if site == "mlp_out" else (row.after_attention or row.attention)
            if site != "resid_pre":
                hooks.append(block.get_submodule(name).register_forward_hook(writes))
    try:
        yield
    finally:
        EDIT = lambda part, layer, value: value  # noqa: E731
        for hook in hooks:
            hook.remove()


@torch.no_grad()
def by_hand(hf: Any, task: Task, site: str, layer: int, head: int, position: int) -> np.ndarray:
    """The noising score of one head (or layer) at one position, for each prompt, in two plain runs."""
    clean, corrupt = torch.tensor(task.clean_ids), torch.tensor(task.corrupt_ids)
    kept: dict[int, Tensor] = {}

    def keep(at: int, value: Tensor) -> Tensor:
        kept[at] = value.clone()
        return value

    def put(at: int, value: Tensor) -> Tensor:
        if at == layer:
            value = value.clone()
            place = (slice(None), head, position) if value.ndim == 4 else (slice(None), position)
            value[place] = kept[at][place]
        return value

    def metric(ids: Tensor) -> Tensor:
        logits = hf(ids).logits[:, -1]
        return logits[:, 5] - logits[:, 7]

    before = metric(clean)
    with edit_by_hand(hf, site, keep):
        metric(corrupt)
    with edit_by_hand(hf, site, put):
        return (before - metric(clean)).numpy()


@pytest.mark.parametrize("name", ["gpt2", "llama-gqa", "qwen3"])
def test_heads_against_attention_written_out(models, name: str):
    """q, k, v, pattern and z of some heads at some positions; heads that share k and v have a copy each."""
    task, twin = pairs(), build(name)
    twin.set_attn_implementation("twin")
    for site in ("q", "k", "v", "pattern", "z"):
        found = hs.methods.patching(models(name), task, site=site, positions="each")
        assert found.axes == ["layer", "head", "position"]
        assert found.values.shape == (2, 4, T)
        largest = np.abs(found.values).max()
        assert largest > 1e-3
        for layer, head, position in ((0, 0, 2), (0, 3, T - 1), (1, 1, 3), (1, 2, T - 1), (0, 1, 0)):
            expected = by_hand(twin, task, site, layer, head, position)
            np.testing.assert_allclose(found.per_prompt[:, layer, head, position], expected, atol=1e-4 * largest)


@pytest.mark.parametrize("name", TEN)
def test_streams_against_hooks(models, name: str):
    task, twin = pairs(), build(name)
    for site in ("resid_pre", "attn_out", "mlp_out", "resid_mid"):
        if site not in sites(models(name)):
            continue
        found = hs.methods.patching(models(name), task, site=site, positions="each")
        assert found.axes == ["layer", "position"]
        largest = np.abs(found.values).max()
        assert largest > 1e-3
        for layer, position in ((0, 2), (0, T - 1), (1, 3), (1, T - 1), (len(found.values) - 1, T - 1)):
            expected = by_hand(twin, task, site, layer, 0, position)
            np.testing.assert_allclose(found.per_prompt[:, layer, position], expected, atol=1e-4 * largest)


@pytest.mark.parametrize("name", TEN)
@torch.no_grad()
def test_identities(models, name: str):
    model, task = models(name), pairs()
    targets = Targets.of(task, [0, 1], model.device)
    clean, corrupt = (metrics_of(model, ids, targets).numpy() for ids in (task.clean_ids, task.corrupt_ids))
    stream = hs.methods.patching(model, task, site="resid_pre")
    np.testing.assert_allclose(clean - stream.per_prompt[:, 0], corrupt, atol=1e-4)
    for site in sites(model):
        everywhere = hs.methods.patching(model, task, site=cast(Any, site)).per_prompt
        np.testing.assert_allclose(
            hs.methods.patching(model, task, site=cast(Any, site), positions=range(T)).per_prompt, everywhere, atol=1e-4
        )
    # One position from either end; behind the last difference nothing else is left.
    one = hs.methods.patching(model, task, positions=-1).per_prompt
    assert np.array_equal(one, hs.methods.patching(model, task, positions=T - 1).per_prompt)
    each = hs.methods.patching(model, task, positions="each").per_prompt
    np.testing.assert_allclose(each[..., -1], one, atol=1e-5)
    assert not each[..., 0].any(), "before the first difference"


@pytest.mark.parametrize("name", TEN)
@torch.no_grad()
def test_fast_is_plain_at_every_site(models, name: str):
    """Random masks over several layers, in sessions that run from the middle and in plain ones."""
    model, task = models(name), pairs(shared=2)
    assert engine_of(model).fast
    plainly = replace_reason(Engine(model))
    targets = Targets.of(task, [0, 1], model.device)
    for site in sites(model):
        keep = (torch.rand(4, model.n_layers, site_of(model, site).width) > 0.5).float()
        keep[1, :-1] = 1.0
        found = [
            Session(model, task.clean_ids, targets, other_ids=task.corrupt_ids, site=site, engine=engine).metrics(keep)
            for engine in (engine_of(model), plainly)
        ]
        torch.testing.assert_close(found[0], found[1], atol=1e-4, rtol=1e-4)


def replace_reason(engine: Engine) -> Engine:
    engine.reason = "asked to run plainly"
    return engine


@pytest.mark.parametrize("name", ["gpt2", "llama-gqa", "gemma2", "olmo2"])
def test_attribution_is_the_slope_at_every_site(models, name: str):
    """By autograd through a mask that moves the value a little towards the corrupt one."""
    model, task = models(name), pairs()
    targets = Targets.of(task, [0, 1], model.device)
    for site in sites(model):
        here = site_of(model, site)
        with torch.no_grad(), recorded(model, here.columns) as other:
            metrics_of(model, task.corrupt_ids, targets)
        keep = torch.ones(2, T, model.n_layers, here.width, requires_grad=True)
        slopes = torch.zeros_like(keep)
        for part, columns in here.columns.items():

            def towards(
                value: Tensor, layer: int, part: str = part, columns: slice = columns, keep: Tensor = keep
            ) -> Tensor:
                m = keep[:, :, layer, columns, None]
                return m * value + (1 - m) * other[part][layer]

            with edited(model, part, towards):
                slopes += torch.autograd.grad(metrics_of(model, task.clean_ids, targets).sum(), keep)[0]
        expected = slopes.permute(0, 2, 3, 1).numpy()
        expected = expected if here.axis else expected[:, :, 0]
        each = hs.methods.attribution(model, task, site=cast(Any, site), positions="each")
        np.testing.assert_allclose(each.per_prompt, expected, atol=2e-4)
        whole = hs.methods.attribution(model, task, site=cast(Any, site)).per_prompt
        np.testing.assert_allclose(each.per_prompt.sum(-1), whole, atol=1e-5)
        last = hs.methods.attribution(model, task, site=cast(Any, site), positions=[-1]).per_prompt
        np.testing.assert_allclose(each.per_prompt[..., -1], last, atol=1e-5)
        steps = hs.methods.attribution_ig(model, task, site=cast(Any, site), positions="each", steps=2)
        assert steps.values.shape == each.values.shape


@pytest.mark.parametrize("name", [*TEN, "gpt_oss"])
@torch.no_grad()
def test_a_head_that_is_cut_from_every_key_is_gone(models, name: str):
    model, ids = models(name), torch.tensor(pairs().clean_ids)
    with hs.knocked_out(model, ["L1.H2", (0, 1)]), hs.record(model) as z:
        cut = model.hf(ids).logits
    assert not z[1][:, :, 2].any()
    assert not z[0][:, :, 1].any()
    assert z[1][:, :, 0].any()
    with hs.masked(model, ["L1.H2", "L0.H1"]):
        torch.testing.assert_close(cut, model.hf(ids).logits)


@torch.no_grad()
def test_one_query_is_cut_from_one_key(models):
    """Before the softmax: what is left is the pattern without that key, made to sum to one again."""
    model, ids = models("llama-gqa"), torch.tensor(pairs().clean_ids)
    with hs.record(model, patterns=True) as before:
        model.hf(ids)
    with hs.knocked_out(model, ["L0.H3"], queries=-1, keys=[1, 2]), hs.record(model, patterns=True) as after:
        model.hf(ids)
    expected = before.pattern(0).clone()
    expected[:, 3, -1, 1:3] = 0
    expected[:, 3, -1] /= expected[:, 3, -1].sum(-1, keepdim=True)
    torch.testing.assert_close(after.pattern(0), expected)
    with hs.knocked_out(model, ["L0.H3"], keys=0):
        said = model.hf.generate(ids[:1], max_new_tokens=3, do_sample=False, pad_token_id=0)
        assert torch.equal(model.hf(said[:, :-1]).logits[:, -1].argmax(-1), said[:, -1])
    with pytest.raises(hs.InputError, match="no position 6"), hs.knocked_out(model, ["L0.H3"], keys=6):
        model.hf(ids)


def test_components_are_swept(models):
    model, task = models("llama-gqa"), pairs()
    scores = hs.methods.patching(model, task, site="component")
    assert scores.values.shape == (2, 5)
    np.testing.assert_allclose(scores.values[:, :4], hs.methods.patching(model, task).values, atol=1e-5)
    np.testing.assert_allclose(scores.values[:, 4], hs.methods.patching(model, task, site="mlp_out").values, atol=1e-5)
    assert {name for name, _ in scores.top(10)} >= {"L0.H0", "L1.H3", "M0", "M1"}
    for site, total in (("component", 10), ("mlp_out", 2), ("layer", 2)):
        by = hs.methods.attribution(model, task, site=cast(Any, site))
        curve = hs.sweep(model, task, by, resamples=0)
        assert (curve.k[-1], curve.settings["total"]) == (total, total)
        assert curve.explained[-1] == pytest.approx(1.0, abs=1e-5)
        assert abs(curve.explained[0] - 1) > 1e-3
        for fill in ("mean", "zero"):
            assert hs.methods.ablation(model, task, site=cast(Any, site), fill=fill).values.shape == by.values.shape
    with pytest.raises(hs.InputError, match="score without positions"):
        hs.sweep(model, task, hs.methods.attribution(model, task, positions="each"))


def test_paths_are_edges(models):
    model, task = models("llama-gqa"), pairs()
    for receiver, split in (("L1.H2.q", "qkv"), ("L1.H2", "none"), ("M1", "none"), ("logits", "none")):
        edges = hs.methods.edge_patching(model, task, split=split)
        by_name = dict(zip(edges.graph.edges, edges.values, strict=True))
        found = hs.methods.path_patching(model, task, receivers=receiver)
        for layer, head in np.ndindex(2, 4):
            expected = by_name.get(f"L{layer}.H{head}->{receiver}", 0.0)
            assert found.values[layer, head] == pytest.approx(expected, abs=1e-5)
    assert found.values.any()
    both = hs.methods.path_patching(model, task, receivers=["L1.H0", "logits"], senders=["L0.H1", "M0"])
    assert both.axes == ["layer", "component"]
    assert {tuple(place) for place in np.argwhere(both.values).tolist()} == {(0, 1), (0, 4)}
    apart = hs.methods.path_patching(
        model, task, receivers=["L1.H0.q", "L1.H0.k", "L1.H0.v", "logits"], senders="L0.H1"
    )
    assert apart.values[0, 1] == pytest.approx(both.values[0, 1], abs=1e-5)
    for options, said in (
        ({"receivers": "L7.H0"}, "no receiver 'L7.H0'"),
        ({"receivers": "logits", "senders": ["embedding"]}, "no sender 'embedding'"),
        ({"receivers": "L0.H0"}, "No sender writes before"),
    ):
        with pytest.raises(hs.InputError, match=said):
            hs.methods.path_patching(model, task, **cast(Any, options))


def test_the_record_knows_its_axes(models, tmp_path):
    model, task = models("gpt2"), pairs()
    scores = hs.methods.patching(model, task, positions="each")
    assert scores.tokens == [f"w{token}" for token in task.clean_ids[0]]
    assert hs.Scores.load(scores.save(tmp_path / "scores.safetensors")) == scores
    names = [name for name, _ in scores.top(5)]
    assert len(set(names)) == 5
    layer, head = np.unravel_index(np.abs(scores.values).max(-1).argmax(), (2, 4))
    assert names[0] == f"L{layer}.H{head}"
    with hs.masked(model, names):
        model.hf(torch.tensor(task.clean_ids))
    assert scores.circuit(2).names
    with pytest.raises(hs.InputError, match="by layer and position"):
        hs.methods.attribution(model, task, site="mlp_out", positions="each").circuit(2)


def test_from_a_model_in_memory_to_its_heads():
    """The sentences that a notebook begins with, word for word."""
    hf_model, tokenizer = build("llama-gqa"), word_tokenizer()
    model = hs.load(hf_model, tokenizer)
    task = hs.tasks.pairs(
        tokenizer, clean=["w5 w6 w7 w8"], corrupt=["w5 w9 w7 w8"], answers=[[" w10"]], wrong=[[" w11"]]
    )
    scores = hs.methods.patching(model, task, positions="each")
    assert scores.values.shape == (model.n_layers, model.n_heads, 4)
    frame = scores.to_pandas()
    assert list(frame.columns[3:]) == ["rank", "name", "layer", "head", "position", "token", "score"]
    assert len(frame) == scores.values.size
    best = frame.iloc[0]
    assert best.score == scores.values[best.layer, best["head"], best.position]
    assert (best["name"], best.token) == (f"L{best.layer}.H{best['head']}", scores.tokens[best.position])
    assert scores.plot().axes
    assert "<img" in scores._repr_html_()
    with hs.masked(model, [name for name, _ in scores.top(5)]):
        assert not torch.equal(hf_model(torch.tensor(task.clean_ids)).logits, torch.zeros(1))
    for site in ("mlp_out", "component", "layer"):
        other = hs.methods.attribution(model, task, site=cast(Any, site))
        assert len(other.to_pandas()) == other.values.size
        assert other.plot().axes
        assert "<img" in other._repr_html_()


def test_a_file_of_an_older_version_still_loads(tmp_path):
    arrays = {"values": np.ones((2, 3), np.float32), "per_prompt": np.ones((1, 2, 3), np.float32)}
    fields = {"model": "m", "task": "t", "method": "patching", "settings": {"n": 1}}
    header = {"headscope": json.dumps({"record": "Scores", "format": 1, "fields": fields})}
    (tmp_path / "old.safetensors").write_bytes(save(arrays, metadata=header))
    old = hs.Scores.load(tmp_path / "old.safetensors")
    assert old.axes == ["layer", "head"]
    assert old.top(1) == [("L0.H0", 1.0)]


def test_heat_maps(models):
    model, task = models("llama-gqa"), pairs()
    for site in ("z", "component", "mlp_out"):
        for positions in (None, "each") if site != "z" else ("each",):
            figure = heat_map(hs.methods.attribution(model, task, site=cast(Any, site), positions=positions), rows=5)
            figure.draw_without_rendering()
            axes = figure.axes[0]
            if positions == "each":
                assert [tick.get_text() for tick in axes.get_xticklabels()] == [f"w{i}" for i in task.clean_ids[0]]
                assert len(axes.get_yticklabels()) == (2 if site == "mlp_out" else 5)


@torch.no_grad()
def test_every_metric_is_a_callable_on_logits(models):
    """Patching under each built-in metric is the difference of that metric worked out from plain logits."""
    model = models("gpt2")
    for name in METRICS:
        task = pairs(metric=name)
        targets = Targets.of(task, [0, 1], model.device)
        logits = model.hf(torch.tensor(task.clean_ids)).logits[:, -1:]
        with hs.record(model) as z:
            model.hf(torch.tensor(task.corrupt_ids))
        keep = torch.ones(2, 4)
        keep[1, 2] = 0
        with hs.patched(model, keep, fill=z):
            other = model.hf(torch.tensor(task.clean_ids)).logits[:, -1:]
        p, q = logits.log_softmax(-1)[:, 0], other.log_softmax(-1)[:, 0]
        expected = {
            "logit-diff": (p[:, 5] - p[:, 7]) - (q[:, 5] - q[:, 7]),
            "prob-diff": (p[:, 5].exp() - p[:, 7].exp()) - (q[:, 5].exp() - q[:, 7].exp()),
            "log-prob": p[:, 5] - q[:, 5],
            "kl": (p.exp() * (p - q)).sum(-1),
            "accuracy": (p[:, 5] > p[:, 7]).float() - (q[:, 5] > q[:, 7]).float(),
        }[name]
        for metric in (name, METRICS[name]):
            found = hs.methods.patching(model, replace(task, metric=metric)).per_prompt[:, 1, 2]
            np.testing.assert_allclose(found, expected.numpy(), atol=1e-5)
        assert hs.check(model, task).accuracy == pytest.approx(float((p[:, 5] > p[:, 7]).float().mean())) or name in (
            "log-prob", "kl",
        )  # fmt: skip
        assert len(targets) == 2


def test_metrics_of_ones_own(models):
    model, task = models("gpt2"), pairs()
    rows = [{**dict(zip(("clean", "corrupt"), texts, strict=True)), "right": 5, "wrong_token": 7}
            for texts in zip(task.clean, task.corrupt, strict=True)]  # fmt: skip

    def own(logits: Tensor, asked: Any) -> Tensor:
        return torch.stack([one[-1, row["right"]] - one[-1, row["wrong_token"]]
                            for one, row in zip(logits, asked.fields, strict=True)])  # fmt: skip

    plain = hs.methods.attribution(model, task).values
    by_fields = hs.tasks.pairs(word_tokenizer(), rows, metric=own)
    np.testing.assert_allclose(hs.methods.attribution(model, by_fields).values, plain, atol=1e-5)
    alone = replace(task, metric=lambda logits: logits[:, -1, 5] - logits[:, -1, 7])
    np.testing.assert_allclose(hs.methods.attribution(model, alone, positions="each").values.sum(-1), plain, atol=1e-5)
    bad: list[tuple[Any, str]] = [
        (lambda logits: logits[:, -1, :2], r"expected a tensor with a number per prompt, \(2,\), found"),
        (lambda logits: logits[:, -1, 5] * float("nan"), "expected finite numbers, found nan"),
        (lambda logits: logits[:, -1, 5].detach(), "has no gradient"),
        (lambda logits: logits.nothing, "fails: AttributeError"),
        ("accuracy", "accuracy has no gradient"),
    ]
    for metric, said in bad:
        with pytest.raises(hs.InputError, match=said):
            hs.methods.attribution(model, replace(task, metric=metric))


def test_what_is_refused(models):
    model, task = models("gpt2"), pairs()
    short = replace(task, clean_ids=[task.clean_ids[0], task.clean_ids[1][:4]],
                    corrupt_ids=[task.corrupt_ids[0], task.corrupt_ids[1][:4]])  # fmt: skip
    cases: list[tuple[hs.Model, Task, dict[str, Any], str]] = [
        (model, task, {"positions": T}, "no position 6: the shortest prompt of pairs has 6 tokens"),
        (model, task, {"positions": [0, -7]}, "no position -7"),
        (model, short, {"positions": 4}, "no position 4"),
        (model, short, {"positions": "each"}, "needs prompts of one length; those of pairs have 4 to 6"),
        (model, task, {"positions": "all"}, 'positions is None, "each", a number or several'),
        (model, task, {"positions": 1.5}, 'positions is None, "each", a number or several'),
        (model, task, {"site": "head"}, "Unknown site 'head'. Known: z, q"),
        (models("gpt_neox"), task, {"site": "resid_mid"}, "has no resid_mid"),
        (models("gptj"), task, {"site": "q"}, "out of reach on gptj"),
        (models("gptj"), task, {"site": "mlp_out"}, "has no row for it"),
    ]
    for one, asked, options, said in cases:
        for method in (hs.methods.patching, hs.methods.attribution):
            with pytest.raises(hs.InputError, match=said):
                method(one, asked, **options)
    for heads, said in ((["L9.H6"], "no head L9.H6: gpt2 has layers 0 to 1"), (["nine"], "does not name a head")):
        with pytest.raises(hs.InputError, match=said), hs.masked(model, heads):
            pass
    with pytest.raises(hs.InputError, match="A pattern has no mean"):
        hs.methods.ablation(model, task, site="pattern")
    found = hs.methods.patching(model, short, positions=-1)
    assert found.settings["positions"] == [-1]
