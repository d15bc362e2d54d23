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

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headscope.errors import InputError
from headscope.models import Model, load
from headscope.models.sparse_gate import CONFIG_KEY, Gates, deciding
from headscope.progress import bar
from headscope.records import Attention, head_name, resampled
from headscope.records.files import write_json
from headscope.report.figures.panels import head_grid
from headscope.report.figures.sparsity import open_heads, training_curves
from headscope.runs.run import open_run
from headscope.sparse.checkpoint import is_first_process
from headscope.sparse.objective import edges_per_query
from headscope.sparse.settings import Settings
from headscope.sparse.text import windows
from headscope.sparse.training import measured, sparsify
from headscope.studies.attention import attention_of
from headscope.studies.series import save_figures, write_tables
from headscope.studies.settings import SparsitySettings
from headscope.studies.subjects import Subject, distinct, load_noted
from headscope.tasks import make_task


def study_sparsify(settings: Settings, *, out: Path) -> list[dict[str, float]]:
    """Sparsify a model and draw how it went; the history."""
    history = sparsify(load(settings.model), out=out, settings=settings)
    if is_first_process():
        with open_run(out, settings) as run:
            save_figures(run, {"training": training_curves(history, settings.constraint)}, settings.formats)
            run.finish()
    return history


def study_sparsity(settings: SparsitySettings, *, out: Path) -> dict[str, Any]:
    """Compare a dense model with its sparse variant in the run folder `out`; what was found, as in `report.json`."""
    names = (settings.dense, settings.sparse)
    with open_run(out, settings) as run:
        (dense, dense_hash), (sparse, sparse_hash) = (
            load_noted(run, name, short) for name, short in zip(names, distinct(names), strict=True)
        )
        for model, wanted in ((dense, False), (sparse, True)):
            if (getattr(model.hf.config, CONFIG_KEY, None) is not None) != wanted:
                is_now = "dense" if wanted else "sparse"
                raise InputError(f"{model.name} is {is_now}: give the dense model first, then the sparse one.")
        found = run.unit(
            ("sparsity",), partial(_measure, dense, sparse, settings), dense=dense_hash, sparse=sparse_hash
        )
        pair = [("dense", dense, dense_hash), ("sparse", sparse, sparse_hash)]
        checks = [
            {which: Subject(run, model, sha256, _task(model, name, settings)).check() for which, model, sha256 in pair}
            for name in settings.tasks
        ]
        rates_LH = np.array(found["rates"])
        report = _report(dense, sparse, found, rates_LH, settings) | {
            "accuracy": {both["dense"].task: {w: c.accuracy for w, c in both.items()} for both in checks},
            "checks": [asdict(check) for both in checks for check in both.values()],
            "windows": {"text": settings.text, "count": settings.windows, "length": settings.length},
        }
        write_json(run.path("report.json"), report)
        run.add("report.json")
        rows = [(head_name(l, h), l, h, f"{rate:.6f}") for (l, h), rate in np.ndenumerate(rates_LH)]
        write_tables(run, {"connectivity.csv": ("head layer index connectivity", rows)})
        figures = {
            "connectivity": head_grid(
                rates_LH, title=f"{sparse.name}: attention edges that are open", colours="Blues",
                limits=(0, float(rates_LH.max())), scale="Share",
            )[0]
        }  # fmt: skip
        if settings.tasks:
            task = make_task(settings.tasks[0], dense.tokenizer, n=2, seed=settings.seed)
            records = []
            for which, model, sha256 in pair:
                key = Subject(run, model, sha256, task).key
                records.append(run.unit(("attention", which), partial(attention_of, model, task), Attention, **key))
            figures["attention"] = open_heads(*records)
        save_figures(run, figures, settings.formats)
        run.finish()
    return report


def _task(model: Model, name: str, settings: SparsitySettings) -> Any:
    return make_task(name, model.tokenizer, n=settings.n, seed=settings.seed)


def _measure(dense: Model, sparse: Model, settings: SparsitySettings) -> dict[str, Any]:
    """All that is measured on the windows of text: open edges by head, both models by window, and random gates."""
    seed = settings.seed
    ids_NT = windows(dense, settings.text, count=settings.windows, length=settings.length, seed=seed)
    rates_LH = connectivity(sparse, ids_NT)
    # One by one, so that the interval can tell what another draw of windows would give.
    by_window = [measured(sparse.hf, dense.hf, window_1T, 1) for window_1T in ids_NT.split(1)]
    control = measured(
        sparse.hf, dense.hf, ids_NT, 16, lambda: Gates("random", seed=seed, rates_LH=torch.from_numpy(rates_LH))
    )
    return {"rates": rates_LH.tolist(), "by_window": by_window, "control": control}


def _report(
    dense: Model, sparse: Model, measured: dict[str, Any], rates_LH: np.ndarray, settings: SparsitySettings
) -> dict[str, Any]:
    by_window, control = measured["by_window"], measured["control"]
    found = {name: float(np.mean([one[name] for one in by_window])) for name in by_window[0]}
    return {
        "dense": dense.name, "sparse": sparse.name, "connectivity": found["connectivity"],
        "edges per query": {
            name: edges_per_query(share, settings.length)
            for name, share in (
                ("dense", 1.0), ("sparse", found["connectivity"]), ("random gates", control["connectivity"])
            )
        },
        "ce": {"dense": found["dense_ce"], "sparse": found["ce"], "random gates": control["ce"]},
        "ce above dense": _difference(by_window, settings.seed),
        "divergence": {"sparse": found["kl"], "random gates": control["kl"]},
        "random connectivity": control["connectivity"],
        "per layer": [round(float(rate), 6) for rate in rates_LH.mean(1)],
        "never open": [head_name(l, h) for l, h in np.argwhere(rates_LH == 0).tolist()],
    }  # fmt: skip


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
