"""What run folders know of a model's heads, for one page with a card per head (no torch).

Reads the runs of a folder that are of this model: scores of heads on every task, roles, functions. What is not there is
told with the command that makes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from headscope.records import ROLES, Attention, Patterns, Scores
from headscope.report.figures.titles import TITLES, task_title
from headscope.report.outputs.functions import Functions
from headscope.report.outputs.heads import Heads
from headscope.report.outputs.roles import HeadRoles
from headscope.report.page.collect import patterns as pattern_part
from headscope.report.page.collect import role_part, score_part
from headscope.report.page.html import assemble
from headscope.report.reading import Reading, plain

SCRIPTS = ("elements.js", "headmap.js", "attention.js", "atlas.js")
# Prompts shown of each task on a card, and how much room patterns may take.
PROMPTS, ROOM = 2, 3_000_000

# From a model, a task as a run's settings name it, a number of prompts and a seed to the prompts' texts and the digest
# that scores know them by.
Ask = Callable[[str, int, int], tuple[list[str], str]]


def atlas_page(
    patterns: Patterns, attention: Attention, folder: Path, ask: Ask, tasks: Sequence[str]
) -> tuple[str, dict[str, Any]]:
    """The page of a model, and what it says in a few numbers.

    Args:
        patterns: scores of known patterns.
        attention: of every head on prompts to look at.
        folder: in which run folders are looked for.
        ask: gives the prompts of a task again.
        tasks: those that a model can be asked, to say which are missing.
    """
    model, shape = patterns.model, patterns.values.shape[1:]
    scores: list[dict[str, Any]] = []
    roles: list[dict[str, Any]] = []
    functions: list[dict[str, Any]] = []
    notes, read = [], []
    for run in _runs(folder):
        kept = len(scores) + len(roles) + len(functions)
        if run.manifest["command"] == "heads":
            mine = [one for one in Heads(run).scores if one.model == model and one.values.shape == shape]
            scores += [{**score_part(one), **_prompts(one, run.manifest, ask)} for one in mine]
        elif run.manifest["command"] == "roles":
            mine = [one for one in HeadRoles(run).roles if one.model == model and one.commonest.shape == shape]
            roles += [role_part(one) for one in mine]
        elif run.manifest["command"] == "functions":
            for ranking, found in Functions(run).scores.items():
                functions += [{**score_part(one), "ranking": ranking} for one in found if one.model == model]
        if len(scores) + len(roles) + len(functions) > kept:
            read.append(run.folder.name)
        notes += [f"{run.folder.name}: {note}" for note in run.notes]
    missing = _missing(model, tasks, scores, roles, functions)
    best = [Scores(model, one["task"], one["method"], np.array(one["values"]), np.empty((0, *shape))) for one in scores]
    data = {
        "title": f"{model}: atlas of heads", "titles": TITLES, "model": model, "shape": shape,
        "patterns": {"names": patterns.names, "values": patterns.values, "on": patterns.task},
        "attention": pattern_part(attention, best, ROOM), "scores": scores, "roles": roles, "functions": functions,
        "missing": missing, "notes": notes, "read": read, "role_names": ROLES,
    }  # fmt: skip
    told = {
        "model": model, "heads": int(np.prod(shape)), "runs": read, "scores": len(scores), "roles": len(roles),
        "functions": len(functions), "missing": missing, "notes": notes,
    }  # fmt: skip
    return assemble(plain(data), SCRIPTS), told


def _runs(folder: Path) -> list[Reading]:
    """The runs in a folder and in folders inside it (a reproduction holds several)."""
    found = sorted({*folder.glob("manifest.json"), *folder.glob("*/manifest.json"), *folder.glob("*/*/manifest.json")})
    return [Reading(path.parent) for path in found]


def _prompts(scores: Scores, manifest: Mapping[str, Any], ask: Ask) -> dict[str, Any]:
    """The prompts on which each head matters most, where the prompts can be made again."""
    settings = manifest["settings"]
    names = [str(name) for name in settings.get("tasks") or ()]
    named = next((name for name in names if Path(name).stem == scores.task), scores.task)
    texts, digest = ask(named, len(scores.per_prompt), int(settings.get("seed") or 0))
    if not len(scores.per_prompt) or digest != scores.settings.get("prompts"):
        return {}
    each = scores.per_prompt.reshape(len(scores.per_prompt), -1)
    best = np.argsort(-np.abs(each), axis=0, kind="stable")[:PROMPTS].T
    used = np.unique(best)
    return {
        "texts": {int(at): texts[at] for at in used}, "best": best,
        "best_score": np.take_along_axis(each.T, best, axis=1).astype(np.float32),
    }  # fmt: skip


def _missing(
    model: str, tasks: Sequence[str], scores: Sequence[Any], roles: Sequence[Any], functions: Sequence[Any]
) -> list[dict[str, str]]:
    """What no run has said yet, and the command that says it."""
    there = {one["task"] for one in scores}
    missing = [
        {"what": f"scores on {task_title(task)}", "command": f"headscope heads {model} --task {task}"}
        for task in tasks
        if task not in there
    ]
    if not roles:
        missing.append({"what": "roles", "command": f"headscope roles {model} --task syntax,common-sense,math"})
    if not functions:
        missing.append({"what": "functions", "command": f"headscope functions {model}"})
    return missing
