"""Direct logit attribution and the logit lens: sums and ends that must hold on every architecture, and a slow twin."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import headscope as hs
from headscope.errors import InputError
from headscope.models.layouts import LAYOUTS
from headscope.running.measure import per_prompt
from headscope.running.targets import metrics_of
from headscope.tasks.task import Task

ARCHITECTURES = [
    "gpt2", "gpt_neox", "llama-gqa", "mistral", "qwen2", "qwen3", "olmo", "olmo2", "gemma2", "gemma3",
]  # fmt: skip


def small_task(tokens: int = 7) -> Task:
    """Four prompts with two right and two wrong answers each."""
    draw = np.random.default_rng(0)
    clean, corrupt = (draw.integers(3, 96, size=(4, tokens)).tolist() for _ in range(2))
    right, wrong = draw.integers(3, 96, size=(2, 4, 2)).tolist()
    return Task("small", "logit-diff", [""] * 4, [""] * 4, clean, corrupt, right, wrong, "", 0)


@torch.no_grad()
def logit_differences(model: hs.Model, task: Task) -> np.ndarray:
    plain = replace(task, metric="logit-diff")
    return per_prompt(
        model, plain, lambda rows, targets: metrics_of(model, [task.clean_ids[i] for i in rows], targets), ""
    )


def test_there_are_ten_architectures():
    assert len(ARCHITECTURES) == len(LAYOUTS) == 10


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_components_sum_to_the_logit_difference(name, tiny):
    """With the head of the model made large, so that a soft cap takes much."""
    model, task = hs.load(str(tiny(name))), small_task()
    with torch.no_grad():
        model.hf.get_output_embeddings().weight.mul_(20)  # pyright: ignore[reportOptionalMemberAccess]
    answer, each = hs.methods.direct(model, task), hs.methods.direct(model, task, positions="each")
    expected = logit_differences(model, task)
    assert np.abs(expected).max() > 1
    assert len(answer.components) == 2 + model.n_layers * (model.n_heads + 1)
    np.testing.assert_allclose(answer.per_prompt.sum(1), expected, atol=1e-4)
    np.testing.assert_allclose(answer.total, expected, atol=1e-4)
    np.testing.assert_allclose(each.per_prompt.sum(1), each.total, atol=1e-4)
    np.testing.assert_allclose(each.per_prompt[:, :, -1], answer.per_prompt, atol=1e-5)
    assert answer.settings["largest_error"] < 1e-4

    lens = hs.methods.lens(model, task, positions="each")
    np.testing.assert_allclose(lens.per_prompt[:, -1, -1], expected, atol=1e-4)
    assert lens.per_prompt.shape == (4, model.n_layers + 1, 7)
    ids = torch.tensor(task.clean_ids)
    with torch.no_grad():
        probability, likeliest = model.hf(input_ids=ids).logits.softmax(-1).max(-1)
    np.testing.assert_allclose(lens.probability[:, -1], probability, atol=1e-5)
    words = [[lens.words[place] for place in row] for row in lens.likeliest[:, -1]]
    assert words == [[model.tokenizer.decode([int(t)]) for t in row] for row in likeliest]


def test_a_head_writes_what_taking_it_away_takes(nano):
    """The slow twin: in the last layer, with the final norm's size held, removing a head removes what it writes
    directly, less what the MLP behind it makes of it: so the MLP is held as well."""
    task = hs.tasks.ioi(nano.tokenizer, n=3, seed=0)
    found, last = hs.methods.direct(nano, task), nano.n_layers - 1
    block = nano.hf.model.layers[last]
    for head in range(nano.n_heads):
        for i in range(3):
            inputs = {"input_ids": torch.tensor([task.clean_ids[i]])}
            kept, logits = {}, {}

            def keep(_m, _a, out, kept=kept):
                return kept.setdefault("mlp", out)

            def norm(_m, args, _out, kept=kept):
                size = kept.setdefault("size", (args[0].pow(2).mean(-1, keepdim=True) + 1e-30).sqrt())
                return args[0] / size * nano.hf.model.norm.weight

            hooks = [block.mlp.register_forward_hook(keep), nano.hf.model.norm.register_forward_hook(norm)]
            try:
                with torch.no_grad():
                    logits["with"] = nano.hf(**inputs).logits[0, -1]
                    with hs.masked(nano, (last, head)):
                        logits["without"] = nano.hf(**inputs).logits[0, -1]
            finally:
                for hook in hooks:
                    hook.remove()
            lost = logits["with"] - logits["without"]
            right = max(task.right[i][0], key=lambda t, at=logits["with"]: at[t])
            wrong = max(task.wrong[i], key=lambda t, at=logits["with"]: at[t])
            written = found.per_prompt[i, found.components.index(f"L{last}.H{head}")]
            assert float(lost[right] - lost[wrong]) == pytest.approx(written, abs=2e-3 + 2e-3 * abs(written))


def test_heads_of_a_direct_record_are_scores(nano):
    task = hs.tasks.ioi(nano.tokenizer, n=4, seed=0)
    found = hs.methods.direct(nano, task)
    heads = found.heads
    assert heads.values.shape == (nano.n_layers, nano.n_heads)
    for name, value in heads.top(3):
        assert found.values[found.components.index(name)] == pytest.approx(value)
    with hs.masked(nano, heads.top(2)):
        assert logit_differences(nano, task).mean() != pytest.approx(found.total.mean())


def test_what_cannot_be_asked_is_told(nano, tiny):
    task = hs.tasks.ioi(nano.tokenizer, n=4, seed=0)
    with pytest.raises(InputError, match=r"Unknown positions 'all'. Known: \"answer\", \"each\""):
        hs.methods.direct(nano, task, positions="all")  # pyright: ignore[reportArgumentType]
    uneven = replace(small_task(), clean_ids=[row[: 4 + i] for i, row in enumerate(small_task().clean_ids)])
    with pytest.raises(InputError, match=r'positions="each" needs prompts of one length; those of small have 4 to 7'):
        hs.methods.lens(nano, uneven, positions="each")
    with pytest.raises(InputError, match="has no row for it"):
        hs.methods.direct(hs.load(str(tiny("opt"))), small_task())
