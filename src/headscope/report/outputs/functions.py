"""What is shown of a function study. Answers are scored by the study itself, into `functions.json`: lists of rows."""

from __future__ import annotations

from functools import cached_property, partial
from typing import Any

from headscope.records import Scores, Table
from headscope.report.figures.functions import function_panels, panels_of
from headscope.report.figures.titles import task_title
from headscope.report.outputs.outputs import Draw, Outputs, listed

TABLES = ("base", "rankings", "agreement", "sweep", "cross", "steered")


class Functions(Outputs):
    """A figure for each ranking."""

    on_page = ("functions-",)

    @cached_property
    def scored(self) -> dict[str, Any]:
        """The rows of every table, what was said of COMET, and what could not be used; nothing before the end."""
        empty = {name: [] for name in TABLES} | {"comet": "", "skipped": [], "stray": {}}
        scored = self.run.json("functions.json") if "functions.json" in self.run.manifest["files"] else {}
        return {**empty, **(scored if isinstance(scored, dict) else {})}

    @cached_property
    def scores(self) -> dict[str, list[Scores]]:
        """By ranking."""
        rankings = self.run.manifest["settings"].get("rankings") or ()
        return {name: list(self.run.records(f"scores-{name}-", Scores).values()) for name in rankings}

    def sentences(self) -> list[str]:
        rows, base = self.scored["sweep"], self.scored["base"]
        if not rows:
            return []
        most = max(rows, key=lambda row: row["random_accuracy"] - row["top_accuracy"])
        low, high = most["random_accuracy_low"], most["random_accuracy_high"]
        right = listed([f"{row.get('match', row['accuracy']):.0%} in {task_title(row['function'])}" for row in base])
        return [
            f"Masking the {most['k']} best heads of {task_title(most['function'])} ({most['ranking']}) leaves an "
            f"accuracy of {most['top_accuracy']:.2f}, as many at random {most['random_accuracy']:.2f} "
            f"({low:.2f} to {high:.2f}).",
            f"The best heads do more harm than every random draw in {sum(row['below'] for row in rows)} of {len(rows)} "
            "cases.",
            f"With every head in place the model is right {right}.",
        ]

    def figures(self) -> dict[str, Draw]:
        said, settings = str(self.scored["comet"] or ""), self.run.manifest["settings"]
        figures: dict[str, Draw] = {}
        for ranking, scores in self.scores.items() if self.scored["base"] else ():
            model = scores[0].model if scores else settings.get("model", "")
            heads = scores[0].values.size if scores else None
            panels = panels_of(ranking, self.scored["sweep"], self.scored["base"], heads=heads)
            title = f"{model}, heads by {ranking}, {settings.get('n')} questions each"
            note = "" if said.startswith("COMET by") else said
            figures[f"functions-{ranking}"] = partial(function_panels, panels, title=title, note=note)
        return figures

    def tables(self) -> dict[str, Table]:
        return {name: Table.of_dicts(self.scored[name]) for name in TABLES if self.scored[name]}

    def findings(self, *, top: int = 10) -> dict[str, Any]:
        model = self.run.manifest["settings"].get("model", "")
        return {"run": str(self.run.folder), "model": model, **self.scored, "figures": self.drawn}
