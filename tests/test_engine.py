"""The fast engine against its slow twin: plain interventions, all layers, all positions, all logits, padded batches."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from architectures import ALL, VOCAB

import headscope as hs
from headscope.running.batching import budget
from headscope.running.session import Session, engine_of
from headscope.running.targets import Targets
from headscope.tasks import Task

NAMES = list(ALL)


@pytest.fixture(scope="module")
def models(tiny):
    made: dict[str, hs.Model] = {}

    def get(name: str) -> hs.Model:
        if name not in made:
            made[name] = hs.load(str(tiny(name)))
        return made[name]

    return get


def made_task(metric: str = "logit-diff") -> Task:
    """Prompts of different lengths; pairs that differ at the first token, the last, in the middle, and everywhere."""
    draw = torch.Generator().manual_seed(1)
    clean, corrupt = [], []
    for length, places in [(9, [0]), (9, [8]), (9, [4, 5]), (6, [0]), (6, [5]), (6, range(6)), (4, [2]), (4, [1])]:
        ids = torch.randint(3, VOCAB, (length,), generator=draw).tolist()
        other = [(token - 3 + 17) % (VOCAB - 3) + 3 if i in places else token for i, token in enumerate(ids)]
        clean.append(ids)
        corrupt.append(other)
    texts = [[" ".join(f"w{token}" for token in ids) for ids in side] for side in (clean, corrupt)]
    answers, wrong = [[5, 6 + i] for i in range(len(clean))], [[30 + i] for i in range(len(clean))]
    return Task("made", metric, texts[0], texts[1], clean, corrupt, answers, wrong, "w", 0)


@torch.no_grad()
def slow_twin(model: hs.Model, task: Task, keep_CLH: torch.Tensor, side: str, *, fill: str = "corrupt") -> np.ndarray:
    """(C, N): one padded batch of all prompts, one plain run per mask, metric at each prompt's last token."""

    def inputs(all_ids: list[list[int]]) -> dict[str, torch.Tensor]:
        longest = max(map(len, all_ids))
        ids = torch.zeros(len(all_ids), longest, dtype=torch.long)
        seen = torch.zeros_like(ids)
        for row, one in enumerate(all_ids):
            place = slice(longest - len(one), longest) if side == "left" else slice(0, len(one))
            ids[row, place], seen[row, place] = torch.tensor(one), 1
        made = {"input_ids": ids, "attention_mask": seen, "position_ids": (seen.cumsum(-1) - 1).clamp(min=0)}
        if model.hf.config.model_type == "bloom":
            del made["position_ids"]
        return made

    clean = inputs(task.clean_ids)
    tokens = Targets.of(task, list(range(len(task))), model.device)
    lengths = torch.tensor([len(ids) for ids in task.clean_ids])
    last = torch.full_like(lengths, clean["input_ids"].shape[1] - 1) if side == "left" else lengths - 1
    with hs.record(model) as z:
        model.hf(**inputs(task.corrupt_ids), use_cache=False)
    rows = []
    for keep_LH in keep_CLH:
        with hs.patched(model, keep_LH, fill=z if fill == "corrupt" else None):
            logits = model.hf(**clean, use_cache=False).logits
        rows.append(tokens(logits[torch.arange(len(task)), last][:, None]).numpy())
    return np.stack(rows)


def masks(model: hs.Model) -> torch.Tensor:
    """One head closed, for every head; everything open, everything closed; random ones, also between 0 and 1."""
    L, H = model.n_layers, model.n_heads
    draw = torch.Generator().manual_seed(2)
    single = 1 - torch.eye(L * H).view(-1, L, H)
    random = (torch.rand(5, L, H, generator=draw) > 0.5).float()
    soft = torch.rand(2, L, H, generator=draw)
    return torch.cat([single, torch.ones(1, L, H), torch.zeros(1, L, H), random, soft])


