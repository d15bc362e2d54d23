"""What is shown of a function study. Answers are scored by the study itself, into `functions.json`: lists of rows."""

from __future__ import annotations

from functools import cached_property, partial
from typing import Any

from headscope.records import Scores, Table
from headscope.report.figures.functions import function_panels, panels_of
from headscope.report.outputs.outputs import Draw, Outputs

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
        return {"run": str(self.run.folder), **self.scored, "figures": self.drawn}
