"""The records that cross borders.

`Scores`, `Circuit`, `Curve`, `Roles` and the others are frozen, hold NumPy arrays, and are saved as one safetensors
file each: arrays as tensors, everything else as JSON in the file's metadata. Nothing is ever pickled.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from headscope.errors import InputError
from headscope.files import write_bytes
from headscope.graph import CHOICES, Graph, head_name

FORMAT = 1


@dataclass(frozen=True)
class Record:
    """Saving and loading, common to all records."""

    def save(self, path: str | Path) -> Path:
        arrays, rest = {}, {}
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, np.ndarray):
                arrays[f.name] = np.ascontiguousarray(value)
            else:
                rest[f.name] = value
        header = {"headscope": json.dumps({"record": type(self).__name__, "format": FORMAT, "fields": rest})}
        return write_bytes(Path(path), save(arrays, metadata=header))

    @classmethod
    def load(cls, path: str | Path) -> Self:
        try:
            with safe_open(path, framework="numpy") as file:
                header = json.loads((file.metadata() or {}).get("headscope", "null"))
                arrays = {name: file.get_tensor(name) for name in file.keys()}
        except (OSError, SafetensorError, ValueError) as error:
            raise InputError(f"{path} cannot be read: {error}. Expected a file written by Headscope.") from error
        found = header.get("record") if isinstance(header, dict) else None
        if found != cls.__name__:
            raise InputError(f"{path} holds {found or 'no record of Headscope'}; expected {cls.__name__}.")
        try:
            return cls(**header["fields"], **arrays)
        except (KeyError, TypeError) as error:
            raise InputError(f"{path} is not a {cls.__name__} of this version of Headscope: {error}.") from error


@dataclass(frozen=True)
class Scores(Record):
    """How much every head matters for a task, by one method."""

    model: str
    task: str
    method: str
    values: np.ndarray  # (L, H), mean over prompts
    per_prompt: np.ndarray  # (N, L, H)
    settings: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, model: str, task: Any, method: str, per_prompt: np.ndarray, **settings: Any) -> Scores:
        """Scores from one array per prompt, (N, L, H)."""
        values = per_prompt.mean(axis=0, dtype=np.float64).astype(np.float32)
        return cls(model, task.name, method, values, per_prompt, {"n": len(task), "seed": task.seed, **settings})

    def ranked(self, *, signed: bool = False) -> list[tuple[int, int]]:
        """All heads, the one that matters most first: by absolute value, or from most positive to most negative."""
        key = self.values if signed else np.abs(self.values)
        order = np.argsort(-key, axis=None, kind="stable")
        return [(int(i) // key.shape[1], int(i) % key.shape[1]) for i in order]

    def top(self, k: int, *, signed: bool = False) -> list[tuple[str, float]]:
        """Names and scores of the k heads that matter most."""
        return [(head_name(l, h), float(self.values[l, h])) for l, h in self.ranked(signed=signed)[:k]]


@dataclass(frozen=True)
class EdgeScores(Record):
    """How much every edge matters for a task, by one method; positive where it helps."""

    model: str
    task: str
    method: str
    values: np.ndarray  # (E,), mean over prompts, in the order of graph.edges
    per_prompt: np.ndarray  # (N, E), or (0, E) where it was not asked for
    shape: dict[str, Any]  # n_layers, n_heads, split, parallel
    settings: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def graph(self) -> Graph:
        return Graph(**self.shape)

    @classmethod
    def of(
        cls, model: str, task: Any, method: str, graph: Graph, values: np.ndarray, per_prompt: np.ndarray | None,
        **settings: Any,
    ) -> EdgeScores:  # fmt: skip
        shape = {f.name: getattr(graph, f.name) for f in fields(graph)}
        each = np.empty((0, len(graph)), np.float32) if per_prompt is None else per_prompt
        about = {"n": len(task), "seed": task.seed, **settings}
        return cls(model, task.name, method, values.astype(np.float32), each, shape, about)

    def ranked(self, *, signed: bool = False, choice: str = "top") -> np.ndarray:
        """Edges, as places in graph.edges: the one that matters most first ("top"), or in the order in which a circuit
        grows from the logits ("greedy")."""
        if choice not in CHOICES:
            raise InputError(f"Unknown choice {choice!r}. Known: {', '.join(CHOICES)}.")
        if choice == "greedy":
            return self.graph.greedy(self.values, signed=signed)
        return np.argsort(-(self.values if signed else np.abs(self.values)), kind="stable")

    def circuit(self, k: int, *, signed: bool = False, choice: str = "top", connected: bool = False) -> np.ndarray:
        """(edges,): which edges a circuit of k keeps; connected: less those on no path from embedding to logits."""
        keep = np.zeros(len(self.graph), bool)
        keep[self.ranked(signed=signed, choice=choice)[:k]] = True
        return self.graph.connected(keep) if connected else keep

    def top(self, k: int, *, signed: bool = False) -> list[tuple[str, float]]:
        """Names and scores of the k edges that matter most."""
        return [(self.graph.edges[e], float(self.values[e])) for e in self.ranked(signed=signed)[:k]]


@dataclass(frozen=True)
class Circuit(Record):
    """A set of kept heads."""

    model: str
    task: str
    keep: np.ndarray  # (L, H), bool

    @property
    def heads(self) -> list[str]:
        return [head_name(int(l), int(h)) for l, h in np.argwhere(self.keep)]

    def __len__(self) -> int:
        return int(self.keep.sum())


@dataclass(frozen=True)
class Roles(Record):
    """Gates of every head fitted by causal head gating, for each seed, and the scores that follow from them."""

    model: str
    task: str
    g_plus: np.ndarray  # (S, L, H), pressed to keep
    g_minus: np.ndarray  # (S, L, H), pressed to remove
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


@dataclass(frozen=True)
class Ablation(Record):
    """Change of the target's log-probability when the k heads of highest score are shut instead of opened."""

    model: str
    task: str
    k: np.ndarray  # (P,)
    change: np.ndarray  # (R, S, P, N): by score in the order of ROLES, seed, k and held-out prompt
    settings: dict[str, Any] = field(default_factory=dict)

    def mean(self, role: str) -> np.ndarray:
        """(P,), over prompts and seeds."""
        return self.by_seed(role).mean(axis=0)

    def by_seed(self, role: str) -> np.ndarray:
        """(S, P), over prompts."""
        return self.change[ROLES.index(role)].mean(axis=-1)


