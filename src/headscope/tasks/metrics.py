"""Metrics: a number per prompt from the logits at its target's positions, higher the more of the behaviour there is.

    logit-diff   best right token's logit - best wrong one's
    prob-diff    P(right) - P(wrong)
    log-prob     log P(target), summed over its tokens
    kl           - KL(clean run || this run), so that the clean run has the most, 0
    accuracy     1 where right tokens beat wrong ones (or, without any, all others), otherwise 0; it has no gradient

Where several tokens would be right (or wrong) at a position, their probabilities add up. Adding a metric is a function
and an entry in METRICS; `task.metric` may also be a function of one's own, which gets the same two arguments.

Shape letters: B prompts, P positions of the longest target, A tokens that are right (or wrong) there, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from headscope.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor


class Asked(Protocol):
    """What is asked of some prompts. Targets end at the last position; those shorter than the longest begin later, and
    `in_target_BP` says where. Unused places of A hold a token that `has_right_BPA` and `has_wrong_BPA` tell apart.
    `fields` has a dict per prompt with whatever else its row said (empty where nothing was), `clean_BPV` the logits of
    the clean run, for metrics in AGAINST_CLEAN."""

    @property
    def fields(self) -> Sequence[dict[str, Any]]: ...
    @property
    def clean_BPV(self) -> Tensor | None: ...
    @property
    def in_target_BP(self) -> Tensor: ...
    @property
    def right_BPA(self) -> Tensor: ...
    @property
    def has_right_BPA(self) -> Tensor: ...
    @property
    def wrong_BPA(self) -> Tensor: ...
    @property
    def has_wrong_BPA(self) -> Tensor: ...


# From logits (B, P, V) and what is asked to a number per prompt, (B,).
Metric = Callable[["Tensor", Asked], "Tensor"]


def logit_diff(logits_BPV: Tensor, asked: Asked) -> Tensor:
    right_BP = _chosen(logits_BPV, asked.right_BPA, asked.has_right_BPA).amax(-1)
    wrong_BP = _chosen(logits_BPV, asked.wrong_BPA, asked.has_wrong_BPA).amax(-1)
    return _sum(right_BP - wrong_BP, asked)


def prob_diff(logits_BPV: Tensor, asked: Asked) -> Tensor:
    log_probs_BPV = logits_BPV.log_softmax(-1)
    right_BP = _chosen(log_probs_BPV, asked.right_BPA, asked.has_right_BPA).logsumexp(-1)
    wrong_BP = _chosen(log_probs_BPV, asked.wrong_BPA, asked.has_wrong_BPA).logsumexp(-1)
    return _sum(right_BP, asked).exp() - _sum(wrong_BP, asked).exp()


def log_prob(logits_BPV: Tensor, asked: Asked) -> Tensor:
    return _sum(_chosen(logits_BPV.log_softmax(-1), asked.right_BPA, asked.has_right_BPA).logsumexp(-1), asked)


def kl(logits_BPV: Tensor, asked: Asked) -> Tensor:
    if asked.clean_BPV is None:
        raise InputError("The metric kl compares with the clean run, which was not made for these prompts.")
    clean_BPV = asked.clean_BPV.to(logits_BPV).log_softmax(-1)
    return -_sum((clean_BPV.exp() * (clean_BPV - logits_BPV.log_softmax(-1))).sum(-1), asked)


def accuracy(logits_BPV: Tensor, asked: Asked) -> Tensor:
    right_BP = _chosen(logits_BPV, asked.right_BPA, asked.has_right_BPA).amax(-1)
    wrong_BP = _chosen(logits_BPV, asked.wrong_BPA, asked.has_wrong_BPA).amax(-1)
    against_wrong_BP = asked.has_wrong_BPA.any(-1)
    ahead_BP = (against_wrong_BP & (right_BP > wrong_BP)) | (~against_wrong_BP & (right_BP >= logits_BPV.amax(-1)))
    return (ahead_BP | ~asked.in_target_BP).all(-1).to(logits_BPV.dtype)


def _chosen(values_BPV: Tensor, tokens_BPA: Tensor, has_BPA: Tensor) -> Tensor:
    return values_BPV.gather(-1, tokens_BPA).masked_fill(~has_BPA, float("-inf"))


def _sum(value_BP: Tensor, asked: Asked) -> Tensor:
    return value_BP.masked_fill(~asked.in_target_BP, 0.0).sum(-1)


METRICS: dict[str, Metric] = {
    "logit-diff": logit_diff,
    "prob-diff": prob_diff,
    "log-prob": log_prob,
    "kl": kl,
    "accuracy": accuracy,
}

BUILT_IN = tuple(METRICS.values())
# These set right tokens against wrong ones, so that above zero means solved; and need wrong ones.
COMPARING = (logit_diff, prob_diff)
# These need right tokens; kl needs none, and of a function of the user's nobody knows.
ANSWERING = (logit_diff, prob_diff, log_prob, accuracy)
# These compare with the logits of the clean run.
AGAINST_CLEAN = (kl,)
# These read no logit but those of right and wrong tokens, so that the unembedding may leave out the others.
NARROW = (logit_diff,)


def metric_of(metric: str | Metric) -> Metric:
    """The metric of that name, or the function itself."""
    if not isinstance(metric, str):
        return metric
    if metric not in METRICS:
        raise InputError(f"Unknown metric {metric!r}. Known: {', '.join(METRICS)}.")
    return METRICS[metric]


def name_of(metric: str | Metric) -> str:
    return metric if isinstance(metric, str) else getattr(metric, "__name__", type(metric).__name__)
