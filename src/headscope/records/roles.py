"""Roles of heads by causal head gating, their spread over seeds and agreement, and what taking heads away changes.

Shape letters: S seeds, L layers, H heads, N prompts, P points of a curve, R scores.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np

from headscope.records.graph import head_name
from headscope.records.record import Record

ROLES = ("facilitation", "irrelevance", "interference")
# The score from which on a head has a role.
ROLE_THRESHOLD = 0.5


@dataclass(frozen=True)
class Roles(Record):
    """Gates of every head fitted by causal head gating, for each seed, and the scores that follow from them."""

    model: str
    task: str
    g_plus: Annotated[np.ndarray, "S L H"]  # pressed to keep
    g_minus: Annotated[np.ndarray, "S L H"]  # pressed to remove
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def facilitation(self) -> np.ndarray:
        """(S, L, H): the head stays open though pressed shut."""
        return self.g_minus

    @property
    def interference(self) -> np.ndarray:
        """(S, L, H): the head stays shut though pressed open."""
        return 1 - self.g_plus

    @property
    def irrelevance(self) -> np.ndarray:
        """(S, L, H): the head goes wherever it is pressed."""
        return self.g_plus * (1 - self.g_minus)

    @property
    def classes(self) -> np.ndarray:
        """The role of every head in every seed, (S, L, H): its place in ROLES, or -1 where no score reaches 0.5. Of two
        scores that do, the higher one."""
        scores_RSLH = np.stack([getattr(self, role) for role in ROLES])
        return np.where(scores_RSLH.max(0) >= ROLE_THRESHOLD, scores_RSLH.argmax(0), -1)

    @property
    def commonest(self) -> np.ndarray:
        """The role that each head has in most seeds, (L, H); -1 for none. Ties go to the first of ROLES."""
        counts = np.stack([(self.classes == role).sum(0) for role in (*range(len(ROLES)), -1)])
        best = counts.argmax(0)
        return np.where(best == len(ROLES), -1, best)

    COLUMNS = "model task head layer index facilitation irrelevance interference role"

    def rows(self) -> list[tuple[Any, ...]]:
        """One per head: means over seeds, and its commonest role."""
        common, means = self.commonest, [getattr(self, role).mean(0) for role in ROLES]
        return [
            (
                self.model, self.task, head_name(l, h), l, h, *(float(mean[l, h]) for mean in means),
                ROLES[common[l, h]] if common[l, h] >= 0 else "none",
            )
            for l, h in np.ndindex(*common.shape)
        ]  # fmt: skip


@dataclass(frozen=True)
class Ablation(Record):
    """Change of the target's log-probability when the k heads of highest score are shut instead of opened."""

    model: str
    task: str
    k: Annotated[np.ndarray, "P"]
    change: Annotated[np.ndarray, "R S P N"]  # by score in the order of ROLES, seed, k and held-out prompt
    settings: dict[str, Any] = field(default_factory=dict)

    def mean(self, role: str) -> np.ndarray:
        """(P,), over prompts and seeds."""
        return self.by_seed(role).mean(axis=0)

    def by_seed(self, role: str) -> np.ndarray:
        """(S, P), over prompts."""
        return self.change[ROLES.index(role)].mean(axis=-1)

    def line(self, role: str) -> dict[str, list[float]]:
        """A curve over k: mean over seeds, the lowest and the highest."""
        by_seed = self.by_seed(role)
        return {"mean": by_seed.mean(0).tolist(), "low": by_seed.min(0).tolist(), "high": by_seed.max(0).tolist()}

    COLUMNS = "model task score k mean low high"

    def rows(self) -> list[tuple[Any, ...]]:
        return [
            (self.model, self.task, role, *row)
            for role in ROLES
            for row in zip(self.k.tolist(), *self.line(role).values(), strict=True)
        ]


