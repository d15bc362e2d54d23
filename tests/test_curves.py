"""Curves and multipliers: ends, ranking, intervals, and the arithmetic by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import headscope as hs
from headscope.records import Curve, Needed, Scores, crossing, needed
from headscope.running.measure import AnswerTokens, answer_logits
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
        tokens = AnswerTokens.of(task, [row], nano.device)
        with hs.record(nano) as z:
            corrupt = tokens(answer_logits(nano, [task.corrupt_ids[row]]))
        with hs.patched(nano, nothing, fill=z):
            direct = tokens(answer_logits(nano, [task.clean_ids[row]]))
        metrics.append((direct.item(), corrupt.item(), tokens(answer_logits(nano, [task.clean_ids[row]])).item()))
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
        tokens = AnswerTokens.of(task, [row], nano.device)
        with hs.record(nano) as z:
            answer_logits(nano, [task.corrupt_ids[row]])
        with hs.patched(nano, keep.view(nano.n_layers, nano.n_heads), fill=z):
            expected = tokens(answer_logits(nano, [task.clean_ids[row]])).item()
        assert curve.metrics[0, row] == pytest.approx(expected, abs=1e-5)


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
    assert found.low == pytest.approx(found.value)
    assert str(found) == "3.33x [3.33, 3.33]"
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
    assert (even.high - even.low).max() == pytest.approx(0, abs=1e-12)
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
    assert needed(low) == Needed(None, None, None)
    assert str(needed(low)) == "not reached"
    # Reached by all prompts together, but not by every draw of them.
    curve = replace(halves(), k=np.array([0, 10]), metrics=halves().metrics[:2], explained=halves().explained[:2])
    often = needed(curve, threshold=0.5)
    assert often.k == pytest.approx(10)
    assert often.low is not None
    assert often.high is None
    assert str(often).endswith("-never)")
    assert str(Needed(1234.4, 1200.0, 1301.0)) == "1,234 (1,200-1,301)"


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
        hs.sweep(nano, task.take(slice(0, 3)), scores)
