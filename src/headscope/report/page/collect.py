"""A run folder as one plain dict, for the page: a section per command, from the run's outputs alone (no torch).

Values are those of the records. What would make a page too large is reduced, and said: attention weights are rounded to
1/255, and kept for some heads where prompts are long; of the edges, the first few thousand of a ranking are kept.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from headscope.records import ROLES, Ablation, Attention, Curve, EdgeScores, Roles, Scores, crossing
from headscope.report.command import command_line, figure_line, shown
from headscope.report.figures.circuits import layer_of
from headscope.report.figures.functions import second_score
from headscope.report.outputs import OUTPUTS, Draw, Outputs
from headscope.report.outputs.edges import Edges
from headscope.report.outputs.functions import Functions
from headscope.report.outputs.heads import Heads
from headscope.report.outputs.roles import HeadRoles
from headscope.report.outputs.series import Series
from headscope.report.outputs.sparsity import SparseModel
from headscope.report.reading import Reading, plain

Section = dict[str, Any]
R = TypeVar("R")


@dataclass(frozen=True)
class Room:
    """How much of the large things a section may hold."""

    attention: int = 3_000_000  # bytes, of a run
    edges: int = 3000  # of a ranking

    def half(self) -> Room:
        return Room(self.attention // 2, max(self.edges // 2, 100))


def collect(folder: Path, room: Room | None = None, within: Path | None = None) -> Section:
    """Everything that the page shows of a run."""
    run = Reading(folder, within=within)
    manifest, command = run.manifest, run.manifest["command"]
    if command and command not in OUTPUTS:
        run.notes.append(f"Nothing is known here of the command {command!r}.")
    outputs = OUTPUTS.get(command, Outputs)(run)
    tables = run.made("tables", outputs.tables) or {}
    parts = run.made(command, lambda: SECTIONS[command](outputs, room or Room())) if command in SECTIONS else None
    checks = run.made("checks", lambda: outputs.told_checks) or []
    return plain(
        {
            "name": folder.name, "folder": shown(folder), "command": command, "state": run.state,
            "line": run.made("manifest.json", lambda: command_line(manifest, folder)),
            "figure_line": figure_line(folder), "manifest": manifest, "checks": checks,
            "found": run.made("findings", outputs.sentences) or [],
            "tables": {name: table.dicts() for name, table in tables.items() if name not in WHOLE.get(command, ())},
            **_figures(outputs), **(parts or {}), "notes": run.notes,
        }
    )  # fmt: skip


# Tables that say again, row by row, what a section holds as arrays.
WHOLE = {"heads": ("heads", "curves"), "edges": ("edges", "curves"), "roles": ("roles", "ablation")}


def _figures(outputs: Outputs) -> Section:
    """The names of a run's figures, and pictures of those that the page does not draw by itself."""
    figures = outputs.run.made("figures", outputs.figures) or {}
    others = {name: draw for name, draw in figures.items() if not name.startswith(outputs.on_page)}
    pictures = {name: outputs.run.made(name, lambda draw=draw: _picture(draw)) for name, draw in others.items()}
    return {"figures": list(figures), "pictures": {name: made for name, made in pictures.items() if made}}


def _picture(draw: Draw) -> str:
    data = io.BytesIO()
    draw().savefig(data, format="png", dpi=130, bbox_inches="tight")
    return f"data:image/png;base64,{base64.b64encode(data.getvalue()).decode()}"


def _heads(outputs: Heads, room: Room) -> Section:
    return {
        **_series(outputs),
        "scores": _each(outputs, outputs.scores, score_part),
        "attention": _attention(outputs, outputs.scores, room),
    }


def _edges(outputs: Edges, room: Room) -> Section:
    about = {(c.model, c.task, c.method): c.settings for c in outputs.curves}

    def graph(scores: EdgeScores) -> Section:
        settings = about.get((scores.model, scores.task, scores.method)) or outputs.run.manifest["settings"]
        how = {"signed": bool(settings.get("signed")), "choice": str(settings.get("choice", "top"))}
        return graph_part(scores, room.edges, **how)

    return {**_series(outputs), "graphs": _each(outputs, outputs.scores, graph)}


def graph_part(scores: EdgeScores, most: int, *, signed: bool = False, choice: str = "top") -> Section:
    """The first edges of a ranking, with the ends of each."""
    order = scores.ranked(signed=signed, choice=choice)
    joined, order = scores.graph.joined(order), order[:most]
    writer, reader = scores.graph.ends
    named = {"model": scores.model, "task": scores.task, "method": scores.method, **scores.shape}
    return {
        **named, "n": scores.settings.get("n"), "total": len(scores.graph), "signed": signed, "choice": choice,
        "writers": scores.graph.writers, "readers": scores.graph.readers,
        "layers": {name: layer_of(name, scores.graph) for name in [*scores.graph.writers, "logits"]},
        "writer": writer[order], "reader": reader[order], "score": scores.values[order], "joined": joined[order],
    }  # fmt: skip


def _roles(outputs: HeadRoles, room: Room) -> Section:
    def curve(values: Ablation) -> Section:
        by_seed = {role: values.by_seed(role) for role in ROLES}
        lines = {role: {"mid": a.mean(0), "low": a.min(0), "high": a.max(0)} for role, a in by_seed.items()}
        return {"model": values.model, "task": values.task, "k": values.k, "lines": lines}

    return {"roles": _each(outputs, outputs.roles, role_part), "ablations": _each(outputs, outputs.ablations, curve)}


