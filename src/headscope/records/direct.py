"""What components write straight into the logits, and what the logits would be after every layer.

Shape letters: N prompts, C components, R points of the stream, T positions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np

from headscope.records.graph import parse_head
from headscope.records.record import Record
from headscope.records.scores import Scores


@dataclass(frozen=True)
class Direct(Record):
    """What every component writes straight into the logit difference of right and wrong answer.

    Components sum to `total`, the model's own logit difference: at the position that predicts the answer, or, where
    every position was asked for, as it would be read there.
    """

    model: str
    task: str
    components: list[str]  # (C,): embedding, L0.H0, ..., M0, ..., and last the biases that no component writes
    values: Annotated[np.ndarray, "C or C T"]  # mean over prompts
    per_prompt: Annotated[np.ndarray, "N C or N C T"]
    total: Annotated[np.ndarray, "N or N T"]  # the logit difference
    tokens: list[list[str]] = field(default_factory=list)  # of each prompt, where every position was asked for
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def heads(self) -> Scores:
        """What heads write for the answer, as scores: for a head map, a ranking, a circuit."""
        places = [at for at, name in enumerate(self.components) if name.startswith("L")]
        L, H = (1 + top for top in parse_head(self.components[places[-1]]))
        at_answer = self.per_prompt if self.per_prompt.ndim == 2 else self.per_prompt[:, :, -1]
        each = at_answer[:, places].reshape(-1, L, H)
        return Scores(self.model, self.task, "direct", each.mean(0), each, self.settings)

    def top(self, k: int) -> list[tuple[str, float]]:
        """The k components that write most for or against the answer.

        Args:
            k: how many.

        Returns:
            Name of each, and what it writes at the last position.
        """
        values = self.values if self.values.ndim == 1 else self.values[:, -1]
        order = np.argsort(-np.abs(values), kind="stable")[:k]
        return [(self.components[at], float(values[at])) for at in order]

    @property
    def COLUMNS(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return "model task component logit_difference" if self.values.ndim == 1 else (
            "model task component position logit_difference"
        )  # fmt: skip

    def rows(self) -> list[tuple[Any, ...]]:
        """Means over prompts, in the order in which the model computes."""
        return [
            (self.model, self.task, self.components[at[0]], *at[1:], float(value))
            for at, value in np.ndenumerate(self.values)
        ]


@dataclass(frozen=True)
class Lens(Record):
    """The logit lens: what the model would say if its stream were read after every layer."""

    model: str
    task: str
    points: list[str]  # (R,): embedding, and the layers
    values: Annotated[np.ndarray, "R or R T"]  # the logit difference, mean over prompts
    per_prompt: Annotated[np.ndarray, "N R or N R T"]
    likeliest: Annotated[np.ndarray, "N R or N R T"]  # the likeliest token, its place in `words`
    probability: Annotated[np.ndarray, "N R or N R T"]  # how likely that is
    words: list[str]
    tokens: list[list[str]] = field(default_factory=list)  # of each prompt, where every position was asked for
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def COLUMNS(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        place = "" if self.values.ndim == 1 else "position "
        return f"model task prompt read_after {place}logit_difference likeliest probability"

    def rows(self) -> list[tuple[Any, ...]]:
        """One per prompt, point of the stream and position."""
        return [
            (
                self.model, self.task, at[0], self.points[at[1]], *at[2:], float(value), self.words[self.likeliest[at]],
                float(self.probability[at]),
            )
            for at, value in np.ndenumerate(self.per_prompt)
        ]  # fmt: skip
