"""Curves and multipliers: ends, ranking, intervals, and the arithmetic by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import headscope as hs
from headscope.records import (
    Curve,
    Multipliers,
    Needed,
    Scores,
    area_multiplier,
    crossing,
    multipliers,
    needed,
    resampled,
)
from headscope.running.targets import Targets, metrics_of
from headscope.sweeps import grid, random_band


@pytest.fixture(scope="module")
def task(nano: hs.Model) -> hs.tasks.Task:
    return hs.tasks.ioi(nano.tokenizer, n=12, seed=4)


@pytest.fixture(scope="module")
def scores(nano: hs.Model, task) -> Scores:
    return hs.methods.patching(nano, task)


@pytest.mark.parametrize("fill", ["corrupt", "mean", "zero"])
@pytest.mark.parametrize("ranking", ["task", "prompt"])
def test_all_heads_explain_everything(nano, task, scores, fill, ranking):
    curve = hs.sweep(nano, task, scores, fill=fill, ranking=ranking)
    assert curve.k.tolist() == list(range(nano.n_layers * nano.n_heads + 1))
    assert curve.explained[-1] == pytest.approx(1.0, abs=1e-5)
    assert (curve.low <= curve.explained + 1e-9).all()
    assert (curve.high >= curve.explained - 1e-9).all()


@torch.no_grad()
def test_no_heads_is_what_the_direct_path_gives(nano, task, scores):
    curve = hs.sweep(nano, task, scores)
    nothing = torch.zeros(nano.n_layers, nano.n_heads)
    metrics = []
    for row in range(len(task)):
        tokens = Targets.of(task, [row], nano.device)
        with hs.record(nano) as z:
            corrupt = metrics_of(nano, [task.corrupt_ids[row]], tokens)
        with hs.patched(nano, nothing, fill=z):
            direct = metrics_of(nano, [task.clean_ids[row]], tokens)
        metrics.append((direct.item(), corrupt.item(), metrics_of(nano, [task.clean_ids[row]], tokens).item()))
    direct, corrupt, clean = np.mean(metrics, axis=0)
    assert curve.explained[0] == pytest.approx((direct - corrupt) / (clean - corrupt), abs=1e-5)


@pytest.mark.parametrize("signed", [False, True])
@torch.no_grad()
def test_a_ranking_per_prompt_keeps_each_prompts_own_heads(nano, task, scores, signed):
    k = 5
    curve = hs.sweep(nano, task, scores, ranking="prompt", signed=signed, k=[k])
    for row in range(len(task)):
        values = scores.per_prompt[row].flatten()
        best = np.argsort(-(values if signed else np.abs(values)), kind="stable")[:k]
        keep = torch.zeros(nano.n_layers * nano.n_heads)
        keep[best.tolist()] = 1
        tokens = Targets.of(task, [row], nano.device)
        with hs.record(nano) as z:
            nano.hf(torch.tensor([task.corrupt_ids[row]]))
        with hs.patched(nano, keep.view(nano.n_layers, nano.n_heads), fill=z):
            expected = metrics_of(nano, [task.clean_ids[row]], tokens).item()
        assert curve.metrics[0, row] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("fill", ["corrupt", "zero", "mean-position"])
def test_relative_to_the_empty_circuit_a_curve_goes_from_0_to_1(nano, task, scores, fill):
    rows = [i for i in range(len(task)) if len(task.clean_ids[i]) == len(task.clean_ids[0])]
    task = task.take(rows)
    curve = hs.sweep(nano, task, scores, fill=fill, baseline="empty", k=[3, 16])
    assert curve.k.tolist() == [0, 3, 16], "the empty circuit is among the points"
    assert curve.explained[[0, 2]] == pytest.approx([0.0, 1.0], abs=1e-5)
    assert curve.low[0] == curve.high[0] == 0.0
    plain = hs.sweep(nano, task, scores, fill=fill, k=[0, 3, 16])
    np.testing.assert_array_equal(curve.metrics, plain.metrics)
    start = plain.explained[0]
    assert curve.explained == pytest.approx((plain.explained - start) / (plain.explained[2] - start), abs=1e-9)
    assert curve.settings["baseline"] == "empty"


@torch.no_grad()
def test_a_mean_per_position_is_the_mean_of_the_recorded_runs(nano, task, scores):
    rows = [i for i in range(len(task)) if len(task.clean_ids[i]) == len(task.clean_ids[0])]
    task = task.take(rows)
    with hs.record(nano) as z:
        nano.hf(torch.tensor(task.clean_ids))
    means = [z[layer].mean(0, keepdim=True) for layer in range(nano.n_layers)]
    curve = hs.sweep(nano, task, scores, fill="mean-position", k=[4])
    keep = torch.zeros(nano.n_layers, nano.n_heads)
    for layer, head in scores.ranked()[:4]:
        keep[layer, head] = 1
    tokens = Targets.of(task, list(range(len(task))), nano.device)
    with hs.patched(nano, keep, fill=means):
        expected = metrics_of(nano, task.clean_ids, tokens)
    np.testing.assert_allclose(curve.metrics[0], expected.numpy(), atol=1e-5)


def test_scores_of_other_prompts_rank_these(nano, task, scores):
    first, rest = task.take(range(5)), task.take(range(5, 12))
    assert hs.sweep(nano, task, scores, k=[4]).settings["scored_on"] == "the same prompts"
    other = hs.methods.patching(nano, first)
    curve = hs.sweep(nano, rest, other)
    assert curve.settings["scored_on"] == "other prompts"
    assert curve.metrics.shape[1] == 7
    # The ranking is that of the five, whichever prompts are run.
    again = hs.sweep(nano, task, other)
    np.testing.assert_allclose(again.metrics[:, 5:], curve.metrics, atol=1e-5)


def test_crossfit_judges_every_prompt_by_the_other_half(nano, task):
    curve = hs.crossfit(nano, task, hs.methods.attribution, fill="zero", baseline="empty", seed=3)
    assert curve.half is not None
    assert sorted(curve.half) == [0] * 6 + [1] * 6
    assert curve.settings["scored_on"] == "the other half"
    for one in (0, 1):
        mine, others = (task.take(np.flatnonzero(curve.half == h).tolist()) for h in (one, 1 - one))
        expected = hs.sweep(nano, mine, hs.methods.attribution(nano, others), fill="zero")
        np.testing.assert_allclose(curve.metrics[:, curve.half == one], expected.metrics, atol=1e-6)
    assert curve.explained[[0, -1]] == pytest.approx([0, 1], abs=1e-5)
    assert all((curve.half[rows] == 0).sum() == 6 for rows in resampled(12, 20, 0, curve.half))
    assert hs.multiplier(curve, curve).value == 1.0


def test_a_ranking_drawn_again_is_the_sweep_of_the_drawn_scores(nano, task, scores):
    curve = hs.sweep(nano, task, scores, redraw=4, seed=7)
    plain = hs.sweep(nano, task, scores, seed=7)
    np.testing.assert_array_equal(curve.explained, plain.explained)
    assert curve.drawn is not None
    for drawn, rows in zip(curve.drawn, resampled(12, 4, 7), strict=True):
        again = replace(scores, values=scores.per_prompt[rows].mean(0))
        np.testing.assert_allclose(hs.sweep(nano, task, again).effect(rows), drawn, atol=1e-5)
    np.testing.assert_array_equal(curve.effects(1000, 0), curve.drawn)
    assert hs.multiplier(curve, plain).reached in (0.25, 0.5, 0.75, 1.0)


def test_curves_with_halves_and_draws_are_records(nano, task, scores, tmp_path):
    for curve in (
        hs.sweep(nano, task, scores, redraw=2, k=[0, 4]),
        hs.crossfit(nano, task, hs.methods.random, k=[0, 4]),
    ):
        again = Curve.load(curve.save(tmp_path / "curve.safetensors"))
        for name in ("half", "drawn", "metrics"):
            np.testing.assert_array_equal(getattr(again, name), getattr(curve, name))


def test_patching_beats_random(nano, task, scores):
    curve, band = hs.sweep(nano, task, scores), random_band(nano, task, draws=3)
    assert curve.area > band.area
    assert band.explained[-1] == pytest.approx(1.0, abs=1e-5)
    assert (band.low <= band.high).all()


def made(k: list[int], explained: list[float], prompts: int = 10) -> Curve:
    """A curve with the given values: every prompt alike, clean 1 and corrupt 0."""
    values = np.array(explained, dtype=float)
    metrics = np.repeat(values[:, None], prompts, axis=1)
    scores = Scores("m", "t", "made", np.zeros((1, max(k))), np.zeros((prompts, 1, max(k))))
    return Curve.of(
        scores, np.array(k), metrics, np.ones(prompts), np.zeros(prompts), resamples=50, seed=0, ranking="task"
    )


def test_multiplier_by_hand():
    dense = made([0, 10, 20, 30], [0.0, 0.5, 0.8, 1.0])  # reaches 0.9 at 25
    sparse = made([0, 5, 10, 30], [0.0, 0.7, 1.1, 1.0])  # reaches 0.9 at 7.5
    found = hs.multiplier(dense, sparse)
    assert (found.dense_k, found.sparse_k) == (pytest.approx(25), pytest.approx(7.5))
    assert found.value == pytest.approx(25 / 7.5)
    assert (found.low, found.high) == (None, None), "equal prompts tell nothing of their spread"
    assert str(found) == "3.33x (no interval: all prompts are equal)"
    assert hs.multiplier(sparse, dense).value == pytest.approx(7.5 / 25)


def test_multiplier_is_honest():
    dense = made([0, 10, 20, 30], [0.0, 0.5, 0.8, 0.85])
    sparse = made([0, 5, 10, 30], [0.0, 0.95, 0.6, 1.0])
    missing = hs.multiplier(dense, sparse)
    assert missing.value is None
    assert "not reached" in str(missing)
    assert "peaks at 0.85" in missing.note
    assert "dips below 0.9 again" in missing.note
    assert hs.multiplier(sparse, sparse).value == 1.0


def test_intervals_widen_with_the_spread_of_prompts():
    even = made([0, 10, 20], [0.0, 0.5, 1.0])
    noise = np.random.default_rng(0).normal(0, 0.4, size=even.metrics.shape)
    noise[-1] = 0
    spread = Curve.of(
        Scores("m", "t", "made", np.zeros((1, 20)), np.zeros((10, 1, 20))), even.k, even.metrics + noise, even.clean,
        even.corrupt, resamples=400, seed=0, ranking="task",
    )  # fmt: skip
    assert np.isnan(even.high - even.low).all(), "all prompts are equal"
    assert (spread.high - spread.low)[1] > 0.2
    ratio = hs.multiplier(spread, replace(even), threshold=0.4)
    assert ratio.low is not None
    assert ratio.high is not None
    assert ratio.value is not None
    assert ratio.low < ratio.value < ratio.high


def halves() -> Curve:
    """Of 40 prompts half need 10 heads of 20, half all 20: over prompts, the curve rises twice."""
    k = np.array([0, 10, 20])
    metrics = np.repeat([[0.0, 1.0, 1.0], [0.0, 0.0, 1.0]], 20, axis=0).T
    scores = Scores("m", "t", "made", np.zeros((1, 20)), np.zeros((40, 1, 20)))
    return Curve.of(scores, k, metrics, np.ones(40), np.zeros(40), resamples=0, seed=0, ranking="task")


def test_heads_needed_by_hand():
    """If a share s of the prompts needs only 10, the curve is s there, and 0.75 at 10 + 10 (0.75 - s) / (1 - s)."""
    found = needed(halves(), threshold=0.75, resamples=2000)
    assert found.k == pytest.approx(15)
    # A share of 40 draws: 95 % of them lie between 0.35 and 0.65.
    assert found.low is not None
    assert found.high is not None
    assert found.low == pytest.approx(10 + 10 * 0.10 / 0.35, abs=0.6)
    assert found.high == pytest.approx(10 + 10 * 0.40 / 0.65, abs=0.3)
    assert str(found) == f"15.0 ({found.low:.1f}-{found.high:.1f})"
    ratio = hs.multiplier(halves(), made([0, 10], [0.0, 1.0], prompts=40), threshold=0.75, resamples=2000)
    assert ratio.low == pytest.approx(found.low / 7.5, rel=0.02)
    assert ratio.high == pytest.approx(found.high / 7.5, rel=0.02)


def test_what_is_never_reached_has_no_number():
    low = made([0, 10], [0.0, 0.5])
    assert replace(needed(low), note="") == Needed(None, None, None)
    assert str(needed(low)) == "not reached"
    # Reached by all prompts together, but not by every draw of them.
    curve = replace(halves(), k=np.array([0, 10]), metrics=halves().metrics[:2], explained=halves().explained[:2])
    often = needed(curve, threshold=0.5)
    assert often.k == pytest.approx(10)
    assert often.low is not None
    assert often.high is None
    assert str(often).endswith("-never)")
    assert str(Needed(1234.4, 1200.0, 1301.0)) == "1,234 (1,200-1,301)"


def test_the_multiplier_over_thresholds_is_that_at_each(nano, task, scores):
    dense = made([0, 10, 20, 30], [0.0, 0.5, 0.8, 1.0])
    sparse = made([0, 5, 10, 30], [0.0, 0.7, 0.95, 0.95])
    found = multipliers(dense, sparse, resamples=50)
    assert (found.thresholds[0], found.thresholds[-1]) == (0.5, 0.98)
    for threshold, value, low in zip(found.thresholds, found.values, found.low, strict=True):
        one = hs.multiplier(dense, sparse, threshold=threshold, resamples=50)
        assert (one.value is None) == (threshold > 0.95) == bool(np.isnan(value))
        if one.value is not None:
            assert value == pytest.approx(one.value)
            assert (one.low is None) == bool(np.isnan(low))
    real = hs.sweep(nano, task, scores)
    spread = multipliers(real, hs.sweep(nano, task, scores, signed=True), resamples=30)
    one = hs.multiplier(real, hs.sweep(nano, task, scores, signed=True), threshold=0.7, resamples=30)
    at = list(spread.thresholds).index(0.7)
    assert [spread.values[at], spread.low[at], spread.high[at]] == pytest.approx([one.value, one.low, one.high])


def test_multipliers_are_a_record(tmp_path):
    found = multipliers(made([0, 10], [0.0, 1.0]), made([0, 5], [0.0, 0.9]), resamples=5)
    again = Multipliers.load(found.save(tmp_path / "m.safetensors"))
    np.testing.assert_array_equal(again.values, found.values)
    assert (again.dense, again.stays) == (found.dense, False)


def test_where_a_curve_stays_by_hand():
    """0.95 at 5, down to 0.6 at 10, and 1.0 at 30: it stays above 0.9 from 10 + 20 * 0.3 / 0.4 = 25."""
    curve = made([0, 5, 10, 30], [0.0, 0.95, 0.6, 1.0])
    assert needed(curve).k == pytest.approx(5 * 0.9 / 0.95)
    assert needed(curve, stays=True).k == pytest.approx(25)
    assert crossing(curve.k, curve.explained, 0.0, stays=True) == 0.0
    steady = made([0, 10], [0.0, 1.0])  # 9, whichever way
    assert hs.multiplier(curve, steady, stays=True).value == pytest.approx(25 / 9)
    assert "dips" not in hs.multiplier(curve, steady, stays=True).note
    falls = made([0, 5, 10], [0.0, 0.95, 0.6])
    assert replace(needed(falls, stays=True), note="") == Needed(None, None, None)
    assert "ends at 0.60" in str(hs.multiplier(falls, steady, stays=True))


def test_areas_over_log_k_by_hand():
    """From 0 at k = 1 straight to 1 at 10: the area above is the integral of (10 - k) / 9 over ln k, 10/9 ln 10 - 1."""
    rises = made([1, 10], [0.0, 1.0])
    assert rises.log_area == pytest.approx(10 / 9 * np.log(10) - 1)
    # What is above 1 or below 0 is cut off, and a point at 0 is seen from k = 1 on.
    assert made([0, 1, 10, 20], [-3.0, -1.0, 1.0, 1.5]).log_area == pytest.approx(rises.log_area)
    assert made([0, 10], [0.0, 1.0]).log_area == pytest.approx(np.log(10) - 0.9)
    # The same curve with every k doubled rises later by a factor of two, at every threshold but where k counts as 1.
    later = made([2, 20], [0.0, 1.0])
    assert area_multiplier(made([1, 2, 20], [0.0, 0.0, 1.0]), rises).value == pytest.approx(2.0)
    assert later.log_area == pytest.approx(rises.log_area), "without its beginning a curve is counted from its first k"


def test_the_area_multiplier_is_the_geometric_mean_over_thresholds():
    dense = made([0, 4, 10, 20, 30], [0.0, 0.1, 0.5, 0.8, 1.0])
    sparse = made([0, 2, 5, 10, 30], [0.0, 0.2, 0.7, 0.97, 1.0])
    every = tuple((np.arange(20000) + 0.5) / 20000)
    ratios = multipliers(dense, sparse, thresholds=every, resamples=0).values
    found = area_multiplier(dense, sparse, resamples=20)
    assert found.value == pytest.approx(np.exp(np.log(ratios).mean()), rel=1e-4)
    assert found.threshold is None
    assert (found.low, found.high, found.reached) == (None, None, 1.0)
    assert "ends at 0.85" in area_multiplier(made([0, 10], [0.0, 0.85]), sparse).note


def test_areas_by_hand():
    line = made([0, 50, 100], [0.0, 0.5, 1.0])
    assert line.area == pytest.approx(0.5)
    shares = np.array([0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0])
    assert line.cpr == pytest.approx(np.trapezoid(shares, shares))
    assert line.cmd == pytest.approx(np.trapezoid(1 - shares, shares))


def test_crossing_and_grid():
    k, values = np.array([0, 1, 2]), np.array([0.95, 0.2, 1.0])
    assert crossing(k, values, 0.9) == 0.0
    assert crossing(k, values, 1.5) is None
    assert grid(5) == [0, 1, 2, 3, 4, 5]
    large = grid(1024)
    assert large[:12] == list(range(12))
    assert large[-1] == 1024
    assert len(large) < 80
    assert sorted(set(large)) == large


def test_bad_requests_are_told(nano, task, scores):
    with pytest.raises(hs.InputError, match="task, prompt"):
        hs.sweep(nano, task, scores, ranking="both")
    with pytest.raises(hs.InputError, match="corrupt, mean, zero"):
        hs.sweep(nano, task, scores, fill="noise")
    with pytest.raises(hs.InputError, match="0 to 16 heads"):
        hs.sweep(nano, task, scores, k=[0, 17])
    with pytest.raises(hs.InputError, match="chosen by rank alone"):
        hs.sweep(nano, task, scores, choice="greedy")
    with pytest.raises(hs.InputError, match="Score this model on this task"):
        hs.sweep(nano, task.take(slice(0, 3)), scores, ranking="prompt")
    with pytest.raises(hs.InputError, match="Score this model on this task"):
        hs.sweep(nano, task, replace(scores, values=scores.values[:2]))
    with pytest.raises(hs.InputError, match="corrupt, empty"):
        hs.sweep(nano, task, scores, baseline="nothing")
    with pytest.raises(hs.InputError, match="one length"):
        hs.sweep(nano, task, scores, fill="mean-position")
    with pytest.raises(hs.InputError, match="use crossfit"):
        hs.sweep(nano, task.take(slice(0, 3)), scores, redraw=2)
    with pytest.raises(hs.InputError, match="two prompts"):
        hs.crossfit(nano, task.take([0]), hs.methods.patching)