def role_part(roles: Roles) -> Section:
    scores = {role: getattr(roles, role) for role in ROLES}
    means = {role: values.mean(0) for role, values in scores.items()}
    ends = {role: [values.min(0), values.max(0)] for role, values in scores.items()}
    return {
        "model": roles.model, "task": roles.task, "seeds": len(roles.g_plus), "role": roles.commonest,
        "means": means, "ends": ends,
    }  # fmt: skip


def _functions(outputs: Functions, room: Room) -> Section:
    scores = [
        {**score_part(one), "ranking": ranking} for ranking, scores_of in outputs.scores.items() for one in scores_of
    ]
    return {"scores": scores, "comet": outputs.scored["comet"], "second": second_score(outputs.scored["sweep"])}


def _sparsity(outputs: SparseModel, room: Room) -> Section:
    found = outputs.found
    rates = [] if found is None else [Scores(found.model, "", "open edges", found.rates, found.rates[None])]
    return {
        "scores": [score_part(one) for one in rates],
        "found": outputs.report,
        "attention": _attention(outputs, [], room),
    }


SECTIONS: dict[str, Callable[[Any, Room], Section]] = {
    "heads": _heads, "edges": _edges, "roles": _roles, "functions": _functions, "sparsify-report": _sparsity,
}  # fmt: skip


def _each(outputs: Outputs, records: Sequence[R], make: Callable[[R], Section]) -> list[Section]:
    """A section of each record; one whose numbers do not fit together is noted and left out."""
    made = [outputs.run.made(type(record).__name__, lambda record=record: make(record)) for record in records]
    return [one for one in made if one is not None]


def score_part(scores: Scores) -> Section:
    L, H = scores.values.shape
    order = [l * H + h for l, h in scores.ranked()]
    about = {"model": scores.model, "task": scores.task, "method": scores.method, "n": len(scores.per_prompt)}
    return {**about, "values": scores.values.astype(np.float32).reshape(L, H), "order": order}


def _series(outputs: Series) -> Section:
    known = [scores for scores in outputs.scores if isinstance(scores, Scores)]

    def curve(one: Curve) -> Section:
        return {**curve_part(one, outputs.threshold), **_members(one, known)}

    return {
        "curves": _each(outputs, outputs.curves, curve),
        "bands": _each(outputs, outputs.bands, curve),
        "threshold": outputs.threshold,
    }


def curve_part(curve: Curve, threshold: float) -> Section:
    k, mid, low, high = (part.reshape(len(curve.k)) for part in (curve.k, curve.explained, curve.low, curve.high))
    about = {name: curve.settings.get(name) for name in ("ranking", "signed", "choice", "total", "n")}
    named = {"model": curve.model, "task": curve.task, "method": curve.method, "label": curve.label}
    needs = crossing(curve.k, curve.explained, threshold)
    ends = {name: end if np.isfinite(end).any() else None for name, end in (("low", low), ("high", high))}
    return {**named, **about, "k": k, "mid": mid, **ends, "needs": needs}


def _members(curve: Curve, all_scores: Sequence[Scores]) -> Section:
    """Which heads a curve keeps: their order, best first; or, where each prompt has its own, the share of prompts that
    keep a head at each point of the curve."""
    for scores in all_scores:
        if (scores.model, scores.task, scores.method) == (curve.model, curve.task, curve.method):
            signed = bool(curve.settings.get("signed"))
            if curve.settings.get("ranking") != "prompt":
                return {"order": [l * scores.values.shape[1] + h for l, h in scores.ranked(signed=signed)]}
            each = scores.per_prompt.reshape(len(scores.per_prompt), -1)
            ranks = np.argsort(np.argsort(-(each if signed else np.abs(each)), axis=1, kind="stable"), axis=1)
            shares = [(ranks < k).mean(0) for k in curve.k]
            return {"shares": _bytes(np.stack(shares))}
    return {}


def _attention(outputs: Heads | SparseModel, scores: Sequence[Scores], room: Room) -> list[Section]:
    attention = outputs.attention
    return _each(outputs, attention, lambda one: patterns(one, scores, room.attention / len(attention)))


def patterns(one: Attention, scores: Sequence[Scores], room: float) -> Section:
    """Patterns rounded to 1/255, their lower triangles only (a token attends to none that follows). Where not all heads
    fit into `room` bytes, those that some model and method scores highest on the task."""
    P, L, H, T, _ = one.patterns.shape
    most = int(room / (P * T * (T + 1) // 2 * 4 / 3))
    heads = np.arange(L * H) if most >= L * H else np.sort(_best(one, scores, L, H)[:most])
    rows, columns = np.tril_indices(T)
    weights = one.patterns.reshape(P, L * H, T, T)[:, heads][:, :, rows, columns]
    return {
        "model": one.model, "task": one.task, "tokens": one.tokens, "n_heads": H, "heads": heads,
        "left_out": L * H - len(heads), "data": _bytes(weights.astype(np.float32)),
    }  # fmt: skip


def _best(one: Attention, scores: Sequence[Scores], L: int, H: int) -> np.ndarray:
    """Heads in the order of their highest score, relative to the largest, over all models and methods on a task."""
    alike = [np.abs(s.values) for s in scores if s.task == one.task and s.values.shape == (L, H)]
    relative = [values / values.max() for values in alike if values.size and values.max() > 0]
    if relative:
        return np.argsort(-np.max(relative, axis=0), axis=None, kind="stable")
    # Without scores: those that attend to something other than the first token.
    return np.argsort(-one.patterns[..., 1:].astype(np.float32).sum((0, 3, 4)), axis=None, kind="stable")


def _bytes(values: np.ndarray) -> str:
    """Numbers from 0 to 1 as base64, a byte each."""
    return base64.b64encode(np.round(np.clip(np.nan_to_num(values), 0, 1) * 255).astype(np.uint8).tobytes()).decode()
