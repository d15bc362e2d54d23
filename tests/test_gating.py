"""Causal head gating: identities of the gates, fits that do not know of each other, and roles known by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from architectures import VOCAB, build
from command import killed_when
from conftest import word_tokenizer
from handmade import HARMS, HELPS, IDLE_HEADS, three_roles, three_roles_task

import headscope as hs
from headscope.methods.gating import Preset
from headscope.models.attention import install
from headscope.records import ROLES, Roles, against_patching, agreement, ranks, spread
from headscope.roles import ablate, head_effects, masked_log_probs
from headscope.running.gates import Fit, Stage, batch_rows, gate_gradient, regulariser
from headscope.running.targets import Targets, metrics_of
from headscope.studies.roles import split

QUICK = Preset(Stage(6, (0.5, 0.1)), Stage(8, (0.6, 0.2)), batch=4)


def random_task(n: int = 6, seed: int = 0) -> hs.tasks.Task:
    """Prompts of different lengths with targets of one to three tokens, for models without a language."""
    draw = np.random.default_rng(seed)
    prompts = [draw.integers(3, VOCAB, size=draw.integers(4, 8)).tolist() for _ in range(n)]
    targets = [draw.integers(3, VOCAB, size=draw.integers(1, 4)).tolist() for _ in range(n)]
    corrupt = [draw.integers(3, VOCAB, size=len(prompt)).tolist() for prompt in prompts]
    texts = [" ".join(f"w{token}" for token in prompt) for prompt in prompts]
    return hs.tasks.Task(
        "random", "log-prob", texts, texts, prompts, corrupt, [target[:1] for target in targets], [[]] * n, "words", 0,
        targets=targets,
    )  # fmt: skip


def tiny_model(name: str) -> hs.Model:
    hf = build(name)
    return hs.Model(name, hf, word_tokenizer(), install(hf))


def slow_log_prob(model: hs.Model, prompt: list[int], target: list[int]) -> float:
    """log P of a target from all logits of one row, token by token."""
    logits = model.hf(input_ids=torch.tensor([prompt + target])).logits[0].log_softmax(-1)
    return float(sum(logits[len(prompt) - 1 + i, token] for i, token in enumerate(target)))


@pytest.mark.parametrize("name", ["gpt2", "llama-gqa", "gemma2", "opt", "gpt_neo", "bloom"])
@torch.no_grad()
def test_targets_and_open_gates(name: str):
    """Log P at target positions only, of padded rows, is that of all logits of each row; with gates at 1 too."""
    model, task = tiny_model(name), random_task()
    expected = [slow_log_prob(model, p, t) for p, t in zip(task.clean_ids, task.targets, strict=True)]
    targets = Targets.of(task, range(len(task)), model.device)
    np.testing.assert_allclose(metrics_of(model, task.clean_rows, targets), expected, atol=1e-4)
    ones_CLH = torch.ones(2, model.n_layers, model.n_heads)
    np.testing.assert_allclose(masked_log_probs(model, task, ones_CLH), [expected] * 2, atol=1e-4)


@pytest.mark.parametrize("name", ["llama-gqa", "gpt_neo"])
def test_a_mask_per_row_is_a_run_per_mask(name: str):
    model, task = tiny_model(name), random_task(11)
    mask_CLH = torch.rand(5, model.n_layers, model.n_heads)
    together = masked_log_probs(model, task, mask_CLH)
    for mask_LH, found in zip(mask_CLH, together, strict=True):
        with hs.gated(model, mask_LH), torch.no_grad():
            alone = [slow_log_prob(model, p, t) for p, t in zip(task.clean_ids, task.targets, strict=True)]
        np.testing.assert_allclose(found, alone, atol=2e-5)


@pytest.mark.parametrize("name", ["llama-gqa", "gpt_neo"])
def test_the_gradient_is_that_of_finite_differences(name: str):
    """Gate by gate, against the loss computed row by row. (Norms stay in single precision, so steps are not tiny.)"""
    model, task = tiny_model(name), random_task()
    model.hf.double()
    m_CLH = torch.randn(2, model.n_layers, model.n_heads, dtype=torch.float64)
    rows = [[0, 1, 2], [3, 4, 5]]

    @torch.no_grad()
    def loss(m_LH: torch.Tensor, which: list[int]) -> float:
        with hs.gated(model, m_LH.sigmoid()):
            logs = [slow_log_prob(model, task.clean_ids[i], task.targets[i]) / len(task.targets[i]) for i in which]
        return -float(np.mean(logs))

    gradient_CLH, value_C = gate_gradient(model, task, m_CLH, rows)
    for c, layer, head in [(0, 0, 0), (0, 1, 3), (1, 0, 2), (1, 1, 1)]:
        nudge_LH = torch.zeros_like(m_CLH[c])
        nudge_LH[layer, head] = 3e-3
        slope = (loss(m_CLH[c] + nudge_LH, rows[c]) - loss(m_CLH[c] - nudge_LH, rows[c])) / 6e-3
        assert float(gradient_CLH[c, layer, head]) == pytest.approx(slope, rel=2e-3, abs=1e-4)
    assert value_C.tolist() == pytest.approx([-loss(m_CLH[c], rows[c]) for c in range(2)], rel=1e-5)


def test_pressing():
    """-lam * mean(clip(m)) by autograd; nothing beyond the clip."""
    m_CLH = torch.randn(2, 3, 4) * 4
    lam_C = torch.tensor([0.1, -0.1])
    leaf = m_CLH.clone().requires_grad_()
    (expected,) = torch.autograd.grad(-(lam_C * leaf.clamp(-4, 4).mean(dim=(1, 2))).sum(), leaf)
    torch.testing.assert_close(regulariser(m_CLH, lam_C), expected)


def test_steps_are_those_of_adam():
    """With each matrix's gradient clipped on its own."""
    fit = Fit(torch.randn(2, 2, 3), [0, 1])
    theirs = [fit.m_CLH[c].clone().requires_grad_() for c in range(2)]
    optimisers = [torch.optim.Adam([one], lr=0.1) for one in theirs]
    for scale in (0.1, 10.0, 1.0):
        gradient_CLH = torch.randn(2, 2, 3) * scale
        for one, optimiser, gradient in zip(theirs, optimisers, gradient_CLH, strict=True):
            one.grad = gradient.clone()
            torch.nn.utils.clip_grad_norm_([one], 1.0)
            optimiser.step()
        fit.step(gradient_CLH, 0.1)
    torch.testing.assert_close(fit.m_CLH, torch.stack(theirs).detach(), atol=1e-4, rtol=1e-4)


