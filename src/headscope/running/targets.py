"""Targets of some prompts as tensors, the logits that predict them, and the metric on those.

A row is a prompt with its target behind it, all but the target's last token: its last positions are those that predict
the target. An answer of one token is a target of length one, whose row is the prompt. Rows of one length need no
padding; others are padded on the right, where a causal model never looks. Logits are computed at the positions that
predict a target and nowhere else.

Shape letters: B rows, T positions, P positions of the longest target, A tokens that are right (or wrong) there,
D stream width, V vocabulary.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from headscope.errors import InputError
from headscope.models.model import Model
from headscope.models.weights import is_plain, refuse_overflow
from headscope.running.batching import out_of_memory
from headscope.running.layer_modules import narrowed, replaced
from headscope.tasks.metrics import (
    AGAINST_CLEAN,
    ANSWERING,
    BUILT_IN,
    COMPARING,
    NARROW,
    Metric,
    accuracy,
    log_prob,
    metric_of,
    name_of,
)
from headscope.tasks.task import Task


@dataclass(frozen=True)
class Targets:
    """The tokens that are right and wrong at each target position of some prompts, and the metric on their logits.

    Called with logits (B, P, V) it gives the metric of every prompt, (B,)."""

    metric: str | Metric
    length_B: Tensor  # tokens of each target
    right_BPA: Tensor
    has_right_BPA: Tensor
    wrong_BPA: Tensor
    has_wrong_BPA: Tensor
    fields: Sequence[dict[str, Any]] = ()  # what else is known of each prompt
    clean_BPV: Tensor | None = None  # logits of the clean run, for metrics that compare with it

    @classmethod
    def of(cls, task: Task, rows: Sequence[int], device: torch.device) -> Targets:
        wrong = [[task.wrong[i]] if task.wrong else [[]] for i in rows]
        asked = cls.from_tokens(task.metric, [task.right[i] for i in rows], wrong, device)
        return replace(asked, fields=[task.fields[i] for i in rows]) if task.fields else asked

    @classmethod
    def from_tokens(
        cls, metric: str | Metric, right: list[list[list[int]]], wrong: list[list[list[int]]], device: torch.device
    ) -> Targets:
        """right, wrong: for each prompt, over the positions of its target, the tokens that are right or wrong there."""
        longest = max(map(len, right))
        length_B = torch.tensor([len(target) for target in right], device=device)
        # (Wrong tokens stand where the target begins.)
        wrong = [side + [[]] * (len(target) - len(side)) for side, target in zip(wrong, right, strict=True)]
        return cls(metric, length_B, *_pad(right, longest, device), *_pad(wrong, longest, device))

    @classmethod
    def first_two(cls, rows: int, device: torch.device, *, positions: int = 1) -> Targets:
        """Token 1 against token 2 at every position: a stand-in for models without a task."""
        right, wrong = ([[[token]] * positions] * rows for token in (1, 2))
        return cls.from_tokens("logit-diff", right, wrong, device)

    @property
    def positions(self) -> int:
        return self.right_BPA.shape[1]

    @property
    def in_target_BP(self) -> Tensor:
        """Targets end together: shorter ones begin later."""
        place_P = torch.arange(self.positions, device=self.length_B.device)
        return place_P >= self.positions - self.length_B[:, None]

    def __len__(self) -> int:
        return len(self.length_B)

    def __call__(self, logits_BPV: Tensor) -> Tensor:
        metric = metric_of(self.metric)
        logits_BPV = logits_BPV.float() if logits_BPV.dtype in (torch.float16, torch.bfloat16) else logits_BPV
        value = metric(logits_BPV, self) if metric in BUILT_IN else self._checked(metric, logits_BPV)
        if not bool(value.isfinite().all()):
            found = value[~value.isfinite()][0].item()
            raise InputError(f"The metric {name_of(self.metric)}: expected finite numbers, found {found}.")
        if logits_BPV.requires_grad and not value.requires_grad:
            raise InputError(
                f"The metric {name_of(self.metric)} has no gradient, which this method needs: compute it from the "
                "logits with torch."
            )
        return value

    def _checked(self, metric: Metric, logits_BPV: Tensor) -> Tensor:
        """What a metric of the user's gives, or what is wrong with it in one line."""
        name = f"The metric {name_of(self.metric)}"
        try:
            value: Any = metric(logits_BPV) if _takes_one(metric) else metric(logits_BPV, self)  # pyright: ignore[reportCallIssue]
        except Exception as error:
            if isinstance(error, InputError) or out_of_memory(error):
                raise
            said = (str(error).splitlines() or [""])[0]
            raise InputError(f"{name} fails: {type(error).__name__}: {said}") from error
        if not isinstance(value, Tensor) or value.shape != (len(self),) or not value.is_floating_point():
            found = (
                f"{value.dtype} of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            )
            raise InputError(f"{name}: expected a tensor with a number per prompt, ({len(self)},), found {found}.")
        return value

    def solved(self, logits_BPV: Tensor) -> Tensor:
        """Whether each prompt is solved: its right tokens beat the wrong ones, or, for metrics that compare none, the
        likeliest token is a right one at every position of its target; (B,)."""
        if metric_of(self.metric) in (*COMPARING, accuracy):
            return self(logits_BPV) > 0
        best_BP1 = logits_BPV.argmax(-1, keepdim=True)
        return (((self.right_BPA == best_BP1) & self.has_right_BPA).any(-1) | ~self.in_target_BP).all(-1)


def asked_of(model: Model, task: Task, rows: Sequence[int]) -> Targets:
    """The targets of some of a task's prompts, with the clean run where the metric compares with it."""
    targets = Targets.of(task, rows, model.device)
    if metric_of(task.metric) not in AGAINST_CLEAN:
        return targets
    with torch.no_grad():
        return replace(targets, clean_BPV=target_logits(model, [task.clean_rows[i] for i in rows], targets))


def _takes_one(metric: Metric) -> bool:
    """Whether a metric of the user's reads logits alone."""
    try:
        wanted = inspect.signature(metric).parameters.values()
    except (TypeError, ValueError):
        return False
    return sum(one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD, one.VAR_POSITIONAL) for one in wanted) == 1


