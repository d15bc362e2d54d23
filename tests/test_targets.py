"""Targets of several tokens: heads and edges against a slow twin, metrics of one's own, memory that runs out, and other
threads."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from threading import Thread
from typing import Any

import numpy as np
import pytest
import torch
from architectures import ALL, VOCAB

import headscope as hs
from headscope.roles import head_effects, masked_log_probs
from headscope.running.batching import BUDGETS, budget, in_parts, out_of_memory
from headscope.running.edge_session import EdgeSession, view_of
from headscope.running.gates import gate_gradient
from headscope.running.session import Session, engine_of
from headscope.running.targets import Targets, metrics_of
from headscope.tasks import Task
from headscope.tasks.metrics import METRICS, Asked

# What torch's allocator says on Linux.
SAID = "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to ..."


@pytest.fixture(scope="module")
def models(tiny, nano):
    made: dict[str, hs.Model] = {"nano": nano}

    def get(name: str) -> hs.Model:
        if name not in made:
            made[name] = hs.load(str(tiny(name)))
        return made[name]

    return get


def two_tokens(n: int = 5, vocabulary: int = VOCAB, lengths: tuple[int, ...] = (2, 2, 3, 1, 2)) -> Task:
    """Pairs of different lengths with targets of one to three tokens."""
    draw = np.random.default_rng(5)
    clean = [draw.integers(3, vocabulary, size=6 + i % 2).tolist() for i in range(n)]
    corrupt = [[*ids[:2], *draw.integers(3, vocabulary, size=len(ids) - 2).tolist()] for ids in clean]
    targets = [draw.integers(3, vocabulary, size=lengths[i % len(lengths)]).tolist() for i in range(n)]
    texts = [" ".join(f"w{token}" for token in ids) for ids in clean]
    first = [target[:1] for target in targets]
    return Task("two", "log-prob", texts, texts, clean, corrupt, first, [[]] * n, "w", 0, targets=targets)


def log_p(model: hs.Model, prompt: list[int], target: list[int]) -> torch.Tensor:
    """The plain way: one row, all logits, token by token."""
    logits_TV = model.hf(input_ids=torch.tensor([prompt + target])).logits[0].log_softmax(-1)
    return torch.stack([logits_TV[len(prompt) - 1 + i, token] for i, token in enumerate(target)]).sum()


def rows_of(task: Task) -> list[tuple[list[int], list[int], list[int]]]:
    return list(zip(task.clean_ids, task.corrupt_ids, task.targets, strict=True))


@pytest.mark.parametrize("name", ["nano", "gpt2", "llama-gqa"])
@torch.no_grad()
def test_heads_are_the_slow_twin(models, name: str):
    """Patching, both ways, and ablation, head by head and prompt by prompt with plain interventions."""
    model, task = models(name), two_tokens()
    found = hs.methods.patching(model, task).per_prompt
    back = hs.methods.patching(model, task, direction="denoising").per_prompt
    gone = hs.methods.ablation(model, task, fill="zero").per_prompt
    assert engine_of(model).fast
    for i, (clean, corrupt, target) in enumerate(rows_of(task)):
        with hs.record(model) as z:
            log_p(model, corrupt, target)
        with hs.record(model) as z_clean:
            plain = log_p(model, clean, target)
        worst = log_p(model, corrupt, target)
        for layer, head in ((0, 1), (1, 0), (model.n_layers - 1, 3)):
            keep = torch.ones(model.n_layers, model.n_heads)
            keep[layer, head] = 0.0
            with hs.patched(model, keep, fill=z):
                assert found[i, layer, head] == pytest.approx(float(plain - log_p(model, clean, target)), abs=1e-4)
            with hs.patched(model, keep, fill=z_clean):
                assert back[i, layer, head] == pytest.approx(float(log_p(model, corrupt, target) - worst), abs=1e-4)
            with hs.gated(model, keep):
                assert gone[i, layer, head] == pytest.approx(float(plain - log_p(model, clean, target)), abs=1e-4)
    assert np.ptp(found) > 1e-3, "heads must matter for the test to mean anything"


@pytest.mark.parametrize("name", list(ALL))
@torch.no_grad()
def test_fast_is_plain_on_every_architecture(models, name: str):
    """Masks open, closed, between, and per layer, with targets of two and three tokens in one batch."""
    model, task = models(name), two_tokens(lengths=(2, 3))
    assert engine_of(model).fast, engine_of(model).reason
    draw = torch.Generator().manual_seed(1)
    keep = torch.rand(6, model.n_layers, model.n_heads, generator=draw)
    keep[0], keep[1], keep[2, :-1], keep[3, :1] = 1.0, 0.0, 1.0, 1.0
    # (Prompts of six and seven tokens with targets of three and two make rows of one length.)
    rows = [i for i in range(len(task)) if len(task.clean_rows[i]) == len(task.clean_rows[0])]
    clean, corrupt = ([side[i] for i in rows] for side in (task.clean_rows, task.corrupt_rows))
    session = Session(model, clean, Targets.of(task, rows, model.device), other_ids=corrupt)
    found = session.metrics(keep)
    for place, i in enumerate(rows):
        with hs.record(model) as z:
            log_p(model, task.corrupt_ids[i], task.targets[i])
        for c, keep_LH in enumerate(keep):
            with hs.patched(model, keep_LH, fill=z):
                assert float(found[c, place]) == pytest.approx(
                    float(log_p(model, task.clean_ids[i], task.targets[i])), abs=1e-4
                )


def test_rows_of_one_length_may_have_targets_of_different_lengths():
    task = two_tokens(n=4, lengths=(3, 2))
    assert {len(row) for row in task.clean_rows} == {8}
    targets = Targets.of(task, range(4), torch.device("cpu"))
    assert targets.in_target_BP.tolist() == [[True] * 3, [False, True, True]] * 2


@pytest.mark.parametrize("name", ["nano", "gpt2", "llama-gqa"])
def test_attribution_is_the_slope_of_patching(models, name: str):
    """Moving z a little towards its corrupt value, by autograd through a plain run."""
    model, task = models(name), two_tokens(n=3)
    found = hs.methods.attribution(model, task).per_prompt
    gates = hs.methods.gradient(model, task).per_prompt
    for i, (clean, corrupt, target) in enumerate(rows_of(task)):
        with torch.no_grad(), hs.record(model) as z:
            log_p(model, corrupt, target)
        for fill, scores in ((z, found), (None, gates)):
            keep = torch.ones(model.n_layers, model.n_heads, requires_grad=True)
            with hs.patched(model, keep, fill=fill):
                (slope,) = torch.autograd.grad(log_p(model, clean, target), keep)
            np.testing.assert_allclose(scores[i], slope.numpy(), atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("name", ["nano", "gpt2", "llama-gqa"])
@torch.no_grad()
def test_edges_are_the_slow_twin(models, name: str):
    """All edges are the clean run, none the corrupt one; cutting all edges into a head is patching that head; and
    attribution is the slope of running the circuit."""
    model, task = models(name), two_tokens(n=2, lengths=(2,)).take([0])
    clean, corrupt, target = rows_of(task)[0]
    view = view_of(model)
    graph = view.graph()
    targets = Targets.of(task, [0], model.device)
    session = EdgeSession(view, task.clean_rows, task.corrupt_rows, targets, graph)
    keep = torch.ones(3, len(graph))
    keep[1] = 0.0
    into = torch.tensor([graph.readers[reader] == "L1.H2" for reader in graph.ends[1]])
    keep[2, into] = 0.0
    found = session.metrics(keep)[:, 0]
    with hs.record(model) as z:
        nothing = log_p(model, corrupt, target)
    keep_LH = torch.ones(model.n_layers, model.n_heads)
    keep_LH[1, 2] = 0.0
    whole = log_p(model, clean, target)
    with hs.patched(model, keep_LH, fill=z):
        cut = log_p(model, clean, target)
    np.testing.assert_allclose(found, torch.stack([whole, nothing, cut]), atol=2e-4, rtol=1e-4)
    with torch.enable_grad():
        all_kept = torch.ones(1, len(graph), requires_grad=True)
        (slope,) = torch.autograd.grad(session.metrics(all_kept).sum(), all_kept)
    scores = hs.methods.eap(model, task).values
    np.testing.assert_allclose(scores, slope[0], atol=1e-4 * slope.abs().max().item(), rtol=1e-3)


def test_curves_of_targets_end_at_one(models):
    model, task = models("nano"), two_tokens()
    for scores in (hs.methods.patching(model, task), hs.methods.eap(model, task)):
        curve = hs.sweep(model, task, scores, k=[0, scores.values.size])
        assert curve.explained[-1] == pytest.approx(1.0, abs=1e-3)
    np.testing.assert_allclose(hs.check(model, task).metric, curve.clean.mean(), atol=1e-4)


def own_log_prob(logits: torch.Tensor, asked: Asked) -> torch.Tensor:
    picked = logits.log_softmax(-1).gather(-1, asked.right_BPA)[..., 0]
    return (picked * asked.in_target_BP).sum(-1)


def own_logit_diff(logits: torch.Tensor, asked: Asked) -> torch.Tensor:
    return (logits.gather(-1, asked.right_BPA) - logits.gather(-1, asked.wrong_BPA))[:, 0, 0]


@pytest.mark.parametrize(("built_in", "own"), [("log-prob", own_log_prob), ("logit-diff", own_logit_diff)])
def test_a_metric_of_ones_own_is_the_one_it_writes_again(models, built_in: str, own: Callable):
    model = models("nano")
    task = two_tokens() if built_in == "log-prob" else hs.tasks.ioi(model.tokenizer, n=4)
    for method in (hs.methods.patching, hs.methods.attribution, hs.methods.eap):
        expected, found = (method(model, replace(task, metric=metric)).values for metric in (built_in, own))
        np.testing.assert_allclose(found, expected, atol=1e-5)
    check = hs.check(model, replace(task, metric=own))
    assert check.metric_name == own.__name__
    assert check.metric == pytest.approx(hs.check(model, task).metric, abs=1e-5)


def test_a_metric_is_one_entry(models, monkeypatch):
    monkeypatch.setitem(METRICS, "own", own_log_prob)
    model, task = models("nano"), two_tokens(n=2)
    expected = hs.methods.gradient(model, task).values
    np.testing.assert_allclose(hs.methods.gradient(model, replace(task, metric="own")).values, expected, atol=1e-6)


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        (lambda logits, asked: logits.mean(), r"a number per prompt, \(1,\), found torch.float32 of shape \(\)"),
        (lambda logits, asked: logits[..., 0].argmax(-1), "found torch.int64"),
        (lambda logits, asked: 3.0, "found float"),
        (lambda logits, asked: logits[:, 0, 0] / 0, "expected finite numbers, found"),
        (lambda logits, asked: logits[:, 0, 0].detach(), "has no gradient"),
        (lambda logits, asked: asked.answers, "AttributeError"),
        ("best", "Unknown metric 'best'"),
        ("logit-diff", "sets answers of one token against wrong ones"),
    ],
)
def test_bad_metrics_are_told_in_a_line(models, metric: Any, message: str):
    task = replace(two_tokens(n=1), metric=metric)
    with pytest.raises(hs.InputError, match=message) as told:
        hs.methods.attribution(models("nano"), task)
    assert "\n" not in str(told.value)


@contextmanager
def short_of_memory(model: hs.Model, more_than: int):
    """A forward pass of more rows than these fails as torch's allocator on Linux does; yields how many did."""
    failed: list[int] = []

    def fail(_module: Any, args: tuple, kwargs: dict) -> None:
        rows = len(kwargs["input_ids"])
        if rows > more_than:
            failed.append(rows)
            raise RuntimeError(SAID)

    hook = model.hf.register_forward_pre_hook(fail, with_kwargs=True)
    try:
        yield failed
    finally:
        hook.remove()
        model.kept.pop("budgets", None)


