"""Scores of answers, one number per answer, from 0 to 1.

    exact     the answer is the right one, apart from case, articles, spaces and punctuation around it
    numeric   the right answer is a number, and the last number in the answer equals it
    match     exact or numeric
    bleu      BLEU of the answer against the unmasked model's answer (sacrebleu; n-grams as long as the answer allows)
    rouge     ROUGE-1 (F) of the answer against the right one
    chrf      chrF of the answer against the right one
    cosine    of sentence embeddings of the answer and the right one; only where an embedder is given
    similarity  the same of the answer and the unmasked model's
    accuracy  as in the paper: 1 where bleu > 0.8 or rouge > 0.6 or cosine > 0.6

Accuracy therefore also counts an answer that masking leaves as wrong as it was: it asks what masking changes. Where the
question is what a model can do, read `match`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np

BLEU, ROUGE, COSINE = 0.8, 0.6, 0.6

# Texts to embeddings, (N, D), each of length 1.
Embedder = Callable[[list[str]], np.ndarray]


def score_answers(
    given: Sequence[str], gold: Sequence[str], unmasked: Sequence[str], *, embed: Embedder | None = None
) -> dict[str, np.ndarray]:
    """All scores of some answers: by name, (N,)."""
    exact = np.array([plain(a) == plain(b) for a, b in zip(given, gold, strict=True)], float)
    numeric = np.array([same_number(a, b) for a, b in zip(given, gold, strict=True)], float)
    scores = {
        "exact": exact,
        "numeric": numeric,
        "match": np.maximum(exact, numeric),
        "bleu": each(_bleu(), given, unmasked),
        "rouge": each(_rouge(), given, gold),
        "chrf": each(_chrf(), given, gold),
    }
    counts = (scores["bleu"] > BLEU) | (scores["rouge"] > ROUGE)
    if embed is not None:
        given_ND, gold_ND, unmasked_ND = (embed(list(texts)) for texts in (given, gold, unmasked))
        scores["cosine"] = (given_ND * gold_ND).sum(axis=1)
        scores["similarity"] = (given_ND * unmasked_ND).sum(axis=1)
        counts |= scores["cosine"] > COSINE
    return scores | {"accuracy": counts.astype(float)}


def plain(text: str) -> str:
    """What two answers are compared by."""
    words = re.sub(r"^[\W_]+|[\W_]+$", "", text.casefold()).split()
    return " ".join(words[1:] if len(words) > 1 and words[0] in ("a", "an", "the") else words)


def same_number(given: str, gold: str) -> bool:
    wanted = _number(gold.strip().rstrip(".").removeprefix("$").removesuffix("%"))
    numbers = re.findall(r"-?\d[\d,]*(?:\.\d+)?|-?\.\d+", given)
    answered = _number(numbers[-1]) if numbers else None
    return wanted is not None and answered is not None and abs(wanted - answered) <= 1e-6 * max(1.0, abs(wanted))


def _number(text: str) -> float | None:
    # (float would also take "nan", "infinity" and "1_000".)
    plain_digits = text.replace(",", "").strip()
    return float(plain_digits) if re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)", plain_digits) else None


def each(score: Callable[[str, str], float], given: Sequence[str], other: Sequence[str]) -> np.ndarray:
    """The score of every pair; pairs that occur again are not computed again, and equal texts score 1."""
    known: dict[tuple[str, str], float] = {}
    for pair in zip(given, other, strict=True):
        if pair not in known:
            known[pair] = 1.0 if pair[0] == pair[1] else score(*pair)
    return np.array([known[pair] for pair in zip(given, other, strict=True)], float)


def _bleu() -> Callable[[str, str], float]:
    from sacrebleu.metrics.bleu import BLEU as Metric

    # Effective order: a two-word answer has no 4-grams, and is not punished for it.
    metric = Metric(effective_order=True)
    return lambda given, other: metric.sentence_score(given, [other]).score / 100 if given else 0.0


def _chrf() -> Callable[[str, str], float]:
    from sacrebleu.metrics.chrf import CHRF

    metric = CHRF()
    return lambda given, other: metric.sentence_score(given, [other]).score / 100


def _rouge() -> Callable[[str, str], float]:
    from rouge_score.rouge_scorer import RougeScorer

    metric = RougeScorer(["rouge1"], use_stemmer=False)
    return lambda given, other: float(metric.score(other, given)["rouge1"].fmeasure)
