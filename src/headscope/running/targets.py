"""Log-probability of targets: what a model thinks of a text of several tokens after a prompt.

Rows of different lengths are padded on the right, where a causal model never looks. Logits are computed at the
positions that predict a target token and nowhere else: the unembedding is handed those positions only.

Shape letters: N prompts, B rows of a batch, T positions, P positions that predict a target token, A tokens that would
be right there (one, but for tasks whose answers are a set), D stream width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from headscope.errors import InputError
from headscope.models.model import Model
from headscope.progress import bar
from headscope.tasks.task import Task

# Tokens per forward pass.
TOKENS = 1024

# Where the unembedding is wanted in this thread: (rows, positions).
_WANTED: ContextVar[tuple[Tensor, Tensor] | None] = ContextVar("headscope_wanted", default=None)


@dataclass(frozen=True)
class TargetBatch:
    """Prompts with their targets behind them as one padded array, and what is to be predicted where."""

    ids_BT: Tensor
    row_P: Tensor
    position_P: Tensor
    right_PA: Tensor
    has_PA: Tensor
    length_B: Tensor  # tokens of each target

    @classmethod
    def of(cls, prompts: list[list[int]], targets: list[list[list[int]]], device: torch.device) -> TargetBatch:
        """targets: for each prompt a list over target positions of the tokens that are right there."""
        rows = [prompt + [right[0] for right in target[:-1]] for prompt, target in zip(prompts, targets, strict=True)]
        longest = max(map(len, rows))
        at = [
            (row, len(prompt) - 1 + step, right)
            for row, (prompt, target) in enumerate(zip(prompts, targets, strict=True))
            for step, right in enumerate(target)
        ]
        width = max(len(right) for _, _, right in at)
        tensor = lambda values, kind=torch.long: torch.tensor(values, dtype=kind, device=device)  # noqa: E731
        return cls(
            tensor([row + [0] * (longest - len(row)) for row in rows]),
            tensor([row for row, _, _ in at]),
            tensor([position for _, position, _ in at]),
            tensor([right + [0] * (width - len(right)) for _, _, right in at]),
            tensor([[True] * len(right) + [False] * (width - len(right)) for _, _, right in at], torch.bool),
            tensor([len(target) for target in targets]),
        )

    def __len__(self) -> int:
        return len(self.ids_BT)


def targets_of(task: Task) -> list[list[list[int]]]:
    """For each prompt, over the positions of its target, the tokens that are right there."""
    if task.targets:
        return [[[token] for token in target] for target in task.targets]
    return [[answers] for answers in task.answers]


def log_probs(model: Model, batch: TargetBatch) -> Tensor:
    """log P of every target token given what stands before it, (P,). Carries gradients where they are wanted."""
    return token_log_probs(model, batch)[0]


def token_log_probs(model: Model, batch: TargetBatch) -> tuple[Tensor, Tensor]:
    """log P of every target token, and whether it is the likeliest there; both (P,)."""
    with _only_at(model, batch.row_P, batch.position_P) as narrowed:
        logits = model.hf(input_ids=batch.ids_BT, use_cache=False).logits
    logits_PV = logits[0] if narrowed() else logits[batch.row_P, batch.position_P]
    half = logits_PV.dtype in (torch.float16, torch.bfloat16)
    all_PV = (logits_PV.float() if half else logits_PV).log_softmax(-1)
    right_PA = all_PV.gather(-1, batch.right_PA).masked_fill(~batch.has_PA, -torch.inf)
    best_P = logits_PV.detach().argmax(-1, keepdim=True)
    return right_PA.logsumexp(-1), ((batch.right_PA == best_P) & batch.has_PA).any(-1)


def row_sums(value_P: Tensor, batch: TargetBatch) -> Tensor:
    """Sums over each row's target positions, (B,)."""
    return torch.zeros(len(batch), dtype=value_P.dtype, device=value_P.device).index_add(0, batch.row_P, value_P)