def test_every_prompt_is_seen_as_often():
    seen = [row for update in range(6) for row in batch_rows(8, 4, 3, update)]
    assert sorted(seen) == sorted([*range(8)] * 3)


def test_seeds_fitted_together_are_fitted_alone(nano: hs.Model):
    task = hs.tasks.ioi(nano.tokenizer, n=12)
    both = hs.methods.gating(nano, task, seeds=[3, 8], preset=QUICK)
    for place, seed in enumerate((3, 8)):
        alone = hs.methods.gating(nano, task, seeds=[seed], preset=QUICK)
        np.testing.assert_allclose(both.g_plus[place], alone.g_plus[0], atol=1e-3)
        np.testing.assert_allclose(both.g_minus[place], alone.g_minus[0], atol=1e-3)
    assert not np.allclose(both.g_plus[0], both.g_plus[1])


def test_the_three_roles_come_out_in_every_seed():
    """A head that helps, one that harms and two that do nothing."""
    model, task = three_roles(), three_roles_task()
    roles = hs.methods.gating(model, task, seeds=10)
    found = roles.classes
    for seed in range(10):
        assert ROLES[found[seed][HELPS]] == "facilitation"
        assert ROLES[found[seed][HARMS]] == "interference"
        assert [ROLES[found[seed][head]] for head in IDLE_HEADS] == ["irrelevance"] * 2
    assert spread(roles)["facilitation"] == {"share": 0.25, "always": 0.25, "sometimes": 0.0, "never": 0.75}
    curves = ablate(model, task, roles, k=[0, 1])
    assert curves.mean("facilitation").tolist()[0] == 0
    assert curves.mean("facilitation")[1] < -0.5
    assert curves.mean("interference")[1] > 0.1
    assert abs(curves.mean("irrelevance")[1]) < 1e-5


def test_the_model_is_left_as_it_was(nano: hs.Model):
    before = nano.fingerprint()
    asked = [parameter.requires_grad for parameter in nano.hf.parameters()]
    hs.methods.gating(nano, hs.tasks.ioi(nano.tokenizer, n=4), seeds=1, preset=QUICK)
    assert nano.fingerprint() == before
    assert [parameter.requires_grad for parameter in nano.hf.parameters()] == asked


SCRIPT = """
import sys, headscope as hs
from headscope.running.gates import Stage
from headscope.methods.gating import Preset
model = hs.load("nano")
preset = Preset(Stage(2, (0.5, 0.1)), Stage(20, (0.6, 0.2)), batch=2)
hs.methods.gating(model, hs.tasks.ioi(model.tokenizer, n=6), seeds=2, preset=preset, checkpoint=sys.argv[1], every=0)
"""


