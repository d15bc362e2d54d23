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

from functools import partial
from pathlib import Path

from headscope.errors import InputError
from headscope.methods import METHODS
from headscope.records import Attention, Curve, Scores
from headscope.report.outputs import write
from headscope.report.outputs.heads import Heads
from headscope.runs.run import open_run
from headscope.studies.attention import attention_of, shows_patterns
from headscope.studies.chosen_methods import chosen_methods
from headscope.studies.settings import HeadSettings
from headscope.studies.subjects import subjects
from headscope.sweeps import crossfit, random_band, sweep


def study_heads(settings: HeadSettings, *, out: Path) -> Heads:
    """Run the study, or go on with it, in the folder `out`."""
    methods = chosen_methods(settings.methods, METHODS)
    kept = {"signed": settings.signed, "fill": settings.fill, "baseline": settings.baseline}
    if settings.crossfit and "prompt" in settings.rankings:
        raise InputError("--crossfit ranks one half of the prompts for the other; --ranking prompt has one for each.")
    band = settings.draws and not any(method.score is METHODS["random"] for method in methods)
    units = 2 + bool(band) + len(methods) * (1 + len(settings.rankings))
    with open_run(out, settings) as run:
        for subject in subjects(run, settings, n=settings.n, units=units):
            model, task = subject.model, subject.task
            subject.check()
            for method in methods:
                score = partial(method, **method.towards(settings.fill))
                make = partial(score, model, task)
                scores = subject.unit("scores", Scores, make, method=method.label, **method.towards(settings.fill))
                for ranking in settings.rankings:
                    how = {"ranking": ranking, "points": settings.points, **kept}
                    make = partial(sweep, model, task, scores, **how)
                    make = partial(crossfit, model, task, score, **how) if settings.crossfit else make
                    how["crossfit"] = settings.crossfit
                    subject.unit("curve", Curve, make, method=method.label, named=[ranking], **how)
            if shows_patterns(model, task):
                subject.unit("attention", Attention, partial(attention_of, model, task))
            if band:
                # (Without --points a band has fewer than the curves: it is straight.)
                how = {"draws": settings.draws, **kept}
                how |= {} if settings.points is None else {"points": settings.points}
                subject.unit("band", Curve, partial(random_band, model, task, **how), **how)
        return write(run, Heads)
