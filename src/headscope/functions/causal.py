"""Which heads a function's answers depend on, by taking them away.

    ablation     score(h) = m - m(with h's output set to zero), exactly
    attribution  the same to first order: sum over positions of z . dm/dz, all heads at once

m is the log-probability of the right answer's most telling token (the one least expected), with the answer up to it in
the prompt. Heads are taken away at the positions of the question and the answer; the solved examples in front are left
as they are, which asks what a head does for this question, and lets their keys and values be computed once. Cost per
question: one forward pass per head of the part above it, or one forward and one backward.

Shape letters: B prompts, T positions, L layers, H heads, K head width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from headscope.errors import InputError
from headscope.functions.questions import Question
from headscope.models.model import Model
from headscope.records import Scores
from headscope.running.gradients import z_and_gradient
from headscope.running.measure import AnswerTokens, per_prompt
from headscope.running.session import Session
from headscope.tasks.task import Task, encode, tokenizer_name


@torch.no_grad()
def ablation(model: Model, task: Task, *, start: int) -> Scores:
    """Exact: set each head's output to zero behind position `start`, and see what the answer loses."""
    L, H = model.n_layers, model.n_heads
    all_but_one = 1 - torch.eye(L * H).view(L * H, L, H)

    def run(rows: list[int], tokens: AnswerTokens) -> Tensor:
        session = Session(model, [task.clean_ids[i] for i in rows], tokens, start=start)
        return (session.metric_B - session.metrics(all_but_one)).T.unflatten(1, (L, H))

    values = per_prompt(model, task, run, f"Ablating {L * H} heads of {model.name} on {task.name}")
    return Scores.of(model.name, task, "ablation", values, fill="zero", start=start)


def attribution(model: Model, task: Task, *, start: int) -> Scores:
    """Ablation to first order, by one backward pass for all heads."""

    def run(rows: list[int], tokens: AnswerTokens) -> Tensor:
        z, gradient = z_and_gradient(model, [task.clean_ids[i] for i in rows], tokens)
        by_layer = [(a * g)[:, start:].sum(dim=(1, 3)) for a, g in zip(z, gradient, strict=True)]
        return torch.stack(by_layer, dim=1)

    values = per_prompt(model, task, run, f"Attribution of {model.name} on {task.name}")
    return Scores.of(model.name, task, "attribution", values, fill="zero", start=start)


CAUSAL = {"ablation": ablation, "attribution": attribution}


def telling_task(
    model: Model, questions: Sequence[Question], *, prefix: list[int], name: str, seed: int | None = None
) -> Task:
    """The questions as a task whose answer is the token of the right answer that the model expects least."""
    prompts = encode_questions(model, [question.prompt for question in questions])
    solved = encode_questions(model, [question.solved for question in questions])
    clean_ids, answers, texts = [], [], []
    for question, prompt, whole in zip(questions, prompts, solved, strict=True):
        # Some tokenizers join the answer's beginning to the prompt's end: such a question cannot be asked here.
        if whole[: len(prompt)] == prompt and len(whole) > len(prompt):
            at = len(prompt) + _least_expected(model, prefix + prompt, whole[len(prompt) :])
            clean_ids.append(prefix + whole[:at])
            answers.append([whole[at]])
            texts.append(question.prompt)
    if not clean_ids:
        raise InputError(f"The tokenizer of {model.name} joins every answer of {name} to its prompt: nothing to ask.")
    nothing: list[list[int]] = [[] for _ in texts]
    about = tokenizer_name(model.tokenizer)
    return Task(name, "log-prob", texts, texts, clean_ids, clean_ids, answers, nothing, about, seed)


def encode_questions(model: Model, texts: Sequence[str]) -> list[list[int]]:
    """Token ids of texts that stand behind a prefix: without a token that begins a text."""
    return [list(ids) for ids in model.tokenizer(list(texts), add_special_tokens=False)["input_ids"]]  # pyright: ignore[reportArgumentType, reportCallIssue]


def encode_prefix(model: Model, text: str) -> list[int]:
    return encode(model.tokenizer, [text])[0] if text else encode(model.tokenizer, [""])[0]


@torch.no_grad()
def _least_expected(model: Model, prompt: list[int], answer: list[int]) -> int:
    if len(answer) == 1:
        return 0
    ids_BT = torch.tensor([prompt + answer], device=model.device)
    log_probs_TV = model.hf(input_ids=ids_BT, use_cache=False).logits[0, len(prompt) - 1 : -1].float().log_softmax(-1)
    return int(log_probs_TV.gather(-1, ids_BT[0, len(prompt) :, None]).argmin())
