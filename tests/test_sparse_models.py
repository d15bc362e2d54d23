"""The sparse models that come along: they load, their gates are as closed as their documents say, and they still do
what the dense ones do."""

from __future__ import annotations

from pathlib import Path

import torch
from conftest import shared

import headscope as hs
from headscope.models import builtin_folder
from headscope.models.sparse_gate import CONFIG_KEY, Gates
from headscope.sparse.training import measured
from headscope.studies.sparsity import connectivity

STORIES = Path(__file__).parents[1] / "adapters" / "stories15M-sparse"


def size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


def test_the_sparse_smollm2(smollm2: hs.Model):
    assert size(builtin_folder("smollm2-135m-sparse")) < 8_000_000
    sparse = hs.load("smollm2-135m-sparse")
    assert getattr(sparse.hf.config, CONFIG_KEY) == {"bias": 0.0}
    task = hs.tasks.ioi(sparse.tokenizer, n=16, seed=5)
    ids = torch.tensor([row for row in task.clean_ids if len(row) == len(task.clean_ids[0])])
    rates = connectivity(sparse, ids)
    before = connectivity_untrained(smollm2, ids)
    assert rates.mean() < 0.6 * before
    assert hs.check(sparse, task).accuracy >= hs.check(smollm2, task).accuracy - 0.15


def test_the_sparse_nano(nano: hs.Model):
    assert size(builtin_folder("nano-sparse")) < 300_000
    sparse = hs.load("nano-sparse")
    assert len(getattr(sparse.hf.config, CONFIG_KEY)["offsets"]) == nano.n_layers
    for name in ("ioi", "ioi-long", "greater-than", "docstring"):
        # The prompts that no training of either model has seen.
        task = hs.tasks.make_task(name, nano.tokenizer, n=500, seed=0)
        assert hs.check(sparse, task).accuracy >= hs.check(nano, task).accuracy - 0.03
        # Open edges per query on the task's own prompts, of one length.
        length = len(task.clean_ids[0])
        ids = torch.tensor([row for row in task.clean_ids if len(row) == length])
        assert connectivity(sparse, ids).mean() * (length + 1) / 2 <= 1.0
    # IOI's heads are fewer.
    task = hs.tasks.ioi(nano.tokenizer, n=60, seed=5)
    curves = [hs.sweep(model, task, hs.methods.patching(model, task)) for model in (nano, sparse)]
    found = hs.multiplier(*curves, threshold=0.9)
    assert found.low is not None
    assert found.low > 1


def connectivity_untrained(model: hs.Model, ids: torch.Tensor) -> float:
    """Open edges when the gates are put on the dense model as it is."""
    config = model.hf.config
    setattr(config, CONFIG_KEY, {"bias": 0.0})
    try:
        return float(connectivity(model, ids).mean())
    finally:
        delattr(config, CONFIG_KEY)


def test_the_sparse_stories():
    base = hs.load(shared("models", "stories15M"))
    assert size(STORIES) < 3_000_000
    sparse = hs.load(STORIES, base=shared("models", "stories15M"))
    draw = torch.Generator().manual_seed(7)
    ids = torch.cat([torch.ones(8, 1, dtype=torch.long), sampled(base, 95, draw)], 1)
    found = measured(sparse.hf, base.hf, ids, 8)
    control = measured(
        sparse.hf, base.hf, ids, 8, lambda: Gates("random", rates_LH=torch.from_numpy(connectivity(sparse, ids)))
    )
    assert found["connectivity"] < 0.035
    assert found["ce"] - found["dense_ce"] < 0.08
    assert control["ce"] - found["dense_ce"] > 10 * (found["ce"] - found["dense_ce"])
    task = hs.tasks.ioi(base.tokenizer, n=50, seed=5)
    assert hs.check(sparse, task).accuracy >= hs.check(base, task).accuracy - 0.08


@torch.no_grad()
def sampled(model: hs.Model, length: int, draw: torch.Generator) -> torch.Tensor:
    """What the model writes, (8, length)."""
    from headscope.sparse.text import drawn

    ids = torch.ones(8, 1, dtype=torch.long)
    while ids.shape[1] <= length:
        ids = torch.cat([ids, drawn(model.hf(input_ids=ids).logits[:, -1], 0.9, draw)], 1)
    return ids[:, 1:]
