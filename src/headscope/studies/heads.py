"""The head study: for every model and task, how well the model does it, which heads it does it with, and how few are
enough.

1. Load each model once; make each task with its tokenizer; check how well it does.
2. Score the heads by each method; save the scores.
3. Sweep the number of heads kept under each ranking; save the curve, with a band of random rankings for reference.
   Save the attention patterns of a few prompts, to look at.
4. Draw head maps and the curves of all series (model, method, ranking) side by side, and compare series by their
   multiplier: of several models the first with each other one by the same method and ranking (with several rankings,
   in a figure for each); of one model the first series with each other one.

Every record is a unit of the run folder: a killed run resumes after the last finished one.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from matplotlib.figure import Figure

from headscope.errors import InputError
from headscope.methods import method
from headscope.models import Model, load
from headscope.records import Attention, Check, Curve, Multiplier, Record, Scores, head_name, multiplier, needed
from headscope.records.files import write_bytes, write_json
from headscope.report.figures.panels import (
    FORMATS,
    Ratio,
    by_task,
    curve_figures,
    curve_panels,
    head_map,
    save_figure,
    segments_of,
)
from headscope.running.fills import FILLS
from headscope.running.measure import check
from headscope.runs.run import Run
from headscope.studies.attention import attention_of, shows_patterns
from headscope.sweeps import RANKINGS, random_band, sweep
from headscope.tasks import Task, make_task

R = TypeVar("R", bound=Record)


@dataclass(frozen=True)
class Compared:
    """Two series on a task, by their labels, and the multiplier of the first over the second."""

    task: str
    first: str
    against: str
    ranking: str
    found: Multiplier

    def as_dict(self) -> dict[str, Any]:
        return {"task": self.task, "first": self.first, "against": self.against, **asdict(self.found)}


@dataclass(frozen=True)
class HeadStudy:
    """What the head study found. Series follow models, then methods, then rankings."""

    folder: Path
    checks: list[Check]
    scores: list[Scores]
    curves: list[Curve]
    bands: list[Curve]
    multipliers: list[Compared]
    figures: list[Path]


def study_heads(
    models: list[str], tasks: list[str], *, out: Path, methods: Iterable[str] = ("patching",),
    rankings: Iterable[str] = ("task",), n: int = 100, seed: int = 0, fill: str = "corrupt", signed: bool = False,
    threshold: float = 0.9, draws: int = 3, points: int | None = None,
    formats: Iterable[str] = ("png", "svg", "pdf"),
) -> HeadStudy:  # fmt: skip
    """Run the study, or go on with it, in the folder `out`. points: of a curve at most, if not the usual grid."""
    methods, rankings, formats = list(methods), list(rankings), list(formats)
    score = {name: method(name) for name in methods}
    refuse_unknown("format", formats, FORMATS)
    refuse_unknown("ranking", rankings, RANKINGS)
    refuse_unknown("fill", [fill], FILLS)
    settings = {
        "models": models, "tasks": tasks, "methods": methods, "rankings": rankings, "n": n, "seed": seed, "fill": fill,
        "signed": signed, "draws": draws, **({"points": points} if points else {}), **file_hashes(tasks),
    }  # fmt: skip
    run = Run.open(out, command="heads", settings=settings)
    checks, all_scores, curves, bands = [], [], [], []
    for model, task, stem, found in subjects(run, models, tasks, n=n, seed=seed):
        checks.append(found)
        for method_name in methods:
            part = f"{stem}-{method_name}"
            scores = unit(run, f"scores-{part}", Scores, lambda m=method_name, t=task, mo=model: score[m](mo, t))
            all_scores.append(scores)
            for ranking in rankings:
                options = {"ranking": ranking, "signed": signed, "fill": fill, "points": points}
                make = lambda mo=model, t=task, s=scores, o=options: sweep(mo, t, s, **o)  # noqa: E731
                curves.append(unit(run, f"curve-{part}-{ranking}", Curve, make))
        if shows_patterns(model, task):
            unit(run, f"attention-{stem}", Attention, lambda mo=model, t=task: attention_of(mo, t))
        if draws and "random" not in methods:
            make = lambda mo=model, t=task: random_band(mo, t, draws=draws, fill=fill, signed=signed)  # noqa: E731
            bands.append(unit(run, f"band-{stem}", Curve, make))
    compared = compare(curves, threshold)
    figures = _draw(run, all_scores, curves, bands, compared, threshold, formats)
    _write_tables(run, all_scores, curves + bands, compared, threshold)
    run.finish()
    return HeadStudy(run.folder, checks, all_scores, curves, bands, compared, figures)


def refuse_unknown(what: str, asked: Iterable[str], known: Iterable[str]) -> None:
    """Misspelt options are told before a model is loaded."""
    if unknown := [name for name in asked if name not in known]:
        raise InputError(f"Unknown {what} {unknown[0]!r}. Known: {', '.join(known)}.")


def subjects(
    run: Run, models: list[str], tasks: list[str], *, n: int, seed: int
) -> Iterator[tuple[Model, Task, str, Check]]:
    """Every model on every task: both, the stem of their files, and how well the model does. Models are loaded once."""
    for name, short in zip(models, distinct(models), strict=True):
        model = replace(load(name), name=short)
        run.note_model(name, describe(model))
        for task_name, title in zip(tasks, distinct(tasks), strict=True):
            task = replace(make_task(task_name, model.tokenizer, n=n, seed=seed), name=title)
            stem = f"{model.name}-{title}"
            yield model, task, stem, checked(run, f"check-{stem}.json", model, task)


def distinct(names: list[str]) -> list[str]:
    """Short names that tell models (or tasks) apart: the last part of a path, more of it where that is not enough."""
    if twice := [name for name in names if names.count(name) > 1]:
        raise InputError(f"{twice[0]} is named twice. Name everything once.")
    bare = [name.removeprefix("hub:").replace(":", "-").removesuffix(".gguf") for name in names]
    paths = [Path(name.removesuffix(".jsonl").removesuffix(".json")) for name in bare]
    for depth in range(1, max(len(path.parts) for path in paths) + 1):
        short = ["-".join(path.parts[-depth:]).strip("-/") for path in paths]
        if len(set(short)) == len(names):
            return short
    raise InputError(f"{' and '.join(names)} cannot be told apart by their names. Rename one.")


def file_hashes(tasks: list[str]) -> dict[str, str]:
    """SHA-256 of the files among the tasks: a run is not resumed with a file that has changed."""
    files = [Path(name) for name in tasks if name.endswith((".jsonl", ".json")) and Path(name).is_file()]
    return {f"sha256 of {file.name}": hashlib.sha256(file.read_bytes()).hexdigest()[:16] for file in files}


def unit(run: Run, name: str, kind: type[R], make: Callable[[], R]) -> R:
    """A record of the run: read if it is there, otherwise made and saved."""
    file = f"{name}.safetensors"
    if run.has(file):
        return kind.load(run.path(file))
    began = time.perf_counter()
    record = make()
    record.save(run.path(file))
    run.add(file, time.perf_counter() - began)
    return record


def checked(run: Run, file: str, model: Model, task: Task) -> Check:
    if run.has(file):
        try:
            return Check(**json.loads(run.path(file).read_text()))
        except (ValueError, TypeError) as error:
            raise InputError(f"{run.path(file)} is damaged: {error}. Delete it to have it made again.") from error
    found = check(model, task)
    write_json(run.path(file), asdict(found))
    run.add(file)
    return found


def compare(curves: list[Curve], threshold: float) -> list[Compared]:
    """On every task, of several models the first with each other one by the same method and ranking, of one model the
    first series with each other one."""
    several = len({curve.model for curve in curves}) > 1
    groups: dict[tuple[str, ...], list[Curve]] = {}
    for curve in curves:
        same = (curve.method, curve.settings["ranking"]) if several else ()
        groups.setdefault((curve.task, *same), []).append(curve)
    return [
        Compared(c.task, group[0].label, c.label, c.settings["ranking"], multiplier(group[0], c, threshold=threshold))
        for group in groups.values()
        for c in group[1:]
    ]


def _draw(
    run: Run, all_scores: list[Scores], curves: list[Curve], bands: list[Curve], compared: list[Compared],
    threshold: float, formats: list[str],
) -> list[Path]:  # fmt: skip
    """The curves first, then a head map for each model, task and method."""
    figures = {
        name: curve_panels(by_task(part), bands=by_task(bands), segments=segments(part, compared), threshold=threshold)
        for name, part in curve_figures(curves).items()
    }
    for scores in all_scores:
        name = f"heads-{scores.model}-{scores.task}-{scores.method}"
        figures[name] = head_map(scores, label=scores.ranked()[:10])
    return save_figures(run, figures, formats)


def save_figures(run: Run, figures: Mapping[str, Figure], formats: Iterable[str]) -> list[Path]:
    """Each figure in each format as a file of the run."""
    paths = []
    for name, figure in figures.items():
        for ending in formats:
            paths.append(save_figure(figure, run.path(f"{name}.{ending}")))
            run.add(f"{name}.{ending}")
    return paths


def segments(curves: list[Curve], compared: list[Compared]) -> dict[str, tuple[float, float, float]]:
    """By task, where two curves reach the threshold and their multiplier; nothing where there are more than two."""
    found = [Ratio(c.task, c.first, c.against, c.found.dense_k, c.found.sparse_k, c.found.value) for c in compared]
    return segments_of(curves, found)


def _write_tables(
    run: Run, all_scores: list[Scores], curves: list[Curve], compared: list[Compared], threshold: float
) -> None:
    heads = [
        (s.model, s.task, s.method, rank, head_name(layer, head), layer, head, f"{s.values[layer, head]:.6g}")
        for s in all_scores
        for rank, (layer, head) in enumerate(s.ranked(), 1)
    ]
    write_tables(
        run,
        {
            "heads.csv": ("model task method rank head layer index score", heads),
            "summary.csv": table_of([summary(curve, threshold) for curve in curves]),
            "curves.csv": (CURVE_COLUMNS, curve_rows(curves)),
            "multipliers.csv": (RATIO_COLUMNS, ratio_rows(compared)),
        },
    )


CURVE_COLUMNS = "model task method ranking k explained low high"
RATIO_COLUMNS = "task first against multiplier low high first_k second_k threshold note"


def curve_rows(curves: list[Curve]) -> list[tuple]:
    return [
        (c.model, c.task, c.method, c.settings["ranking"], int(k), f"{mid:.6g}", f"{low:.6g}", f"{high:.6g}")
        for c in curves
        for k, mid, low, high in zip(c.k, c.explained, c.low, c.high, strict=True)
    ]


def ratio_rows(compared: list[Compared]) -> list[tuple]:
    rows = []
    for c in compared:
        m = c.found
        rows.append((c.task, c.first, c.against, m.value, m.low, m.high, m.dense_k, m.sparse_k, m.threshold, m.note))
    return rows


def write_tables(run: Run, tables: dict[str, tuple[str, list[tuple]]]) -> None:
    """CSV files of a run: by name, the columns and the rows."""
    for name, (columns, rows) in tables.items():
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(columns.split())
        writer.writerows(rows)
        write_bytes(run.path(name), text.getvalue().encode())
        run.add(name)


def table_of(rows: list[dict[str, Any]]) -> tuple[str, list[tuple]]:
    """Columns and rows of records that have the same keys."""
    return " ".join(rows[0]) if rows else "", [tuple(row.values()) for row in rows]


def summary(curve: Curve, threshold: float) -> dict[str, Any]:
    """One curve in a few numbers. As in MIB, a ranking by signed score gives CPR, one by absolute score CMD."""
    about, need = curve.settings, needed(curve, threshold=threshold)
    signed = about["signed"]
    return {
        "model": curve.model, "task": curve.task, "method": curve.method, "ranking": about["ranking"],
        "choice": about.get("choice", "top"), "signed": signed, "total": about["total"], "threshold": threshold,
        "k_at_threshold": need.k, "k_low": need.low, "k_high": need.high, "at_none": float(curve.explained[0]),
        "at_all": float(curve.explained[-1]), "area": curve.area, "cpr": curve.cpr if signed else None,
        "cmd": None if signed else curve.cmd,
    }  # fmt: skip


def describe(model: Model) -> dict[str, Any]:
    """What a manifest says of a model."""
    return {
        **model.source,
        "architecture": model.hf.config.model_type,
        "layers": model.n_layers,
        "heads": model.n_heads,
        "dtype": str(model.hf.dtype).removeprefix("torch."),
        "sha256": model.fingerprint(),
    }
