"""Running a task's prompts: batches of equal length, the logits at the answer, and the metric per prompt.

Shape letters: N prompts, B batch, T positions, V vocabulary, A answers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from headscope.errors import InputError
from headscope.models.model import Model
from headscope.progress import bar
from headscope.records import Check
from headscope.running.targets import target_measures
from headscope.tasks.task import METRICS, Task

# Tokens per forward pass: enough to keep a CPU busy, few enough for a laptop's memory.
TOKENS = 2048


def batches(task: Task, tokens: int = TOKENS) -> list[list[int]]:
    """Prompt numbers grouped so that a batch has one length and needs no padding, at most about `tokens` in all.

    Prompts whose pair differs late stand together, because what comes before need not be run again."""
    by_length: dict[int, list[int]] = defaultdict(list)

    def first_difference(i: int) -> int:
        pair = zip(task.clean_ids[i], task.corrupt_ids[i], strict=True)
        return next((at for at, (a, b) in enumerate(pair) if a != b), 0)

    for i in sorted(range(len(task)), key=first_difference):
        by_length[len(task.clean_ids[i])].append(i)
    groups = []
    for length, members in sorted(by_length.items()):
        size = max(1, tokens // length)
        groups += [members[i : i + size] for i in range(0, len(members), size)]
    return groups


def answer_logits(model: Model, ids: list[list[int]]) -> Tensor:
    """Logits of the next token after each prompt, (B, V). The prompts are of one length."""
    return model.hf(**model.batch(ids), use_cache=False, logits_to_keep=1).logits[:, -1]


@dataclass(frozen=True)
class AnswerTokens:
    """The answer and wrong tokens of some prompts as padded index tensors, and the metric on logits."""

    metric: str
    answers_BA: Tensor
    wrong_BA: Tensor
    has_answer_BA: Tensor
    has_wrong_BA: Tensor

    @classmethod
    def of(cls, task: Task, rows: list[int], device: torch.device) -> AnswerTokens:
        answers, has_answer = _pad([task.answers[i] for i in rows], device)
        wrong, has_wrong = _pad([task.wrong[i] for i in rows], device)
        return cls(task.metric, answers, wrong, has_answer, has_wrong)

    @classmethod
    def first_two(cls, rows: int, device: torch.device) -> AnswerTokens:
        """Token 1 against token 2 for every row: a stand-in for models without a task."""
        has = torch.ones(rows, 1, dtype=torch.bool, device=device)
        return cls("logit-diff", has.long(), has.long() * 2, has, has)

    def narrowed(self) -> tuple[Tensor, AnswerTokens]:
        """The tokens that a logit difference reads, and the same metric on logits of those tokens only."""
        both = torch.cat([self.answers_BA, self.wrong_BA], dim=1)
        wanted, places = both.unique(return_inverse=True)
        answers, wrong = places.split([self.answers_BA.shape[1], self.wrong_BA.shape[1]], dim=1)
        return wanted, replace(self, answers_BA=answers, wrong_BA=wrong)

    def __call__(self, logits_BV: Tensor) -> Tensor:
        """The metric per prompt, (B,)."""
        logits_BV = logits_BV.float() if logits_BV.dtype in (torch.float16, torch.bfloat16) else logits_BV
        if self.metric == "logit-diff":
            return self._best(logits_BV, self.answers_BA, self.has_answer_BA) - self._best(
                logits_BV, self.wrong_BA, self.has_wrong_BA
            )
        log_probs_BV = logits_BV.log_softmax(-1)
        right_B = self._total(log_probs_BV, self.answers_BA, self.has_answer_BA)
        if self.metric == "log-prob":
            return right_B
        return right_B.exp() - self._total(log_probs_BV, self.wrong_BA, self.has_wrong_BA).exp()

    def correct(self, logits_BV: Tensor) -> Tensor:
        """Whether each prompt is solved: the metric is above zero, or for log-prob the best token is an answer."""
        if self.metric != "log-prob":
            return self(logits_BV) > 0
        best_B1 = logits_BV.argmax(-1, keepdim=True)
        return ((self.answers_BA == best_B1) & self.has_answer_BA).any(-1)

    @staticmethod
    def _best(scores_BV: Tensor, tokens_BA: Tensor, has_BA: Tensor) -> Tensor:
        return scores_BV.gather(-1, tokens_BA).masked_fill(~has_BA, -torch.inf).amax(-1)

    @staticmethod
    def _total(log_probs_BV: Tensor, tokens_BA: Tensor, has_BA: Tensor) -> Tensor:
        return log_probs_BV.gather(-1, tokens_BA).masked_fill(~has_BA, -torch.inf).logsumexp(-1)


def _pad(lists: list[list[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    width = max(1, *map(len, lists))
    tokens = torch.tensor([row + [0] * (width - len(row)) for row in lists], device=device)
    has = torch.tensor([[True] * len(row) + [False] * (width - len(row)) for row in lists], device=device)
    return tokens, has


@torch.no_grad()
def check(model: Model, task: Task) -> Check:
    """Run the task's clean and corrupt prompts and say how well the model does it, before anyone studies how."""
    if task.targets:
        return _check_targets(model, task)
    fits(model, task)
    solved, clean, corrupt = (np.empty(len(task)) for _ in range(3))
    with bar(f"{model.name} on {task.name}", len(task), unit="prompts") as shown:
        for rows in batches(task):
            tokens = AnswerTokens.of(task, rows, model.device)
            clean_BV = answer_logits(model, [task.clean_ids[i] for i in rows])
            corrupt_BV = answer_logits(model, [task.corrupt_ids[i] for i in rows])
            solved[rows] = tokens.correct(clean_BV).cpu()
            clean[rows], corrupt[rows] = tokens(clean_BV).cpu(), tokens(corrupt_BV).cpu()
            shown.advance(len(rows))
    return Check(
        model.name, task.name, len(task), float(solved.mean()), task.metric, float(clean.mean()), float(corrupt.mean())
    )