def fitted(model: hs.Model, task: Task) -> np.ndarray:
    gates = torch.zeros(2, model.n_layers, model.n_heads)
    return gate_gradient(model, task, gates, [[0, 1, 2], [2, 3, 4]])[0].numpy()


def answered(model: hs.Model, task: Task) -> np.ndarray:
    from headscope.functions.generation import Interventions, generate
    from headscope.functions.states import answer_states

    masks = torch.ones(3, model.n_layers, model.n_heads)
    masks[1, 0] = masks[2, 1] = 0.0
    said = generate(model, task.clean_ids, acting=Interventions(masks), max_new_tokens=4)
    z = answer_states(model, task.clean_ids, said[0], prefix=[])
    ids = [token for answers in said for answer in answers for token in answer.ids]
    return np.concatenate([ids, z.flatten().numpy()])


WORKS: dict[str, Callable[[hs.Model, Task], np.ndarray]] = {
    "patching": lambda model, task: hs.methods.patching(model, task).per_prompt,
    "attribution": lambda model, task: hs.methods.attribution(model, task).per_prompt,
    "mean ablation": lambda model, task: hs.methods.ablation(model, task).per_prompt,
    "edges": lambda model, task: hs.methods.eap(model, task).values,
    "edge circuits": lambda model, task: hs.sweep(model, task, hs.methods.eap(model, task), k=[0, 9, 90, 190]).metrics,
    "roles": lambda model, task: masked_log_probs(model, task, torch.full((5, model.n_layers, model.n_heads), 0.5)),
    "effects": lambda model, task: head_effects(model, task).per_prompt,
    "gates": fitted,
    "functions": answered,
    "check": lambda model, task: np.array([hs.check(model, task).metric]),
}