@dataclass(frozen=True)
class Contrast(Record):
    """Gates that keep one task and forget another, and how well both are done with them and without."""

    model: str
    keep: str
    forget: str
    gates: Annotated[np.ndarray, "S L H"]
    kept: Annotated[np.ndarray, "S"]  # accuracy on the held-out prompts of the task to keep
    forgotten: Annotated[np.ndarray, "S"]  # the same of the task to forget
    plain: list[float]  # accuracy of both without gates
    settings: dict[str, Any] = field(default_factory=dict)

    def summary(self) -> dict[str, Any]:
        """In a few numbers, means over seeds."""
        return {
            "model": self.model, "keep": self.keep, "forget": self.forget, "kept": float(self.kept.mean()),
            "forgotten": float(self.forgotten.mean()), "plain kept": self.plain[0], "plain forgotten": self.plain[1],
            "share open": float((self.gates > 0.5).mean()),
        }  # fmt: skip

    COLUMNS = "model keep forget kept forgotten plain_kept plain_forgotten share_open"

    def rows(self) -> list[tuple[Any, ...]]:
        return [tuple(self.summary().values())]


def spread(roles: Roles) -> dict[str, dict[str, float]]:
    """By role, and for none of them: the share of heads that have it (mean over seeds), and that have it in all, some
    or none of the seeds."""
    shares, has = {}, {role: getattr(roles, role) >= ROLE_THRESHOLD for role in ROLES}
    for role, has_SLH in (*has.items(), ("none", ~np.logical_or.reduce(list(has.values())))):
        always, never = has_SLH.all(0).mean(), (~has_SLH.any(0)).mean()
        shares[role] = {
            "share": float(has_SLH.mean()),
            "always": float(always),
            "sometimes": float(1 - always - never),
            "never": float(never),
        }
    return shares


def agreement(one: Roles, other: Roles) -> dict[str, float]:
    """How alike two fits are. Of models of one shape (or two fits of one model): correlation of each score over heads
    (mean over seeds), and the share of heads whose commonest role is the same. In any case, by score, the largest
    distance between the two distributions over heads (Kolmogorov and Smirnov's)."""
    agreements: dict[str, float] = {}
    for role in ROLES:
        a, b = (getattr(roles, role).mean(0).ravel() for roles in (one, other))
        at = np.sort(np.concatenate([a, b]))
        steps = [np.searchsorted(np.sort(values), at, side="right") / len(values) for values in (a, b)]
        agreements[f"{role} distance"] = float(np.abs(steps[0] - steps[1]).max())
        if one.g_plus.shape[1:] == other.g_plus.shape[1:]:
            agreements[f"{role} correlation"] = correlation(a, b)
    if one.g_plus.shape[1:] == other.g_plus.shape[1:]:
        agreements["same role"] = float((one.commonest == other.commonest).mean())
    return agreements


def correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Pearson's; not a number where one side does not vary."""
    if a.std() < 1e-9 or b.std() < 1e-9:
        return float("nan")
    return float(np.corrcoef(a, b)[0, 1])


def ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 0, equal values sharing their mean rank."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(count)
    return ((ends - count + ends - 1) / 2)[place].reshape(values.shape)


def against_patching(roles: Roles, effect_LH: np.ndarray, *, k: int = 20) -> dict[str, Any]:
    """Facilitation (mean over seeds) beside the exact effect of each head: Spearman's rank correlation, and how many of
    the k best heads are the same, with what chance would give."""
    score_LH = roles.facilitation.mean(0)
    k = min(k, score_LH.size)
    top = [set(np.argsort(-values.ravel(), kind="stable")[:k].tolist()) for values in (score_LH, effect_LH)]
    shared = sorted(top[0] & top[1], key=lambda i: -effect_LH.ravel()[i])
    return {
        "rank correlation": correlation(ranks(score_LH.ravel()), ranks(effect_LH.ravel())),
        "k": k,
        "shared": len(shared),
        "by chance": k * k / score_LH.size,
        "heads": [head_name(i // score_LH.shape[1], i % score_LH.shape[1]) for i in shared],
    }