def test_killed_and_resumed_gives_the_same_gates(nano: hs.Model, tmp_path: Path, capfd):
    place = tmp_path / "fit.safetensors"
    killed_when("os.rename", place, SCRIPT, place, often=8)
    stopped, about = Fit.load(place)
    assert about["stage"] == 1
    assert 2 <= stopped.update < 20
    task, preset = hs.tasks.ioi(nano.tokenizer, n=6), Preset(Stage(2, (0.5, 0.1)), Stage(20, (0.6, 0.2)), batch=2)
    with pytest.raises(hs.InputError, match="checkpoint of another fit"):
        hs.methods.gating(nano, task, seeds=3, preset=preset, checkpoint=place)
    resumed = hs.methods.gating(nano, task, seeds=2, preset=preset, checkpoint=place)
    assert not place.exists()
    whole = hs.methods.gating(nano, task, seeds=2, preset=preset)
    np.testing.assert_allclose(resumed.g_plus, whole.g_plus, atol=1e-5)
    np.testing.assert_allclose(resumed.g_minus, whole.g_minus, atol=1e-5)
    place.write_text("nothing")
    again = hs.methods.gating(nano, task, seeds=2, preset=preset, checkpoint=place)
    assert "is no checkpoint of a fit" in capfd.readouterr().err
    np.testing.assert_array_equal(again.g_plus, whole.g_plus)
    assert place.with_name("fit.safetensors.damaged").read_text() == "nothing"


def test_contrast(nano: hs.Model):
    """Gates that keep one task and forget the other, measured on prompts that they were not fitted on."""
    one, other = (hs.tasks.make_task(name, nano.tokenizer, n=40) for name in ("ioi", "docstring"))
    (one, held_one), (other, held_other) = (split(task, 16) for task in (one, other))
    found = hs.methods.contrastive(nano, one, other, seeds=2, held_out=(held_one, held_other))
    assert found.plain[0] > 0.9
    assert found.kept.min() > 0.7
    assert found.forgotten.max() < found.plain[1] - 0.4
    assert found.gates.shape == (2, 4, 4)


def test_patching_of_targets_is_patching(nano: hs.Model):
    """Where the target is one token, the exact effect of heads is what the method `patching` finds."""
    from dataclasses import replace

    task = hs.tasks.ioi(nano.tokenizer, n=5)
    expected = hs.methods.patching(nano, replace(task, metric="log-prob"))
    np.testing.assert_allclose(head_effects(nano, task).per_prompt, expected.per_prompt, atol=1e-4)


def test_measures_of_roles():
    draw = np.random.default_rng(0)
    one = Roles("a", "t", draw.random((3, 4, 5)), draw.random((3, 4, 5)))
    np.testing.assert_allclose(one.irrelevance, one.g_plus * (1 - one.g_minus))
    same = agreement(one, one)
    assert same["same role"] == 1.0
    assert same["facilitation correlation"] == pytest.approx(1.0)
    assert same["interference distance"] == 0.0
    other = Roles("b", "t", draw.random((3, 2, 2)), draw.random((3, 2, 2)))
    assert "same role" not in agreement(one, other)
    assert one.commonest.shape == (4, 5)
    assert ranks(np.array([3.0, 1.0, 3.0, 0.0])).tolist() == [2.5, 1.0, 2.5, 0.0]
    found = against_patching(one, one.facilitation.mean(0), k=3)
    assert (found["rank correlation"], found["shared"]) == (pytest.approx(1.0), 3)


def test_roles_are_saved_and_read(tmp_path: Path):
    roles = Roles("a", "t", np.random.rand(2, 3, 4), np.random.rand(2, 3, 4), {"seeds": [0, 1]})  # noqa: NPY002
    again = Roles.load(roles.save(tmp_path / "roles.safetensors"))
    np.testing.assert_array_equal(again.interference, roles.interference)
    assert again.settings == roles.settings


def test_what_gating_refuses(nano: hs.Model):
    task = hs.tasks.ioi(nano.tokenizer, n=4)
    with pytest.raises(hs.InputError, match=r"Unknown preset 'fast'\. Known: quick, cpu, paper"):
        hs.methods.gating(nano, task, preset="fast")
    with pytest.raises(hs.InputError, match="at least one seed"):
        hs.methods.gating(nano, task, seeds=0)
    with pytest.raises(hs.InputError, match="has no targets"):
        hs.methods.gating(nano, hs.tasks.Task(**{**vars(task), "answers": [[]] * 4}))
    roles = Roles("other", "ioi", np.ones((1, 2, 2)), np.ones((1, 2, 2)))
    with pytest.raises(hs.InputError, match="2 x 2 heads; nano has 4 x 4"):
        ablate(nano, task, roles)
