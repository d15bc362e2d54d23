"""The sparsity studies: making a sparse model with its training curves, and comparing one with its dense origin.

The comparison, all under hard gates:

1. Connectivity: the share of causal attention edges that are open, overall and per layer and head; heads that never
   open.
2. Cross-entropy of both models on text that neither was trained on, their divergence, and the difference of the two
   cross-entropies with a 95 % bootstrap interval over sequences.
3. A control: the same model with gates open at random, each head at its own rate. Gates that have learned something
   are far better than that.
4. Accuracy of both models on tasks.
5. Attention maps of both models on one prompt.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from headscope.errors import InputError
from headscope.models import Model, load
from headscope.models.sparse_gate import CONFIG_KEY, Gates, deciding
from headscope.progress import bar
from headscope.records import Attention, Sparsity
from headscope.report.outputs import write
from headscope.report.outputs.sparsity import SparseModel, Sparsify
from headscope.report.reading import Reading
from headscope.runs.run import open_run
from headscope.sparse.settings import Settings
from headscope.sparse.text import sequences
from headscope.sparse.training import measured, sparsified
from headscope.studies.attention import attention_of
from headscope.studies.settings import SparsitySettings
from headscope.studies.subjects import Subject, distinct, load_noted
from headscope.tasks import make_task


def study_sparsify(settings: Settings, *, out: Path) -> Sparsify:
    """Sparsify a model and draw how it went."""
    with sparsified(load(settings.model, **settings.loading), out, settings) as checkpoint:
        if checkpoint.run is not None:
            write(checkpoint.run, Sparsify)
    return Sparsify(Reading(out, strict=True))


def study_sparsity(settings: SparsitySettings, *, out: Path) -> SparseModel:
    """Compare a dense model with its sparse variant in the run folder `out`."""
    names = (settings.dense, settings.sparse)
    with open_run(out, settings) as run:
        (dense, dense_hash), (sparse, sparse_hash) = (
            load_noted(run, name, short, settings) for name, short in zip(names, distinct(names), strict=True)
        )
        for model, wanted in ((dense, False), (sparse, True)):
            if (getattr(model.hf.config, CONFIG_KEY, None) is not None) != wanted:
                is_now = "dense" if wanted else "sparse"
                raise InputError(f"{model.name} is {is_now}: give the dense model first, then the sparse one.")
        make = partial(_measure, dense, sparse, settings)
        run.unit(("sparsity",), make, Sparsity, dense=dense_hash, sparse=sparse_hash)
        pair = [("dense", dense, dense_hash), ("sparse", sparse, sparse_hash)]
        for name in settings.tasks:
            for _, model, sha256 in pair:
                task = make_task(name, model.tokenizer, n=settings.n, seed=settings.seed)
                Subject(run, model, sha256, task).check()
        if settings.tasks:
            task = make_task(settings.tasks[0], dense.tokenizer, n=2, seed=settings.seed)
            for which, model, sha256 in pair:
                key = Subject(run, model, sha256, task).key
                run.unit(("attention", which), partial(attention_of, model, task), Attention, **key)
        return write(run, SparseModel)


def _measure(dense: Model, sparse: Model, settings: SparsitySettings) -> Sparsity:
    """All that is measured on the sequences of text: open edges by head, both models by sequence, and random gates."""
    about = {"text": settings.text, "count": settings.sequences, "length": settings.length, "seed": settings.seed}
    ids_NT = sequences(dense, **about)
    rates_LH = connectivity(sparse, ids_NT)
    # One by one, so that the interval can tell what another draw of sequences would give.
    by_sequence = []
    with bar(f"{sparse.name} against {dense.name}", len(ids_NT), unit="sequences") as progress:
        for ids_1T in ids_NT.split(1):
            by_sequence.append(measured(sparse.hf, dense.hf, ids_1T, 1))
            progress.advance()
    gates = partial(Gates, "random", seed=settings.seed, rates_LH=torch.from_numpy(rates_LH))
    with bar("random gates"):
        control = measured(sparse.hf, dense.hf, ids_NT, 16, gates)
    losses = {name: np.array([one[name] for one in by_sequence]) for name in ("connectivity", "ce", "dense_ce", "kl")}
    random = {name: control[name] for name in ("connectivity", "ce", "kl")}
    return Sparsity(sparse.name, dense.name, rates_LH, **losses, random=random, settings=about)


@torch.no_grad()
def connectivity(model: Model, ids_NT: Tensor, batch: int = 16) -> np.ndarray:
    """Share of causal attention edges that are open, per layer and head."""
    total_LH = np.zeros((model.n_layers, model.n_heads))
    with bar(f"Open edges of {model.name}", len(ids_NT), unit="sequences") as progress:
        for part in ids_NT.split(batch):
            with deciding(Gates()) as gates:
                model.hf(input_ids=part.to(model.device), use_cache=False, logits_to_keep=1)
            total_LH += np.stack([gates.opened[l].sum(0).cpu().numpy() for l in range(model.n_layers)])
            progress.advance(len(part))
    return total_LH / len(ids_NT)
