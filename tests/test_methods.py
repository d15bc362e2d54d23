"""Scoring methods: a circuit known by hand is found, and the formulas hold against literal ones."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest
import torch
from handmade import CIRCUIT, handmade, handmade_task

import headscope as hs
from headscope.methods import METHODS
from headscope.models.attention import install
from headscope.models.sparse_gate import CONFIG_KEY, Gates, deciding, straight_through
from headscope.running.targets import Targets, metrics_of

FINDERS = [(name, {}) for name in METHODS if name != "random"] + [
    ("patching", {"direction": "denoising"}),
    ("ablation", {"fill": "zero"}),
    ("attribution-ig", {"steps": 20}),
]


@pytest.fixture(scope="module")
def model() -> hs.Model:
    return handmade()


@pytest.mark.parametrize(("name", "options"), FINDERS)
def test_the_handmade_circuit_is_found(model, name, options):
    task = handmade_task()
    scores = METHODS[name](model, task, **options)
    assert set(scores.ranked()[:2]) == CIRCUIT
    inside = [abs(scores.values[head]) for head in CIRCUIT]
    outside = [abs(scores.values[head]) for head in [(0, 1), (1, 0)]]
    assert min(inside) > 4 * max(outside)
    assert scores.per_prompt.shape == (2, 2, 2)
    np.testing.assert_allclose(scores.values, scores.per_prompt.mean(0), rtol=1e-5, atol=1e-6)
    assert hs.check(model, task).accuracy == 1.0


def test_patching_of_the_handmade_circuit_by_hand(model):
    """Each of the two heads carries the whole difference, the two others nothing."""
    task = handmade_task()
    found = hs.check(model, task)
    assert found.corrupt_metric == pytest.approx(-found.metric, abs=1e-5)
    whole = found.metric - found.corrupt_metric
    scores = hs.methods.patching(model, task)
    np.testing.assert_allclose(scores.values, [[whole, 0], [0, whole]], atol=1e-5)
    # The other way round neither head is enough alone to bring the answer back, but the second one is.
    back = hs.methods.patching(model, task, direction="denoising")
    np.testing.assert_allclose(back.values, [[whole, 0], [0, whole]], atol=1e-5)
    curve = hs.sweep(model, task, scores)
    np.testing.assert_allclose(curve.explained, [0, 0, 1, 1, 1], atol=1e-5)


def test_random_is_seeded_and_knows_nothing(model):
    task = handmade_task()
    first, again, other = (hs.methods.random(model, task, seed=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first.values, again.values)
    assert not np.array_equal(first.values, other.values)


def test_attribution_is_the_slope_of_patching(nano):
    """Moving z a little towards the corrupt value changes the metric by the attribution score times that little."""
    task = hs.tasks.ioi(nano.tokenizer, n=6, seed=1)
    scores = hs.methods.attribution(nano, task)
    length = len(task.clean_ids[0])
    rows = [i for i in range(len(task)) if len(task.clean_ids[i]) == length]
    tokens = Targets.of(task, rows, nano.device)
    clean, corrupt = ([ids[i] for i in rows] for ids in (task.clean_ids, task.corrupt_ids))
    with torch.no_grad(), hs.record(nano) as z:
        nano.hf(torch.tensor(corrupt))
    for layer, head in [(0, 1), (2, 1), (3, 3)]:
        values = []
        for step in (0.02, -0.02):
            keep = torch.ones(nano.n_layers, nano.n_heads)
            keep[layer, head] -= step
            with torch.no_grad(), hs.patched(nano, keep, fill=z):
                values.append(metrics_of(nano, clean, tokens))
        slope = (values[1] - values[0]) / 0.04
        np.testing.assert_allclose(scores.per_prompt[rows, layer, head], slope.numpy(), atol=2e-3, rtol=2e-2)


def test_attribution_towards_zero_is_the_gradient_of_the_gate(nano):
    task = hs.tasks.ioi(nano.tokenizer, n=5, seed=1)
    towards, gate = hs.methods.attribution(nano, task, fill="zero"), hs.methods.gradient(nano, task)
    np.testing.assert_allclose(towards.per_prompt, gate.per_prompt, atol=1e-5)
    assert towards.settings["fill"] == "zero"


@pytest.mark.parametrize("method", [hs.methods.attribution, hs.methods.attribution_ig])
def test_attributions_towards_two_fills_differ_by_what_lies_between(nano, method):
    """Scores are linear in the fill: towards mean less towards zero is the gradient times the mean, for every head."""
    task = hs.tasks.ioi(nano.tokenizer, n=5, seed=1)
    mean, zero = (method(nano, task, fill=fill).per_prompt for fill in ("mean", "zero"))
    own = hs.methods.ablation(nano, task, fill="mean").per_prompt
    assert np.abs(mean - zero).max() > 1e-3
    # And it follows exact ablation with the same fill.
    assert np.corrcoef(mean.mean(0).ravel(), own.mean(0).ravel())[0, 1] > 0.6


def test_gradient_is_the_gradient_of_the_gate(nano):
    task = hs.tasks.greater_than(nano.tokenizer, n=5, seed=1)
    scores = hs.methods.gradient(nano, task)
    for row in range(len(task)):
        gate = torch.ones(nano.n_layers, nano.n_heads, requires_grad=True)
        with hs.gated(nano, gate):
            metric = metrics_of(nano, [task.clean_ids[row]], Targets.of(task, [row], nano.device))
        (slope,) = torch.autograd.grad(metric.sum(), gate)
        np.testing.assert_allclose(scores.per_prompt[row], slope.numpy(), atol=1e-5, rtol=1e-4)


def test_integrated_gradients_between_equal_prompts_change_nothing_and_many_steps_converge(nano):
    task = hs.tasks.ioi(nano.tokenizer, n=4, seed=2)
    few, many, more = (hs.methods.attribution_ig(nano, task, steps=s).values for s in (1, 40, 80))
    assert np.abs(many - more).max() < 0.02 * np.abs(more).max()
    assert np.abs(few - more).max() > np.abs(many - more).max()


def test_unknown_options_are_told(nano):
    task = hs.tasks.ioi(nano.tokenizer, n=2)
    with pytest.raises(hs.InputError, match="noising, denoising"):
        hs.methods.patching(nano, task, direction="sideways")  # pyright: ignore[reportArgumentType]
    with pytest.raises(hs.InputError, match="use patching"):
        hs.methods.ablation(nano, task, fill="corrupt")  # pyright: ignore[reportArgumentType]
    with pytest.raises(hs.InputError, match="at least 1 step"):
        hs.methods.attribution_ig(nano, task, steps=0)


def gated(nano: hs.Model, bias: float) -> hs.Model:
    """nano with gates of that bias."""
    hf = deepcopy(nano.hf)
    setattr(hf.config, CONFIG_KEY, {"bias": bias})
    return hs.Model("gated", hf, nano.tokenizer, install(hf))


ATTRIBUTIONS = [hs.methods.attribution, hs.methods.attribution_ig, hs.methods.eap, hs.methods.eap_ig]


@pytest.mark.parametrize("method", ATTRIBUTIONS)
def test_gradients_see_gates_open_and_close(nano, method):
    """Far from every threshold, and at a temperature at which a sigmoid is flat, a straight-through gate is a hard one;
    near its threshold it is not. On a dense model there is nothing to choose."""
    task = hs.tasks.ioi(nano.tokenizer, n=3, seed=1)
    near, far = gated(nano, 0.5), gated(nano, 1e3)
    hard = method(near, task, gates="hard")
    straight, flat = (method(near, task, gates="straight-through", temperature=t) for t in (1.0, 1e5))
    scale = np.abs(hard.values).max()
    assert np.abs(straight.values - hard.values).max() > 0.01 * scale
    np.testing.assert_allclose(flat.values, hard.values, atol=1e-3 * scale)
    assert (straight.settings["gates"], straight.settings["temperature"]) == ("straight-through", 1.0)
    open_, dense = method(far, task, gates="straight-through"), method(nano, task, gates="straight-through")
    np.testing.assert_allclose(open_.values, dense.values, atol=1e-4 * np.abs(dense.values).max())
    assert "gates" not in dense.settings


def test_straight_through_gates_give_the_values_of_hard_ones(nano):
    model = gated(nano, 0.0)
    ids = model.batch(hs.tasks.ioi(nano.tokenizer, n=1).clean_ids)["input_ids"]
    with torch.no_grad():
        hard = model.hf(input_ids=ids).logits
        with straight_through(0.5):
            torch.testing.assert_close(model.hf(input_ids=ids).logits, hard)
        with deciding(Gates("open")), straight_through(0.5):
            torch.testing.assert_close(model.hf(input_ids=ids).logits, nano.hf(input_ids=ids).logits)
        assert (hard - nano.hf(input_ids=ids).logits).abs().max() > 1e-3


def test_unknown_gates_are_told(nano):
    with pytest.raises(hs.InputError, match="hard, straight-through"):
        hs.methods.eap(nano, hs.tasks.ioi(nano.tokenizer, n=2), gates="soft")  # pyright: ignore[reportArgumentType]
    with pytest.raises(hs.InputError, match="above 0"):
        hs.methods.attribution(nano, hs.tasks.ioi(nano.tokenizer, n=2), temperature=0)