@pytest.mark.parametrize("name", list(WORKS))
def test_when_memory_runs_out_less_goes_at_once(models, name: str):
    model, task = models("nano"), two_tokens(lengths=(2, 2, 2, 2))
    model.kept.pop("budgets", None)
    expected = WORKS[name](model, task)
    with short_of_memory(model, 1) as failed:
        found = WORKS[name](model, task)
        assert failed, "nothing was large enough to fail"
        assert any(budget(model, purpose) < BUDGETS[purpose]["cpu"] for purpose in BUDGETS)
    np.testing.assert_allclose(found, expected, atol=2e-5, rtol=1e-4)


def test_what_is_no_lack_of_memory_is_told(models):
    model = models("nano")
    assert all(out_of_memory(error) for error in (RuntimeError(SAID), MemoryError(), torch.OutOfMemoryError("full")))
    assert not any(out_of_memory(error) for error in (RuntimeError("shapes"), ValueError(SAID)))
    with pytest.raises(RuntimeError, match="DefaultCPUAllocator"), short_of_memory(model, 0):
        hs.methods.patching(model, two_tokens())
    seen: list[list[int]] = []

    def run(part) -> None:
        if len(part) > 2:
            raise MemoryError
        seen.append(list(part))

    in_parts(model, "masks", range(7), run, each=1)
    model.kept.pop("budgets")
    assert seen == [[0], [1], [2], [3], [4], [5], [6]]