def _check_targets(model: Model, task: Task) -> Check:
    log_prob, solved = target_measures(model, task)
    corrupt = target_measures(model, task, corrupt=True)[0].mean() if task.corrupt_ids else float("nan")
    accuracy, metric = float(solved.mean()), float(log_prob.mean())
    return Check(model.name, task.name, len(task), accuracy, "target log-prob", metric, float(corrupt))


def per_prompt(
    model: Model, task: Task, run: Callable[[list[int], AnswerTokens], Tensor], title: str, *, tokens: int = TOKENS
) -> np.ndarray:
    """`run(rows, tokens)` on every batch of the task; its results, a row per prompt, in the order of the prompts."""
    fits(model, task)
    out: np.ndarray | None = None
    with bar(title, len(task), unit="prompts") as shown:
        for rows in batches(task, tokens):
            part = run(rows, AnswerTokens.of(task, rows, model.device)).float().cpu().numpy()
            if out is None:
                out = np.empty((len(task), *part.shape[1:]), part.dtype)
            out[rows] = part
            shown.advance(len(rows))
    assert out is not None
    return out


def fits(model: Model, task: Task) -> None:
    """A task made for another tokenizer, or too long for the model, is refused before anything runs."""
    if task.metric not in METRICS:
        raise InputError(f"Unknown metric {task.metric!r}. Known: {', '.join(METRICS)}.")
    if not task.corrupt_ids:
        raise InputError(
            f"Task {task.name} has prompts and targets but no corrupt prompts, which scoring heads needs.\n"
            "Use `headscope roles` for it, or a task of pairs."
        )
    config = model.hf.config.get_text_config()
    highest = max(max(ids) for ids in task.clean_ids + task.corrupt_ids + task.answers)
    if highest >= config.vocab_size:
        raise InputError(
            f"Task {task.name} was made for another tokenizer ({task.tokenizer}): it has token {highest}, "
            f"{model.name} knows {config.vocab_size}. Make it with this model's tokenizer."
        )
    longest, limit = max(map(len, task.clean_ids)), getattr(config, "max_position_embeddings", None)
    if limit and longest > limit:
        raise InputError(f"Task {task.name} has prompts of {longest} tokens; {model.name} takes at most {limit}.")