ROLES = ("facilitation", "irrelevance", "interference")
# The score from which on a head has a role.
ROLE_THRESHOLD = 0.5


@dataclass(frozen=True)
class Attention(Record):
    """Attention weights of every head on a few prompts of one length, as they pass: behind a sparse gate, if any."""

    model: str
    task: str
    tokens: list[list[str]]  # of each prompt
    patterns: np.ndarray  # (P, L, H, T, S), float16
    settings: dict[str, Any] = field(default_factory=dict)


# Circuit sizes, as shares of all components, at which the field compares curves (MIB).
SHARES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


@dataclass(frozen=True)
class Curve(Record):
    """Explained effect against the number of heads kept, with an interval over prompts."""

    model: str
    task: str
    method: str
    k: np.ndarray  # (P,)
    explained: np.ndarray  # (P,)
    low: np.ndarray  # (P,)
    high: np.ndarray  # (P,)
    metrics: np.ndarray  # (P, N): the metric of every prompt at every k
    clean: np.ndarray  # (N,)
    corrupt: np.ndarray  # (N,)
    settings: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls, scores: Scores | EdgeScores, k: np.ndarray, metrics: np.ndarray, clean: np.ndarray, corrupt: np.ndarray, *,
        resamples: int, seed: int, **settings: Any,
    ) -> Curve:  # fmt: skip
        """The curve of a sweep, with 95 % bootstrap intervals over prompts."""
        n = len(clean)
        explained = _effect(metrics, clean, corrupt, slice(None))
        again = np.stack(
            [_effect(metrics, clean, corrupt, rows) for rows in resampled(n, resamples, seed)] or [explained]
        )
        low, high = np.percentile(again, [2.5, 97.5], axis=0)
        about = {"total": int(scores.values.size), "n": n, **settings}
        return cls(scores.model, scores.task, scores.method, k, explained, low, high, metrics, clean, corrupt, about)

    def effect(self, rows: np.ndarray) -> np.ndarray:
        """Explained effect at every k over the given prompts only."""
        return _effect(self.metrics, self.clean, self.corrupt, rows)

    @property
    def label(self) -> str:
        ranking = self.settings.get("ranking", "task")
        greedy = ", greedy" if self.settings.get("choice") == "greedy" else ""
        return f"{self.model}, {self.method}" + (", ranked per prompt" if ranking == "prompt" else greedy)

    @property
    def share(self) -> np.ndarray:
        """k as a share of all heads."""
        return self.k / self.settings["total"]

    @property
    def area(self) -> float:
        """Area under the curve over the share of heads kept."""
        return float(np.trapezoid(self.explained, self.share))

    @property
    def cpr(self) -> float:
        """Area under the curve at the sizes of MIB, by trapezoids over the share kept. MIB ranks by signed score for
        it: `settings["signed"]` says how this curve was ranked, and tables show CPR for such a ranking only."""
        at = np.interp(SHARES, self.share, self.explained)
        return float(np.trapezoid(at, SHARES))

    @property
    def cmd(self) -> float:
        """Area between the curve and 1 at the sizes of MIB, which ranks by absolute score for it; so do the tables."""
        at = np.interp(SHARES, self.share, self.explained)
        return float(np.trapezoid(np.abs(1 - at), SHARES))


def resampled(n: int, resamples: int, seed: int) -> list[np.ndarray]:
    """Prompts drawn with replacement, as row numbers, once per resample: the bootstrap behind every interval."""
    draw = np.random.default_rng(seed)
    return [draw.integers(n, size=n) for _ in range(resamples)]


def _effect(metrics: np.ndarray, clean: np.ndarray, corrupt: np.ndarray, rows: Any) -> np.ndarray:
    base = corrupt[rows].mean()
    # Where there is no effect to explain, the answer is NaN.
    with np.errstate(divide="ignore", invalid="ignore"):
        return (metrics[:, rows].mean(axis=1) - base) / (clean[rows].mean() - base)
