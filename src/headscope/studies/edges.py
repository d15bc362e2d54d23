"""The edge study: which edges between components a model uses for a task, and how few of them are enough.

1. Load each model once; make each task with its tokenizer; check how well it does.
2. Score the edges by each method; save the scores.
3. Sweep the number of edges kept, on a log axis; save the curve.
4. Choose the circuit at the threshold, and run it: what does it explain by itself?
5. Draw the curves of all series (model, method), compare them by their multiplier as the head study does, and draw
   and export the circuits.

Every record is a unit of the run folder: a killed run resumes after the last finished one.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from headscope.methods import EDGE_METHODS
from headscope.records import Curve, EdgeScores
from headscope.report.outputs import write
from headscope.report.outputs.edges import Edges, circuit_at
from headscope.runs.run import open_run
from headscope.studies.chosen_methods import chosen_methods
from headscope.studies.settings import EdgeSettings
from headscope.studies.subjects import subjects
from headscope.sweeps import crossfit, random_band, run_circuit, sweep


def study_edges(settings: EdgeSettings, *, out: Path) -> Edges:
    """Run the study, or go on with it, in the folder `out`."""
    methods = chosen_methods(settings.methods, EDGE_METHODS, " for edges", reserved=["split"])
    pick = {"signed": settings.signed, "choice": settings.choice}
    filled = {"fill": settings.fill, "baseline": settings.baseline}
    band = settings.draws and not any(method.score is EDGE_METHODS["random"] for method in methods)
    units = 1 + bool(band) + sum(2 + (method.score is not EDGE_METHODS["random"]) for method in methods)
    with open_run(out, settings) as run:
        for subject in subjects(run, settings, n=settings.n, units=units):
            model, task = subject.model, subject.task
            subject.check()
            for method in methods:
                options = {"split": settings.split, **method.towards(settings.fill)}
                score = partial(method, **options)
                scores = subject.unit("edges", EdgeScores, partial(score, model, task), method=method.label, **options)
                how = {"points": settings.points, **filled, **pick}
                make = partial(sweep, model, task, scores, **how)
                make = partial(crossfit, model, task, score, **how) if settings.crossfit else make
                how |= {"split": settings.split, "crossfit": settings.crossfit}
                curve = subject.unit("curve", Curve, make, method=method.label, **how)
                if "random" not in scores.method:
                    # Measured, because the curve says it between two of its points only.
                    chosen = {"connected": settings.connected, **pick}
                    circuit = circuit_at(scores, curve, settings.threshold, **chosen)
                    make = partial(run_circuit, model, task, scores, circuit.keep, **filled, **pick)
                    about = {"split": settings.split, **filled, **chosen}
                    k = circuit.settings["k"]
                    subject.unit("circuit", Curve, make, method=method.label, named=[k], **about)
            if band:
                how = {"draws": settings.draws, "split": settings.split, "signed": settings.signed, **filled}
                how |= {} if settings.points is None else {"points": settings.points}
                subject.unit("band", Curve, partial(random_band, model, task, **how), **how)
        return write(run, Edges)
