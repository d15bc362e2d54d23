"""What is shown of a head study."""

from __future__ import annotations

from functools import cached_property, partial

from headscope.records import Attention, Scores, Table
from headscope.report.figures.panels import head_map
from headscope.report.outputs.outputs import Draw
from headscope.report.outputs.series import Series
from headscope.runs.names import file_names


class Heads(Series):
    """The curves first, then a head map for each model, task and method."""

    on_page = ("curves", "heads-")
    what = "head"

    @cached_property
    def scores(self) -> list[Scores]:
        return list(self.run.records("scores-", Scores).values())

    @cached_property
    def attention(self) -> list[Attention]:
        return list(self.run.records("attention-", Attention).values())

    def figures(self) -> dict[str, Draw]:
        names = file_names(("heads", s.model, s.task, s.method) for s in self.scores)
        maps = {
            names["heads", s.model, s.task, s.method]: partial(head_map, s, label=s.ranked()[:10]) for s in self.scores
        }
        return super().figures() | maps

    def tables(self) -> dict[str, Table]:
        heads = [row for scores in self.scores for row in scores.rows()]
        return {"heads": Table.of(Scores.COLUMNS, heads, floats=".6g"), **super().tables()}
