"""What a function study found, scored: the rows of its tables, the panels of its figure, and the run's last files."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from headscope.functions.answers import Embedder
from headscope.functions.comet import Comet, Environment
from headscope.functions.embedding import embedder as load_embedder
from headscope.functions.masking import choose
from headscope.functions.probe import elbow
from headscope.functions.questions import chosen_functions
from headscope.progress import bar
from headscope.records import head_name
from headscope.records.files import write_json
from headscope.report.outputs import write
from headscope.report.outputs.functions import Functions
from headscope.runs.run import open_run
from headscope.studies.functions import Outcome, Subject, read_questions, run_study
from headscope.studies.settings import FunctionSettings

# Scores in the tables, in this order; cosine, similarity and comet only where they were computed.
SCORES = ("accuracy", "match", "exact", "numeric", "bleu", "rouge", "chrf", "cosine", "similarity", "comet")
Row = dict[str, Any]


def conclude(
    outcome: Outcome, *, comet: Comet | None = None, comet_note: str = "", embed: Embedder | None = None
) -> Functions:
    """Step 5: score everything; what is shown of it follows from the scores."""
    scorer = _Scorer(outcome, comet, embed)
    rows = {
        "base": [scorer.base(name, subject) for name, subject in outcome.subjects.items()],
        "rankings": _rankings(outcome),
        "agreement": _agreement(outcome),
        "sweep": scorer.sweep(),
        "cross": scorer.cross(),
        "steered": scorer.steered(),
    }
    said = f"COMET by {Path(comet.checkpoint).name}" if comet is not None else f"COMET not scored: {comet_note}"
    run = outcome.kept.run
    whole = {**rows, "comet": said, "skipped": outcome.skipped, "stray": outcome.stray}
    write_json(run.path("functions.json"), whole)
    run.add("functions.json")
    return write(run, Functions)


@dataclass(frozen=True)
class _Scorer:
    outcome: Outcome
    comet: Comet | None
    embed: Embedder | None

    def scores(self, unit: str, subject: Subject, variants: Sequence[Sequence[str]]) -> list[dict[str, float]]:
        """Mean of every score over the test questions, for each variant's answers."""
        by_variant = [subject.scores(texts, self.embed) for texts in variants]
        if self.comet is not None:
            for scores, values in zip(by_variant, self._comet(unit, subject, variants), strict=True):
                scores["comet"] = np.array(values)
        return [{name: float(scores[name].mean()) for name in SCORES if name in scores} for scores in by_variant]

    def _comet(self, unit: str, subject: Subject, variants: Sequence[Sequence[str]]) -> list[list[float]]:
        comet = self.comet
        assert comet is not None

        def make() -> list[list[float]]:
            # As in the paper: the masked answer against the unmasked one, with the right answer as source.
            return [comet.score(subject.gold, texts, subject.unmasked).tolist() for texts in variants]

        with bar(f"COMET of {unit}", len(variants), unit="variants"):
            return self.outcome.kept.unit(("comet", unit), subject, make, checkpoint=str(comet.checkpoint))

    def base(self, name: str, subject: Subject) -> Row:
        (scores,) = self.scores(f"base-{name}", subject, [subject.unmasked])
        counts = {"n": len(subject.split.test), "train": len(subject.split.train), "cut": subject.cut}
        return {"function": name, **counts, **scores}

    def sweep(self) -> list[Row]:
        rows = []
        for (ranking, name, k), unit in self.outcome.sweeps.items():
            variants = [unit["top"], *unit["random"]]
            top, *random = self.scores(f"masked-{ranking}-{name}-{k}", self.outcome.subjects[name], variants)
            row: Row = {"ranking": ranking, "function": name, "k": k}
            for score in top:
                draws = [draw[score] for draw in random]
                row[f"top_{score}"] = top[score]
                row[f"random_{score}"] = float(np.mean(draws)) if draws else float("nan")
                row[f"random_{score}_low"] = min(draws, default=float("nan"))
                row[f"random_{score}_high"] = max(draws, default=float("nan"))
            # Below every draw: the difference is larger than the band.
            row["below"] = top["accuracy"] < row["random_accuracy_low"]
            rows.append(row)
        return rows

    def cross(self) -> list[Row]:
        rows = []
        for (ranking, asked), by_masked in self.outcome.crosses.items():
            unit, subject = f"cross-{ranking}-{asked}", self.outcome.subjects[asked]
            scored = self.scores(unit, subject, list(by_masked.values()))
            for masked, scores in zip(by_masked, scored, strict=True):
                rows.append({"ranking": ranking, "masked": masked, "asked": asked, "k": self.outcome.cross_k, **scores})
        return rows

    def steered(self) -> list[Row]:
        rows = []
        for name, unit in self.outcome.steered.items():
            about = {"function": name, "k": unit["k"], "right": unit["right"], "wrong": unit["wrong"]}
            subject = self.outcome.subjects[name]
            (base,) = self.scores(f"base-{name}", subject, [subject.unmasked])
            scored = self.scores(f"steered-{name}", subject, list(unit["texts"].values()))
            rows += [
                {**about, "alpha": float(alpha), "base_match": base["match"], **scores}
                for alpha, scores in zip(unit["texts"], scored, strict=True)
            ]
        return rows


def _rankings(outcome: Outcome) -> list[Row]:
    rows = []
    for ranking, by_function in outcome.rankings.items():
        for name, scores in by_function.items():
            best = " ".join(head_name(l, h) for l, h in scores.ranked()[:10])
            accuracy = scores.settings.get("probe_accuracy")
            row = {"ranking": ranking, "function": name, "elbow": elbow(scores.values), "best": best}
            rows.append({**row, "probe_accuracy": accuracy, "n": len(scores.per_prompt)})
    return rows


def _agreement(outcome: Outcome) -> list[Row]:
    """Rank correlation of absolute scores, and shared heads among the K best, for each pair of rankings."""
    rows = []
    for first, second in combinations(outcome.rankings, 2):
        for name in outcome.subjects:
            a, b = outcome.rankings[first][name], outcome.rankings[second][name]
            ranks = [np.argsort(np.argsort(np.abs(scores.values), axis=None)) for scores in (a, b)]
            row: Row = {"first": first, "second": second, "function": name}
            row["correlation"] = float(np.corrcoef(ranks[0], ranks[1])[0, 1])
            for k in outcome.ks:
                tops = [set(choose(scores, k, draws=0, seed=0).top) for scores in (a, b)]
                row[f"shared_{k}"] = len(tops[0] & tops[1])
            rows.append(row)
    return rows


def study_functions(settings: FunctionSettings, *, out: Path) -> Functions:
    """The whole study in the folder `out`, or what is missing of it. Where there is no COMET the figure says so."""
    chosen_functions(settings.functions or None, read_questions(settings.data))
    environment, comet = Environment.here(), settings.comet
    checkpoint, note = (environment.checkpoint, environment.missing) if comet == "auto" else (comet, "not asked for")
    checkpoint = None if comet == "none" or (comet == "auto" and environment.missing) else checkpoint
    # What is missing is told before hours of work, not after.
    with ExitStack() as stack:
        scorer = None if checkpoint is None else stack.enter_context(Comet(checkpoint))
        embed = None if settings.embedder in ("", "none") else load_embedder(settings.embedder)
        run = stack.enter_context(open_run(out, settings))
        return conclude(run_study(run, settings), comet=scorer, comet_note=note, embed=embed)
