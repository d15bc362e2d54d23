"""The real model on the real tasks: small samples here, `headscope check` for the full ones."""

from __future__ import annotations

import pytest

import headscope as hs


@pytest.mark.parametrize(
    ("name", "least"), [("ioi", 0.9), ("greater-than", 0.9), ("docstring", 0.85), ("ioi-long", 0.9)]
)
def test_it_does_the_tasks(smollm2, name, least):
    found = hs.check(smollm2, hs.tasks.make_task(name, smollm2.tokenizer, n=24, seed=3))
    assert found.accuracy >= least
    assert found.usable


def test_the_heads_that_carry_ioi(smollm2):
    """L23.H3, L20.H0 and L17.H4 move and choose the name; the engine must find them on a handful of prompts."""
    task = hs.tasks.ioi(smollm2.tokenizer, n=3, seed=0)
    scores = hs.methods.patching(smollm2, task)
    assert {"L23.H3", "L20.H0", "L17.H4"} <= {name for name, _ in scores.top(5)}
    attribution = hs.methods.attribution(smollm2, task)
    assert len({name for name, _ in attribution.top(10)} & {name for name, _ in scores.top(10)}) >= 5
