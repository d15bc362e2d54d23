"""The head study: for every model and task, how well the model does it, and which heads it does it with.

1. Load each model once; make each task with its tokenizer; check how well it does.
2. Score the heads; save the scores.
3. Draw the head map and write the numbers beside it.

Each (model, task) is a unit of the run folder: a killed run resumes after the last finished one.
"""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from headscope.graph import head_name
from headscope.measure import Check, check
from headscope.methods import method
from headscope.models import Model, load
from headscope.report.figures import head_map, save_figure
from headscope.results import Run, Scores, write_bytes, write_json
from headscope.tasks import make_task


@dataclass(frozen=True)
class HeadResult:
    """What the head study found for one model on one task."""

    check: Check
    scores: Scores
    files: tuple[Path, ...]


def study_heads(
    models: list[str], tasks: list[str], *, out: Path, method_name: str = "patching", n: int = 100, seed: int = 0
) -> Iterator[HeadResult]:
    """Run the study, giving each result as it is finished."""
    score = method(method_name)
    settings = {"models": models, "tasks": tasks, "method": method_name, "n": n, "seed": seed}
    run = Run.open(out, command="heads", settings=settings)
    for name in models:
        model = load(name)
        run.note_model(name, describe(model))
        for task_name in tasks:
            yield _unit(run, model, task_name, score, n, seed)
    run.finish()


def _unit(run: Run, model: Model, task_name: str, score, n: int, seed: int) -> HeadResult:
    stem = f"{model.name}-{Path(task_name).stem}"
    scores_file, check_file = f"scores-{stem}.safetensors", f"check-{stem}.json"
    task = make_task(task_name, model.tokenizer, n=n, seed=seed)
    checked = check(model, task)
    if run.has(scores_file):
        scores = Scores.load(run.path(scores_file))
    else:
        began = time.perf_counter()
        scores = score(model, task)
        write_json(run.path(check_file), asdict(checked))
        run.add(check_file)
        scores.save(run.path(scores_file))
        run.add(scores_file, time.perf_counter() - began)
    picture, table = f"heads-{stem}.png", f"heads-{stem}.csv"
    save_figure(head_map(scores, label=scores.ranked()[:10]), run.path(picture))
    run.add(picture)
    write_bytes(run.path(table), _table(scores))
    run.add(table)
    return HeadResult(checked, scores, tuple(run.path(name) for name in (picture, table, scores_file)))


def describe(model: Model) -> dict:
    """What a manifest says of a model."""
    return {
        **model.source,
        "architecture": model.hf.config.model_type,
        "layers": model.n_layers,
        "heads": model.n_heads,
        "dtype": str(model.hf.dtype).removeprefix("torch."),
        "sha256": model.fingerprint(),
    }


def _table(scores: Scores) -> bytes:
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["rank", "head", "layer", "index", "score"])
    for rank, (layer, head) in enumerate(scores.ranked(), 1):
        rows.writerow([rank, head_name(layer, head), layer, head, f"{scores.values[layer, head]:.6g}"])
    return text.getvalue().encode()