def _pad(tokens: list[list[list[int]]], positions: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Tokens and which of them are there, (B, P, A). At positions before a target something is there, which counts
    nowhere: nothing at all would make gradients that are not numbers."""
    whole = [[[0]] * (positions - len(row)) + row for row in tokens]
    width = max(1, max(len(at) for row in whole for at in row))
    padded = [[at + [0] * (width - len(at)) for at in row] for row in whole]
    has = [[[True] * len(at) + [False] * (width - len(at)) for at in row] for row in whole]
    return torch.tensor(padded, device=device), torch.tensor(has, device=device)


def target_logits(model: Model, ids: list[list[int]], targets: Targets) -> Tensor:
    """Logits at the target positions of each row, (B, P, V); finite, or the model's largest weights are named."""
    logits_BPV = _target_logits(model, ids, targets)
    refuse_overflow(model.hf, logits_BPV)
    return logits_BPV


def _target_logits(model: Model, ids: list[list[int]], targets: Targets) -> Tensor:
    P, lengths, longest = targets.positions, [len(row) for row in ids], max(map(len, ids))
    rows = [row + [0] * (longest - len(row)) for row in ids]
    ids_BT = torch.tensor(rows, device=model.device)
    if min(lengths) == longest:
        return model.hf(input_ids=ids_BT, use_cache=False, logits_to_keep=P).logits[:, -P:]
    places_BP = torch.tensor(lengths, device=model.device)[:, None] - torch.arange(P, 0, -1, device=model.device)
    row_B1, places_BP = torch.arange(len(ids), device=model.device)[:, None], places_BP.clamp(min=0)
    head: Any = model.hf.get_output_embeddings()
    if not isinstance(head, nn.Module):
        return model.hf(input_ids=ids_BT, use_cache=False).logits[row_B1, places_BP]
    plain = head.forward
    with replaced(head, lambda hidden_BTD: plain(hidden_BTD[row_B1, places_BP])):
        return model.hf(input_ids=ids_BT, use_cache=False).logits


def metrics_of(model: Model, ids: list[list[int]], targets: Targets) -> Tensor:
    """The metric of every row in one plain run, (B,). Of the unembedding only the rows that it reads are multiplied."""
    narrow, narrow_targets = narrow_head(model, targets)
    with narrow:
        return narrow_targets(target_logits(model, ids, narrow_targets))


def narrow_head(model: Model, targets: Targets) -> tuple[AbstractContextManager[Any], Targets]:
    """A block in which the unembedding gives only the logits that the metric reads, and the metric on those."""
    head = model.hf.get_output_embeddings()
    if metric_of(targets.metric) not in NARROW or type(head) is not nn.Linear or not is_plain(head.weight):
        return ExitStack(), targets
    both_BPA = torch.cat([targets.right_BPA, targets.wrong_BPA], dim=-1)
    wanted, places = both_BPA.unique(return_inverse=True)
    right, wrong = places.split([targets.right_BPA.shape[-1], targets.wrong_BPA.shape[-1]], dim=-1)
    return narrowed(head, wanted), replace(targets, right_BPA=right, wrong_BPA=wrong)


def token_log_probs(model: Model, ids: list[list[int]], targets: Targets) -> Tensor:
    """Mean log P over the tokens of each row's target, (B,). Carries gradients where they are wanted."""
    total_B = replace(targets, metric=log_prob)(target_logits(model, ids, targets))
    return total_B / targets.length_B


def refuse_unfit(model: Model, task: Task, *, corrupt: bool = False) -> None:
    """What this model cannot be asked is told before anything runs: no targets, a metric without what it compares,
    another tokenizer, too many tokens, and, where they are needed, no corrupt prompts."""
    metric = metric_of(task.metric)
    there = sum(bool(target and all(target)) for target in task.right)
    if not len(task) or (there < len(task) and metric in ANSWERING):
        raise InputError(
            f"Task {task.name} has no targets: expected for every prompt a text that should follow it, found {there} "
            f"for {len(task)} prompts."
        )
    if corrupt and not task.corrupt_ids:
        raise InputError(
            f"Task {task.name} has prompts and targets but no corrupt prompts, which patching and curves need.\n"
            "Use `headscope roles` for it, or a task of pairs."
        )
    if metric in COMPARING and not (task.wrong and all(task.wrong) and max(map(len, task.right)) == 1):
        raise InputError(
            f"The metric {name_of(metric)} sets answers of one token against wrong ones, which task {task.name} does "
            'not have for every prompt. Use "log-prob".'
        )
    config = model.hf.config.get_text_config()
    prompts = task.clean_rows + (task.corrupt_rows if task.corrupt_ids else [])
    highest = max(token for row in [*prompts, *(at for target in task.right for at in target)] for token in row)
    if highest >= config.vocab_size:
        raise InputError(
            f"Task {task.name} was made for another tokenizer ({task.tokenizer}): it has token {highest}, "
            f"{model.name} knows {config.vocab_size}. Make it with this model's tokenizer."
        )
    longest, limit = max(map(len, prompts)), getattr(config, "max_position_embeddings", None)
    if limit and longest > limit:
        raise InputError(
            f"Task {task.name} has prompts of {longest} tokens, with their targets; {model.name} takes at most "
            f"{limit}.\nUse shorter prompts, or a model with a longer context."
        )