@contextmanager
def _only_at(model: Model, row_P: Tensor, position_P: Tensor) -> Iterator:
    """Inside the block the unembedding sees (1, P, D) instead of (B, T, D); yields a function that says if it did."""
    head = model.hf.get_output_embeddings()
    seen: list[bool] = []

    def narrow(_module: object, args: tuple) -> tuple | None:
        if _WANTED.get() is not mine or not args or args[0].ndim != 3:
            return None
        seen.append(True)
        return (args[0][row_P, position_P][None], *args[1:])

    mine = (row_P, position_P)
    hook = head.register_forward_pre_hook(narrow) if isinstance(head, torch.nn.Module) else None
    token = _WANTED.set(mine)
    try:
        yield lambda: bool(seen)
    finally:
        _WANTED.reset(token)
        if hook is not None:
            hook.remove()


@torch.no_grad()
def target_measures(model: Model, task: Task, *, corrupt: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """For each prompt: log P of its target, summed over tokens, and whether the model gets it right: the target is what
    it would say, token by token, or, where there are foils, likelier than each of them."""
    refuse_unfit(model, task)
    prompts = task.corrupt_ids if corrupt else task.clean_ids
    # (Foils say who is right, which nobody asks of corrupt prompts.)
    foils = [] if corrupt else task.foils
    rows = [(i, prompts[i], target) for i, target in enumerate(targets_of(task))]
    rows += [(i, prompts[i], [[token] for token in foil]) for i, wrong in enumerate(foils) for foil in wrong]
    log_prob, greedy = np.empty(len(rows)), np.empty(len(rows), dtype=bool)
    with bar(f"{model.name} on {task.name}", len(rows), unit="targets") as shown:
        for part in grouped([len(prompt) + len(target) - 1 for _, prompt, target in rows]):
            batch = TargetBatch.of([rows[r][1] for r in part], [rows[r][2] for r in part], model.device)
            log_P, best_P = token_log_probs(model, batch)
            log_prob[part] = row_sums(log_P, batch).cpu()
            greedy[part] = (row_sums(best_P.long(), batch) == batch.length_B).cpu()
            shown.advance(len(part))
    solved = greedy[: len(task)].copy()
    for i in {row[0] for row in rows[len(task) :]}:
        against = max(log_prob[r] for r in range(len(task), len(rows)) if rows[r][0] == i)
        solved[i] = log_prob[i] > against
    return log_prob[: len(task)], solved


def grouped(lengths: list[int], tokens: int = TOKENS) -> list[list[int]]:
    """Row numbers in batches of similar length, about `tokens` in each."""
    groups: list[list[int]] = []
    for row in sorted(range(len(lengths)), key=lambda row: lengths[row]):
        if not groups or (len(groups[-1]) + 1) * lengths[row] > tokens:
            groups.append([])
        groups[-1].append(row)
    return groups


def refuse_unfit(model: Model, task: Task) -> None:
    """A task without targets, made for another tokenizer, or too long for the model, is told before anything runs."""
    targets = targets_of(task)
    if not len(task) or not all(target and all(target) for target in targets):
        raise InputError(
            f"Task {task.name} has no targets: expected for every prompt a text that should follow it, found "
            f"{sum(bool(t and all(t)) for t in targets)} for {len(task)} prompts."
        )
    config = model.hf.config.get_text_config()
    highest = max(max(map(max, [prompt, *target])) for prompt, target in zip(task.clean_ids, targets, strict=True))
    if highest >= config.vocab_size:
        raise InputError(
            f"Task {task.name} was made for another tokenizer ({task.tokenizer}): it has token {highest}, "
            f"{model.name} knows {config.vocab_size}. Make it with this model's tokenizer."
        )
    limit = getattr(config, "max_position_embeddings", None)
    longest = max(len(prompt) + len(target) - 1 for prompt, target in zip(task.clean_ids, targets, strict=True))
    if limit and longest > limit:
        raise InputError(
            f"Task {task.name} has prompts with targets of {longest} tokens; {model.name} takes at most {limit}.\n"
            "Use shorter prompts, or a model with a longer context."
        )
