"""The sparsity studies: making a sparse model with its training curves, and comparing one with its dense origin.

The comparison, all under hard gates:

1. Connectivity: the share of causal attention edges that are open, overall and per layer and head; heads that never
   open.
2. Cross-entropy of both models on text that neither was trained on, their divergence, and the difference of the two
   cross-entropies with a 95 % bootstrap interval over windows.
3. A control: the same model with gates open at random, each head at its own rate. Gates that have learned something
   are far better than that.
4. Accuracy of both models on tasks.
5. Attention maps of both models on one prompt.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headscope.errors import InputError
from headscope.models import Model, load
from headscope.models.sparse_gate import CONFIG_KEY, Gates, deciding
from headscope.progress import bar
from headscope.records import Attention, Check, head_name, resampled
from headscope.records.files import write_bytes, write_json
from headscope.report.figures.panels import head_grid, save_figure
from headscope.report.figures.sparsity import open_heads, training_curves
from headscope.running.measure import check
from headscope.runs.run import Run
from headscope.sparse import Settings, sparsify
from headscope.sparse.objective import edges_per_query
from headscope.sparse.text import windows
from headscope.sparse.training import measured
from headscope.studies.attention import attention_of
from headscope.studies.heads import describe, save_figures, unit
from headscope.tasks import make_task


def study_sparsify(name: str, *, out: Path, settings: Settings, formats: Iterable[str] = ("png",)) -> list[dict]:
    """Sparsify a model and draw how it went; the history."""
    history = sparsify(load(name), out=out, settings=settings)
    for ending in formats:
        save_figure(training_curves(history, settings.constraint), Path(out) / f"training.{ending}")
    return history


def study_sparsity(
    dense_name: str, sparse_name: str, *, out: Path, tasks: list[str], text: str = "self", count: int = 128,
    length: int = 64, n: int = 200, seed: int = 1, formats: Iterable[str] = ("png", "svg", "pdf"),
) -> dict[str, Any]:  # fmt: skip
    """Compare a dense model with its sparse variant in the run folder `out`; what was found, as in `report.json`."""
    formats = list(formats)
    dense, sparse = load(dense_name), load(sparse_name)
    for model, wanted in ((dense, False), (sparse, True)):
        if (getattr(model.hf.config, CONFIG_KEY, None) is not None) != wanted:
            raise InputError(
                f"{model.name} is {'dense' if wanted else 'sparse'}: give the dense model first, then the sparse one."
            )
    settings = {
        "models": [dense_name, sparse_name], "tasks": tasks, "text": text, "count": count, "length": length, "n": n,
        "seed": seed,
    }  # fmt: skip
    run = Run.open(out, command="sparsify-report", settings=settings)
    for name, model in ((dense_name, dense), (sparse_name, sparse)):
        run.note_model(name, describe(model))
    ids_NT = windows(dense, text, count=count, length=length, seed=seed)
    rates_LH = connectivity(sparse, ids_NT)
    # One by one, so that the interval can tell what another draw of windows would give.
    by_window = [measured(sparse.hf, dense.hf, window_1T, 1) for window_1T in ids_NT.split(1)]
    found = {name: float(np.mean([one[name] for one in by_window])) for name in by_window[0]}
    control = measured(
        sparse.hf, dense.hf, ids_NT, 16, lambda: Gates("random", seed=seed, rates_LH=torch.from_numpy(rates_LH))
    )
    checks = [(_check(dense, name, n, seed), _check(sparse, name, n, seed)) for name in tasks]
    report = {
        "dense": dense.name, "sparse": sparse.name, "connectivity": found["connectivity"],
        "edges per query": {
            name: edges_per_query(share, length)
            for name, share in (
                ("dense", 1.0), ("sparse", found["connectivity"]), ("random gates", control["connectivity"])
            )
        },
        "ce": {"dense": found["dense_ce"], "sparse": found["ce"], "random gates": control["ce"]},
        "ce above dense": _difference(by_window, seed),
        "divergence": {"sparse": found["kl"], "random gates": control["kl"]},
        "random connectivity": control["connectivity"],
        "per layer": [round(float(rate), 6) for rate in rates_LH.mean(1)],
        "never open": [head_name(l, h) for l, h in np.argwhere(rates_LH == 0).tolist()],
        "accuracy": {a.task: {"dense": a.accuracy, "sparse": b.accuracy} for a, b in checks},
        "checks": [asdict(c) for pair in checks for c in pair],
        "windows": {"text": text, "count": count, "length": length},
    }  # fmt: skip
    write_json(run.path("report.json"), report)
    write_bytes(run.path("connectivity.csv"), _csv(rates_LH))
    run.add("report.json")
    run.add("connectivity.csv")
    _draw(run, dense, sparse, rates_LH, tasks, seed, formats)
    run.finish()
    return report


@torch.no_grad()
def connectivity(model: Model, ids_NT: Tensor, batch: int = 16) -> np.ndarray:
    """Share of causal attention edges that are open, per layer and head."""
    total_LH = np.zeros((model.n_layers, model.n_heads))
    with bar(f"Open edges of {model.name}", len(ids_NT), unit="windows") as shown:
        for part in ids_NT.split(batch):
            with deciding(Gates()) as gates:
                model.hf(input_ids=part.to(model.device), use_cache=False, logits_to_keep=1)
            total_LH += np.stack([gates.opened[l].sum(0).cpu().numpy() for l in range(model.n_layers)])
            shown.advance(len(part))
    return total_LH / len(ids_NT)


def _difference(by_window: list[dict[str, float]], seed: int) -> dict[str, float]:
    """How much the sparse model's cross-entropy exceeds the dense one's, and between what it may lie."""
    lost_N = np.array([one["ce"] - one["dense_ce"] for one in by_window])
    low, high = np.quantile([lost_N[rows].mean() for rows in resampled(len(lost_N), 1000, seed)], (0.025, 0.975))
    return {"mean": float(lost_N.mean()), "low": float(low), "high": float(high)}


def _check(model: Model, task: str, n: int, seed: int) -> Check:
    return check(model, make_task(task, model.tokenizer, n=n, seed=seed))


def _draw(
    run: Run, dense: Model, sparse: Model, rates_LH: np.ndarray, tasks: list[str], seed: int, formats: list[str]
) -> None:
    share = f"{sparse.name}: attention edges that are open"
    figures = {
        "connectivity": head_grid(
            rates_LH, title=share, colours="Blues", limits=(0, float(rates_LH.max())), scale="Share"
        )[0]
    }
    if tasks:
        task = make_task(tasks[0], dense.tokenizer, n=2, seed=seed)
        records = [
            unit(run, f"attention-{which}", Attention, lambda mo=model: attention_of(mo, task))
            for which, model in (("dense", dense), ("sparse", sparse))
        ]
        figures["attention"] = open_heads(*records)
    save_figures(run, figures, formats)


def _csv(rates_LH: np.ndarray) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(("head", "layer", "index", "connectivity"))
    for (l, h), rate in np.ndenumerate(rates_LH):
        writer.writerow((head_name(l, h), l, h, f"{rate:.6f}"))
    return text.getvalue().encode()
