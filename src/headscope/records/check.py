"""How well a model does a task."""

from __future__ import annotations

from dataclasses import dataclass

from headscope.records.showing import Shown


@dataclass(frozen=True)
class Check(Shown):
    """How well a model does a task: share of prompts solved, and the mean metric on clean and corrupt prompts."""

    model: str
    task: str
    n: int
    accuracy: float
    metric_name: str
    metric: float
    corrupt_metric: float
    note: str = ""  # what may be the cause where the model does not do the task

    @property
    def usable(self) -> bool:
        """Whether there is behaviour to explain at all: better than chance, and gone in the corrupt prompts (where a
        task has none, its corrupt metric is not a number)."""
        return self.accuracy > 0.5 and not self.metric <= self.corrupt_metric