@pytest.mark.parametrize("metric", ["logit-diff", "prob-diff"])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_fast_is_the_slow_twin(models, name, side, metric):
    model, task = models(name), made_task(metric)
    assert engine_of(model).fast, engine_of(model).reason
    keep = masks(model)
    expected = slow_twin(model, task, keep, side)
    for length in (9, 6, 4):
        rows = [i for i in range(len(task)) if len(task.clean_ids[i]) == length]
        tokens = Targets.of(task, rows, model.device)
        clean, corrupt = ([ids[i] for i in rows] for ids in (task.clean_ids, task.corrupt_ids))
        together = Session(model, clean, tokens, other_ids=corrupt).metrics(keep)
        np.testing.assert_allclose(together.numpy(), expected[:, rows], atol=1e-5, rtol=1e-5)
        for row in rows:  # alone, so that each pair's own prefix is skipped
            tokens = Targets.of(task, [row], model.device)
            session = Session(model, [task.clean_ids[row]], tokens, other_ids=[task.corrupt_ids[row]])
            np.testing.assert_allclose(session.metrics(keep).numpy()[:, 0], expected[:, row], atol=1e-5, rtol=1e-5)
    assert np.ptp(expected, axis=0).max() > 1e-3, "masks must matter for the test to mean anything"


@pytest.mark.parametrize("name", ["llama-gqa", "gpt2", "gemma3", "gpt_neo"])
@torch.no_grad()
def test_zero_fill_and_masks_per_prompt(models, name):
    model, task = models(name), made_task()
    keep = masks(model)
    rows = [0, 1, 2]
    tokens = Targets.of(task, rows, model.device)
    session = Session(model, [task.clean_ids[i] for i in rows], tokens)
    expected = slow_twin(model, task, keep, "right", fill="zero")[:, rows]
    np.testing.assert_allclose(session.metrics(keep).numpy(), expected, atol=1e-5, rtol=1e-5)
    shifted = torch.stack([keep.roll(row, 0) for row in rows], dim=1)
    own = np.stack([np.roll(expected[:, row], row) for row in rows], axis=1)
    np.testing.assert_allclose(session.metrics(shifted).numpy(), own, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_the_model_is_left_as_it_was(models):
    model, task = models("llama-gqa"), made_task()
    before = model.hf(torch.tensor([task.clean_ids[0]])).logits
    hs.methods.patching(model, task)
    assert torch.equal(model.hf(torch.tensor([task.clean_ids[0]])).logits, before)
    assert not any("forward" in module.__dict__ for module in model.hf.modules())


@torch.no_grad()
def test_running_out_of_memory_halves_the_batch(models):
    model, task = models("gpt2"), made_task()
    keep = masks(model)
    rows = [0, 1, 2]
    session = Session(model, [task.clean_ids[i] for i in rows], Targets.of(task, rows, model.device))
    expected = session.metrics(keep)
    before = budget(model, "masks")

    def too_large(_module, args, kwargs):
        if kwargs["input_ids"].shape[0] > 6:
            raise torch.OutOfMemoryError("on purpose")

    hook = model.hf.register_forward_pre_hook(too_large, with_kwargs=True)
    try:
        np.testing.assert_allclose(session.metrics(keep).numpy(), expected.numpy(), atol=1e-6)
        assert budget(model, "masks") < before
    finally:
        hook.remove()
        del model.kept["budgets"]


def test_a_model_that_fails_the_check_runs_plainly_and_says_so(tiny):
    """A layer with a memory of its own cannot be restarted: the engine notices and the numbers stay right."""
    model, task = hs.load(str(tiny("llama-gqa"))), made_task()
    mlp = model.hf.get_submodule("model.layers.1.mlp")
    counter = {"rows": 0.0}

    def meddle(_module, args, out):
        counter["rows"] = float(out.shape[1])  # depends on how many positions come through: 1 only when trimmed
        return out * (1.0 + counter["rows"] / 10)

    hook = mlp.register_forward_hook(meddle)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            engine = engine_of(model)
        assert not engine.fast
        assert any("running plainly" in str(w.message) for w in caught)
        keep = masks(model)
        rows = [0, 1, 2]
        clean, corrupt = ([ids[i] for i in rows] for ids in (task.clean_ids, task.corrupt_ids))
        tokens = Targets.of(task, rows, model.device)
        with torch.no_grad():
            found = Session(model, clean, tokens, other_ids=corrupt).metrics(keep)
        expected = slow_twin(model, task.take(rows), keep, "right")
        np.testing.assert_allclose(found.numpy(), expected, atol=1e-5, rtol=1e-5)
    finally:
        hook.remove()
