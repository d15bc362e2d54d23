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

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from headscope.methods import METHODS
from headscope.records import Attention, Check, Curve, Scores, head_name
from headscope.report.figures.panels import by_task, curve_figures, curve_panels, head_map
from headscope.runs.names import file_names
from headscope.runs.run import Run, open_run
from headscope.studies.attention import attention_of, shows_patterns
from headscope.studies.chosen_methods import chosen_methods
from headscope.studies.series import (
    CURVE_COLUMNS,
    RATIO_COLUMNS,
    Compared,
    compare,
    curve_rows,
    ratio_rows,
    save_figures,
    segments,
    summary,
    table_of,
    write_tables,
)
from headscope.studies.settings import HeadSettings
from headscope.studies.subjects import subjects
from headscope.sweeps import random_band, sweep


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


def study_heads(settings: HeadSettings, *, out: Path) -> HeadStudy:
    """Run the study, or go on with it, in the folder `out`."""
    methods = chosen_methods(settings.methods, METHODS)
    kept = {"signed": settings.signed, "fill": settings.fill}
    checks, all_scores, curves, bands = [], [], [], []
    with open_run(out, settings) as run:
        for subject in subjects(run, settings.models, settings.tasks, n=settings.n, seed=settings.seed):
            model, task = subject.model, subject.task
            checks.append(subject.check())
            for method in methods:
                scores = subject.unit("scores", Scores, partial(method, model, task), method=method.label)
                all_scores.append(scores)
                for ranking in settings.rankings:
                    how = {"ranking": ranking, "points": settings.points, **kept}
                    make = partial(sweep, model, task, scores, **how)
                    curves.append(subject.unit("curve", Curve, make, method=method.label, named=[ranking], **how))
            if shows_patterns(model, task):
                subject.unit("attention", Attention, partial(attention_of, model, task))
            if settings.draws and not any(method.score is METHODS["random"] for method in methods):
                how = {"draws": settings.draws, **kept}
                bands.append(subject.unit("band", Curve, partial(random_band, model, task, **how), **how))
        compared = compare(curves, settings.threshold)
        figures = _draw(run, all_scores, curves, bands, compared, settings)
        _write_tables(run, all_scores, curves + bands, compared, settings.threshold)
        run.finish()
    return HeadStudy(run.folder, checks, all_scores, curves, bands, compared, figures)


def _draw(
    run: Run, all_scores: list[Scores], curves: list[Curve], bands: list[Curve], compared: list[Compared],
    settings: HeadSettings,
) -> list[Path]:  # fmt: skip
    """The curves first, then a head map for each model, task and method."""
    figures = {
        name: curve_panels(
            by_task(part), bands=by_task(bands), segments=segments(part, compared), threshold=settings.threshold
        )
        for name, part in curve_figures(curves).items()
    }
    names = file_names(("heads", s.model, s.task, s.method) for s in all_scores)
    for s in all_scores:
        figures[names["heads", s.model, s.task, s.method]] = head_map(s, label=s.ranked()[:10])
    return save_figures(run, figures, settings.formats)


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
