"""Which heads a function's answers depend on, by taking them away.

    ablation     score(h) = m - m(with h's output set to zero), exactly
    attribution  the same to first order: sum over positions of z . dm/dz, all heads at once

m is the log-probability of the right answer's highest-surprisal token, with the answer up to it in the prompt. Heads
are taken away at the positions of the question and the answer; the few-shot examples in front are left as they are,
which asks what a head does for this question, and lets their keys and values be computed once. Cost per
question: one forward pass per head of the part above it, or one forward and one backward.

Shape letters: B prompts, T positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from headscope.errors import InputError
from headscope.functions.questions import Question
from headscope.methods.gradient import gate_gradients
from headscope.models.model import Model
from headscope.records import Scores
from headscope.running.fills import effects, session_opener
from headscope.tasks.task import Task, encode, tokenizer_name


def ablation(model: Model, task: Task, *, start: int) -> Scores:
    """Exact: set each head's output to zero behind position `start`, and see what the answer loses."""
    values = effects(model, task, session_opener(model, task, "zero", start=start), "Ablating")
    return Scores.of(model.name, task, "ablation", values, fill="zero", start=start)


def attribution(model: Model, task: Task, *, start: int) -> Scores:
    """Ablation to first order, by one backward pass for all heads."""
    values = gate_gradients(model, task, f"Attribution of {model.name} on {task.name}", start=start)
    return Scores.of(model.name, task, "attribution", values, fill="zero", start=start)


CAUSAL = {"ablation": ablation, "attribution": attribution}


def surprisal_task(
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