@pytest.mark.parametrize("name", ["llama-gqa", "qwen3"])
@torch.no_grad()
def test_other_threads_see_the_plain_model(models, name: str):
    """While edges run, with a k and v for each head and logits of some tokens only, another thread runs the model."""
    model, task = models(name), two_tokens(n=1, lengths=(1,))
    task = replace(task, metric="logit-diff", targets=[], wrong=[[4]])
    ids = torch.tensor([task.clean_ids[0]])
    expected, found = model.hf(ids).logits, []
    view = view_of(model)
    busy: list[bool] = []

    def meanwhile(*_: Any) -> None:
        if busy:
            return
        busy.append(True)
        thread = Thread(target=lambda: found.append(torch.no_grad()(model.hf)(ids).logits))
        thread.start()
        thread.join()
        busy.clear()

    # (The output projection runs inside everything that edges replace around it.)
    hook = view.blocks[1].attention.o_proj.register_forward_pre_hook(meanwhile)
    try:
        metrics_of(model, task.clean_rows, Targets.of(task, [0], model.device))
        before = len(found)
        hs.methods.eap(model, task)
        hs.methods.attribution_ig(model, task, steps=1)
    finally:
        hook.remove()
    assert before
    assert len(found) > before + 2
    assert all(torch.equal(logits, expected) for logits in found)
