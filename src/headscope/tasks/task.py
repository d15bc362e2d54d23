"""The Task record: what is asked of a model.

Each prompt has a target that should follow it, of one or more tokens. Where any of several tokens would do, as in "a
larger number than 32", the target is one token long and `answers` has them all.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from dataclasses import fields as dataclass_fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headscope.errors import InputError
from headscope.tasks.metrics import Metric, name_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Task:
    """Prompts with what should follow them, token-aligned corrupt twins, and the metric that says how much it does.

    metric: a name in `METRICS`, or a function (logits, asked) -> a number per prompt (see tasks/metrics.py).
    corrupt, corrupt_ids: may be empty; then nothing can be patched.
    answers, wrong: tokens that are right and wrong next after each prompt.
    targets: of each prompt, the tokens that should follow; empty where that is one token, any of the answers.
    foils: wrong targets of each prompt, of one or more tokens, to choose against.
    fields: what else is known of each prompt, for a metric of one's own (`asked.fields`).

    The ids are what `tokenizer(text)["input_ids"]` gives, special tokens included.
    """

    name: str
    metric: str | Metric
    clean: list[str]
    corrupt: list[str]
    clean_ids: list[list[int]]
    corrupt_ids: list[list[int]]
    answers: list[list[int]]
    wrong: list[list[int]]
    tokenizer: str
    seed: int | None
    targets: list[list[int]] = field(default_factory=list)
    foils: list[list[list[int]]] = field(default_factory=list)
    fields: list[dict[str, Any]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.clean)

    @property
    def description(self) -> str:
        seed = "" if self.seed is None else f", seed {self.seed}"
        what = "prompts with targets" if self.targets else "pairs"
        return f"{self.name}: {len(self)} {what}, {name_of(self.metric)}, tokenizer {self.tokenizer}{seed}"

    @property
    def digest(self) -> str:
        """Which prompts these are, in a few letters: the same for the same prompts in the same order."""
        asked = [self.clean_ids, self.corrupt_ids, self.answers, *([self.targets] if self.targets else [])]
        return hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:12]

    @cached_property
    def right(self) -> list[list[list[int]]]:
        """For each prompt, over the positions of its target, the tokens that are right there."""
        if self.targets:
            return [[[token] for token in target] for target in self.targets]
        return [[answers] for answers in self.answers]

    @cached_property
    def clean_rows(self) -> list[list[int]]:
        """Each prompt with its target behind it, all but the target's last token: what a model has to read."""
        return self._rows(self.clean_ids)

    @cached_property
    def corrupt_rows(self) -> list[list[int]]:
        """The same target behind the corrupt prompt."""
        return self._rows(self.corrupt_ids)

    def _rows(self, prompts: list[list[int]]) -> list[list[int]]:
        if not self.targets:
            return prompts
        # (A task may have no corrupt prompts.)
        return [prompt + target[:-1] for prompt, target in zip(prompts, self.targets, strict=False)]

    def take(self, which: slice | Iterable[int]) -> Task:
        """The task reduced to some of its prompts.

        Args:
            which: a slice, or indices in the wanted order.

        Returns:
            The smaller task.
        """
        rows = range(len(self))[which] if isinstance(which, slice) else list(which)
        columns = {each.name: getattr(self, each.name) for each in dataclass_fields(self)}
        picked = {
            name: [column[row] for row in rows]
            for name, column in columns.items()
            if isinstance(column, list) and column
        }
        return replace(self, **picked)


def tokenizer_name(tokenizer: PreTrainedTokenizerBase) -> str:
    """The tokenizer's name for messages: a Hub id as it is, a local folder without the path to it."""
    name = str(getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__)
    return Path(name).name if Path(name).is_dir() else name


def encode(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[list[int]]:
    """Ids of each text, exactly as the tokenizer gives them for one text alone."""
    return [list(ids) for ids in tokenizer(list(texts))["input_ids"]] if texts else []  # type: ignore[arg-type]


def refuse_closing_token(tokenizer: PreTrainedTokenizerBase) -> None:
    """A tokenizer that ends every text with a special token leaves no place for an answer."""
    ids = encode(tokenizer, ["word"])[0]
    if ids and ids[-1] in tokenizer.all_special_ids and ids[-1] != tokenizer.unk_token_id:
        raise InputError(
            f"The tokenizer {tokenizer_name(tokenizer)} puts {tokenizer.convert_ids_to_tokens(ids[-1])!r} at the end "
            "of every text, so that no prompt can be continued.\nLoad it with that turned off (add_eos_token=False)."
        )
