"""Pattern scores: where each pattern would attend, worked out by hand; copying heads made by hand; the known heads of a
real model."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import headscope as hs
from headscope.errors import InputError
from headscope.methods.patterns import NAMES, REPEATED, _targets, copying, repeated_tokens
from headscope.running.interventions import record


def test_where_patterns_attend():
    targets = dict(zip(NAMES, _targets(torch.tensor([[7, 8, 9, 7, 8, 8]]))[:, 0], strict=True))
    places = {name: [tuple(at) for at in found.nonzero().tolist()] for name, found in targets.items()}
    assert places == {
        "previous token": [(1, 0), (2, 1), (3, 2), (4, 3), (5, 4)],
        "first token": [(1, 0), (2, 0), (3, 0), (4, 0), (5, 0)],
        "current token": [(1, 1), (2, 2), (3, 3), (4, 4), (5, 5)],
        "duplicate token": [(3, 0), (4, 1), (5, 1), (5, 4)],
        "induction": [(3, 1), (4, 2), (5, 2)],
    }


def test_scores_are_means_of_attention(nano):
    """The slow twin: one prompt, one head, by loops."""
    task = hs.tasks.ioi(nano.tokenizer, n=3, seed=0)
    found = hs.methods.patterns(nano, task)
    previous, repeated = [], []
    for ids in task.clean_ids:
        with record(nano, patterns=True) as recording, torch.no_grad():
            nano.hf(input_ids=torch.tensor([ids]))
        weight = recording.pattern(2)[0, 1]
        previous += [float(weight[t, t - 1]) for t in range(1, len(ids))]
        for t, token in enumerate(ids):
            if earlier := [s for s in range(t) if ids[s] == token]:
                repeated.append(sum(float(weight[t, s]) for s in earlier))
    assert found.values[found.names.index("previous token"), 2, 1] == pytest.approx(np.mean(previous), rel=1e-4)
    assert found.values[found.names.index("duplicate token"), 2, 1] == pytest.approx(np.mean(repeated), rel=1e-4)
    assert found.task == "ioi"
    assert hs.methods.patterns(nano, n=2).task == REPEATED


def test_repeated_tokens_are_said_twice(nano):
    rows = repeated_tokens(nano, 3, 5, 0)
    assert all(row[-10:-5] == row[-5:] for row in rows)
    assert len({tuple(row) for row in rows}) == 3
    assert not set(rows[0][-10:]) & set(nano.tokenizer.all_special_ids)


def test_a_head_that_copies_and_one_that_does_the_opposite(tiny):
    """With the embedding as unembedding, and an output projection that is the values' transposed, a head copies."""
    model = hs.load(str(tiny("llama-gqa")))
    attention, width = model.hf.model.layers[0].self_attn, 8
    with torch.no_grad():
        model.hf.lm_head.weight.copy_(model.hf.model.embed_tokens.weight)
        model.hf.model.norm.weight.fill_(1)
        model.hf.model.layers[0].input_layernorm.weight.fill_(1)
        for head in range(model.n_heads):
            sign = -1 if head == 3 else 1
            value = attention.v_proj.weight.view(2, width, -1)[head // 2]
            attention.o_proj.weight[:, head * width : (head + 1) * width] = sign * value.T
            attention.q_proj.weight.view(4, width, -1)[head] = (
                sign * attention.k_proj.weight.view(2, width, -1)[head // 2]
            )
    np.testing.assert_allclose(copying(model)[:, 0], [[1, 1, 1, -1], [1, 1, 1, -1]], atol=1e-5)


def test_models_that_show_no_patterns_are_told(tiny):
    with pytest.raises(InputError, match="does not show its attention patterns"):
        hs.methods.patterns(hs.load(str(tiny("bloom"))))


def test_without_a_row_copying_is_left_out(tiny):
    found = hs.methods.patterns(hs.load(str(tiny("opt"))), n=2, length=5)
    assert found.names == list(NAMES)
    assert "has no row for it" in found.settings["left_out"]


@pytest.mark.slow
def test_known_heads_of_a_real_model(smollm2):
    found = hs.methods.patterns(smollm2)
    assert {name for name, _ in found.top("induction", 5)} >= {"L18.H6", "L17.H3", "L17.H4"}
    assert {name for name, _ in found.top("previous token", 5)} >= {"L16.H0", "L11.H1"}
