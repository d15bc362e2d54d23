"""Run folders with made-up records, as large as one likes and without running a model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from headscope.records import Ablation, Attention, Curve, EdgeScores, Graph, Record, Roles, Scores, Sparsity
from headscope.runs.run import Run

MODELS = ("dense", "sparse")
TASKS = ("ioi", "greater-than")


def start(folder: Path, command: str, models: Sequence[str], tasks: Sequence[str], shape: tuple[int, int], **more: Any):
    run = Run.open(folder, command=command, settings={"models": list(models), "tasks": list(tasks), **more})
    for number, name in enumerate(models):
        facts = {"kind": "built-in", "architecture": "llama", "layers": shape[0], "heads": shape[1]}
        run.note_model(name, {**facts, "dtype": "float32", "sha256": f"{number:x}" * 64})
    return run


def keep(run: Run, name: str, record: Record) -> None:
    record.save(run.path(f"{name}.safetensors"))
    run.add(f"{name}.safetensors", 1.0)


def note_check(run: Run, number: int, model: str, task: str, accuracy: float = 0.9) -> None:
    found = {"model": model, "task": task, "n": 20, "accuracy": accuracy, "metric_name": "logit-diff"}
    run.path(f"check-{number}.json").write_text(json.dumps({**found, "metric": 2.5, "corrupt_metric": float("nan")}))
    run.add(f"check-{number}.json")


def curve(model: str, task: str, method: str, k: np.ndarray, total: int, seed: int, **settings: Any) -> Curve:
    draw = np.random.default_rng(seed)
    middle = 1 - np.exp(-4 * (k / total) ** 0.6) + draw.normal(scale=0.01, size=len(k))
    metrics = np.repeat(middle[:, None], 5, axis=1)
    about = {"ranking": "task", "signed": False, "total": total, "n": 20, "choice": "top", **settings}
    return Curve(model, task, method, k, middle, middle - 0.05, middle + 0.05, metrics, np.ones(5), np.zeros(5), about)


def heads_run(
    folder: Path, *, shape: tuple[int, int] = (4, 3), models: Sequence[str] = MODELS, tasks: Sequence[str] = TASKS,
    rankings: Sequence[str] = ("task",), tokens: int = 6, prompts: int = 10,
) -> Run:  # fmt: skip
    L, H = shape
    run = start(folder, "heads", models, tasks, shape, methods=["patching"], rankings=list(rankings), n=20, seed=0)
    number = 0
    for task in tasks:
        for model in models:
            draw = np.random.default_rng(number)
            each = draw.normal(size=(prompts, L, H)).astype(np.float32) ** 3
            scores = Scores(model, task, "patching", each.mean(0), each, {"n": prompts})
            keep(run, f"scores-{number}", scores)
            for ranking in rankings:
                found = curve(model, task, "patching", np.arange(L * H + 1), L * H, number, ranking=ranking)
                keep(run, f"curve-{number}-{ranking}", found)
            keep(run, f"band-{number}", curve(model, task, "random", np.arange(0, L * H + 1, 4), L * H, number + 90))
            weights = np.tril(draw.random((2, L, H, tokens, tokens)))
            words = [[f" w{place}" for place in range(tokens)], [f" v{place}" for place in range(tokens)]]
            attention = Attention(model, task, words, (weights / weights.sum(-1, keepdims=True)).astype(np.float16), {})
            keep(run, f"attention-{number}", attention)
            note_check(run, number, model, task)
            number += 1
    run.finish()
    return run


def edges_run(
    folder: Path, *, shape: tuple[int, int] = (3, 3), models: Sequence[str] = MODELS, tasks: Sequence[str] = TASKS,
    split: str = "none", points: int | None = None,
) -> Run:  # fmt: skip
    run = start(folder, "edges", models, tasks, shape, methods=["eap-ig"], split=split, n=20, seed=0)
    graph, number = Graph(*shape, split=split), 0
    k = np.arange(1, len(graph) + 1)
    k = k if points is None else k[:: max(1, len(k) // points)]
    about = {"n_layers": shape[0], "n_heads": shape[1], "split": split, "parallel": False}
    for task in tasks:
        for model in models:
            values = (np.random.default_rng(number).normal(size=len(graph)) ** 3).astype(np.float32)
            none = np.empty((0, len(graph)), np.float32)
            keep(run, f"edges-{number}", EdgeScores(model, task, "eap-ig", values, none, about, {"n": 20}))
            keep(run, f"curve-{number}", curve(model, task, "eap-ig", k, len(graph), number))
            number += 1
    run.finish()
    return run


def roles_run(folder: Path, *, shape: tuple[int, int] = (3, 4), tasks: Sequence[str] = ("syntax", "math")) -> Run:
    run = start(folder, "roles", ["dense"], tasks, shape, seeds=3, preset="cpu", n=8, held_out=6, compare=4, seed=0)
    for number, task in enumerate(tasks):
        draw = np.random.default_rng(number)
        keep(run, f"roles-{number}", Roles("dense", task, draw.random((3, *shape)), draw.random((3, *shape)), {}))
        change = -draw.random((3, 3, 4, 5)).cumsum(2)
        keep(run, f"ablation-{number}", Ablation("dense", task, np.array([0, 1, 5, 10]), change, {}))
        note_check(run, number, "dense", task)
    note_check(run, 9, "dense", "common-sense", accuracy=0.2)
    run.finish()
    return run


def functions_run(folder: Path, *, shape: tuple[int, int] = (3, 4)) -> Run:
    names = ("retrieval", "inference")
    settings = {"model": "dense", "rankings": ["probe"], "ks": [2, 4], "n": 5, "draws": 2, "seed": 0, "steps": "all"}
    run = Run.open(folder, command="functions", settings=settings)
    run.note_model("dense", {"layers": shape[0], "heads": shape[1], "sha256": "0" * 64})
    for number, name in enumerate(names):
        each = np.random.default_rng(number).random((1, *shape)).astype(np.float32)
        keep(run, f"scores-probe-{name}", Scores("dense", name, "probe", each[0], each, {}))
    row = {"ranking": "probe", "top_accuracy": 0.25, "random_accuracy": 0.5, "below": True}
    ends = {"random_accuracy_low": 0.4, "random_accuracy_high": 0.75}
    tables = {
        "base": [{"function": name, "n": 5, "accuracy": 0.9} for name in names],
        "sweep": [{**row, **ends, "function": name, "k": k} for name in names for k in (2, 4)],
        "comet": "COMET not scored: not asked for",
    }
    run.path("functions.json").write_text(json.dumps(tables))
    run.add("functions.json")
    run.finish()
    return run


def sparsity_run(folder: Path, *, shape: tuple[int, int] = (3, 2)) -> Run:
    run = start(folder, "sparsify-report", MODELS, ["ioi"], shape, text="self", count=8, length=16, n=8, seed=1)
    for which in MODELS:
        weights = np.tril(np.random.default_rng(0).random((1, *shape, 5, 5))).astype(np.float16)
        keep(run, f"attention-{which}", Attention(which, "ioi", [[" a", " b", " c", " d", " e"]], weights, {}))
    rates = np.add.outer(np.arange(shape[0]), np.arange(shape[1])) * 0.1
    losses = {"ce": np.array([1.5, 1.75]), "dense_ce": np.array([1.5, 1.5]), "kl": np.array([0.125, 0.125])}
    random = {"connectivity": 0.26, "ce": 3.0, "kl": 1.5}
    about = {"text": "self", "count": 8, "length": 16, "seed": 1}
    found = Sparsity("sparse", "dense", rates, np.array([0.2, 0.3]), **losses, random=random, settings=about)
    keep(run, "sparsity", found)
    for number, model in enumerate(MODELS):
        note_check(run, number, model, "ioi", accuracy=1.0 - number / 8)
    run.finish()
    return run


ALL = {"heads": heads_run, "edges": edges_run, "roles": roles_run, "functions": functions_run, "sparsity": sparsity_run}
