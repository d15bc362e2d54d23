"""A run folder as one plain dict, for the page: a section per command, from records and tables alone (no torch).

Values are those of the files. What would make a page too large is reduced, and said: attention weights are rounded to
1/255, and kept for some heads where prompts are long; of the edges, the first few thousand of a ranking are kept.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headscope.records import ROLES, Ablation, Attention, Curve, EdgeScores, Roles, Scores
from headscope.report.command import THRESHOLD, command_line, figure_line, shown
from headscope.report.reading import Reading, plain

Section = dict[str, Any]


@dataclass(frozen=True)
class Room:
    """How much of the large things a section may hold."""

    attention: int = 3_000_000  # bytes, of a run
    edges: int = 3000  # of a ranking

    def half(self) -> Room:
        return Room(self.attention // 2, max(self.edges // 2, 100))


def collect(folder: Path, room: Room | None = None, within: Path | None = None) -> Section:
    """Everything that the page shows of a run."""
    run, room = Reading(folder, within=within), room or Room()
    manifest = run.manifest
    parts = SECTIONS.get(manifest["command"], _nothing)(run, room)
    if manifest["command"] and manifest["command"] not in SECTIONS:
        run.notes.append(f"Nothing is known here of the command {manifest['command']!r}.")
    checks = [found for name in run.names("check-", ".json") if isinstance(found := run.json(name), dict)]
    return plain(
        {
            "name": folder.name, "folder": shown(folder), "command": manifest["command"], "state": run.state,
            "line": run.made("manifest.json", lambda: command_line(manifest, folder)),
            "figure_line": figure_line(folder), "manifest": manifest, "checks": checks or parts.pop("checks", []),
            "notes": run.notes, **parts,
        }
    )  # fmt: skip


def _heads(run: Reading, room: Room) -> Section:
    scores = run.records("scores-", Scores)
    known = list(scores.values())
    return {
        "scores": run.each(scores, _scores),
        "curves": run.each(run.records("curve-", Curve), lambda curve: _curve(curve) | _members(curve, known)),
        "bands": run.each(run.records("band-", Curve), _curve),
        "attention": _attention(run, known, room),
        **_compared(run),
    }


def _edges(run: Reading, room: Room) -> Section:
    curves = run.records("curve-", Curve)
    about = {(c.model, c.task, c.method): c.settings for c in curves.values()}

    def graph(scores: EdgeScores) -> Section:
        settings = about.get((scores.model, scores.task, scores.method)) or run.manifest["settings"]
        signed, choice = bool(settings.get("signed")), str(settings.get("choice", "top"))
        order = scores.ranked(signed=signed, choice=choice)[: room.edges]
        writer, reader = scores.graph.ends
        named = {"model": scores.model, "task": scores.task, "method": scores.method, **scores.shape}
        return {
            **named, "n": scores.settings.get("n"), "total": len(scores.graph), "signed": signed, "choice": choice,
            "writer": writer[order], "reader": reader[order], "score": scores.values[order],
        }  # fmt: skip

    return {
        "graphs": run.each(run.records("edges-", EdgeScores), graph),
        "curves": run.each(curves, _curve),
        "bands": [],
        "circuits": run.rows("circuits.csv"),
        **_compared(run),
    }


def _roles(run: Reading, room: Room) -> Section:
    def fitted(roles: Roles) -> Section:
        scores = {role: getattr(roles, role) for role in ROLES}
        means = {role: found.mean(0) for role, found in scores.items()}
        ends = {role: [found.min(0), found.max(0)] for role, found in scores.items()}
        return {
            "model": roles.model, "task": roles.task, "seeds": len(roles.g_plus), "role": roles.commonest,
            "means": means, "ends": ends,
        }  # fmt: skip

    def curve(found: Ablation) -> Section:
        by_seed = {role: found.by_seed(role) for role in ROLES}
        lines = {role: {"mid": a.mean(0), "low": a.min(0), "high": a.max(0)} for role, a in by_seed.items()}
        return {"model": found.model, "task": found.task, "k": found.k, "lines": lines}

    return {
        "roles": run.each(run.records("roles-", Roles), fitted),
        "ablations": run.each(run.records("ablation-", Ablation), curve),
        "effects": run.each(run.records("effects-", Scores), _scores),
        "tables": {name: run.rows(f"{name}.csv") for name in ("shares", "patching", "agreement", "contrasts")},
    }


def _functions(run: Reading, room: Room) -> Section:
    found = run.json("functions.json") if "functions.json" in run.manifest["files"] else None
    found = found if isinstance(found, dict) else {}
    rankings = run.manifest["settings"].get("rankings") or []

    def ranked(name: str) -> list[Section]:
        scores = run.each(run.records(f"scores-{name}-", Scores), _scores)
        return [{**one, "ranking": name} for one in scores]

    tables = {name: found.get(name) or [] for name in ("base", "sweep", "cross", "pushed", "rankings", "agreement")}
    return {"scores": [one for name in rankings for one in ranked(name)], "tables": tables, "comet": found.get("comet")}


def _sparsity(run: Reading, room: Room) -> Section:
    report = run.json("report.json") if "report.json" in run.manifest["files"] else None
    report = report if isinstance(report, dict) else {}
    rows = run.rows("connectivity.csv")

    def rates() -> list[Section]:
        shape = max(row["layer"] for row in rows) + 1, max(row["index"] for row in rows) + 1
        values = np.full(shape, np.nan)
        for row in rows:
            values[row["layer"], row["index"]] = row["connectivity"]
        return [{"model": report.get("sparse", "sparse"), "task": "", "method": "open edges", "values": values}]

    return {
        "scores": (run.made("connectivity.csv", rates) if rows else None) or [],
        "found": report, "checks": report.get("checks") or [],
        "attention": _attention(run, [], room),
    }  # fmt: skip


def _nothing(run: Reading, room: Room) -> Section:
    return {}


SECTIONS: dict[str, Callable[[Reading, Room], Section]] = {
    "heads": _heads, "edges": _edges, "roles": _roles, "functions": _functions, "sparsify-report": _sparsity,
}  # fmt: skip


def _scores(scores: Scores) -> Section:
    L, H = scores.values.shape
    values = scores.values.astype(np.float32).reshape(L, H)
    n = len(scores.per_prompt)
    return {"model": scores.model, "task": scores.task, "method": scores.method, "n": n, "values": values}


def _curve(curve: Curve) -> Section:
    k, mid, low, high = (part.reshape(len(curve.k)) for part in (curve.k, curve.explained, curve.low, curve.high))
    about = {name: curve.settings.get(name) for name in ("ranking", "signed", "choice", "total", "n")}
    named = {"model": curve.model, "task": curve.task, "method": curve.method, "label": curve.label}
    return {**named, **about, "k": k, "mid": mid, "low": low, "high": high}


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


def _compared(run: Reading) -> Section:
    """The tables that compare curves, and the threshold at which they do."""
    multipliers, summary = run.rows("multipliers.csv"), run.rows("summary.csv")
    used = [row["threshold"] for row in [*multipliers, *summary] if row.get("threshold") is not None]
    return {"multipliers": multipliers, "summary": summary, "threshold": used[0] if used else THRESHOLD}


def _attention(run: Reading, scores: Sequence[Scores], room: Room) -> list[Section]:
    found = run.records("attention-", Attention)
    return run.each(found, lambda one: patterns(one, scores, room.attention / len(found)))


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
