"""Causal head gating: every head gets a gate, fitted so that the model still says the target.

    G = sigmoid(m),  z' = G * z
    loss = -mean log P(target | prompt; G) - lam * mean(clip(m, -4, 4))

after Nam, Conklin, Yang, Griffiths, Cohen and Leslie (arXiv 2505.13737). Three stages, the model frozen, Adam, gradient
norm clipped at 1:

1. lam = 0 from gates uniform in (0, 1);
2. from there lam = +0.1, pressed to keep: G+;
3. from there again lam = -0.1, pressed to remove: G-.

    facilitation = G-,  interference = 1 - G+,  irrelevance = G+ * (1 - G-)

Cost: one forward and one backward pass per prompt, update and gate matrix; the gates of all seeds are rows of one
batch, G+ and G- of all seeds likewise. Logits only where a target token is predicted.

Departures: log P is averaged over each target's tokens and then over prompts; every seed draws its own batches; the
presets `cpu` and `quick` take far fewer updates and larger steps than the paper's (docs/roles.md shows what that costs
in agreement). With all prompts in every update, as in `cpu`, there is no noise, so that Adam moves a gate on which
nothing but the press acts at full speed; with few of them, the press drowns in the noise.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from headscope import stopping
from headscope.errors import InputError
from headscope.models.model import Model
from headscope.progress import Bar, bar
from headscope.records import Roles
from headscope.records.checksums import set_aside
from headscope.running.gates import Fit, Stage, batch_rows, frozen, gate_gradient, regulariser
from headscope.running.targets import refuse_unfit
from headscope.tasks.task import Task

LAM = 0.1


@dataclass(frozen=True)
class Preset:
    """How thoroughly to fit."""

    free: Stage
    pressed: Stage
    batch: int


PRESETS = {
    "quick": Preset(Stage(16, (0.6, 0.1)), Stage(24, (0.8, 0.1)), batch=8),
    "cpu": Preset(Stage(8, (1.2, 0.1)), Stage(16, (1.2, 0.1)), batch=64),
    "paper": Preset(Stage(500, (0.1, 0.01)), Stage(500, (0.5, 0.1)), batch=64),
}


def preset_of(name: str) -> Preset:
    if name not in PRESETS:
        raise InputError(f"Unknown preset {name!r}. Known: {', '.join(PRESETS)}.")
    return PRESETS[name]


def gating(
    model: Model,
    task: Task,
    *,
    seeds: int | list[int] = 3,
    preset: str | Preset = "cpu",
    checkpoint: str | Path | None = None,
    every: float = 20.0,
) -> Roles:
    """Fit gates that keep the target likely while regularised to keep heads (G+) and to remove them (G-).

    Args:
        model: the model.
        task: the prompts; the corrupt ones are not used.
        seeds: how many fits, or their seeds; each starts from its own gates and draws its own batches.
        preset: "quick", "cpu", "paper", or a Preset of your own.
        checkpoint: a file in which the fit is kept as it goes; a killed fit goes on from it. Removed at the end.
        every: seconds between checkpoints.

    Returns:
        Both gates of every head by seed, (S, L, H), and from them its role.
    """
    how = preset_of(preset) if isinstance(preset, str) else preset
    numbers = list(range(seeds)) if isinstance(seeds, int) else list(seeds)
    if not numbers:
        raise InputError("Gating needs at least one seed, found none.")
    task = replace(task, metric="log-prob")
    refuse_unfit(model, task)
    about = {
        "task": task.name, "n": len(task), "task_seed": task.seed, "numbers": numbers, "preset": asdict(how),
        "model": model.name, "shape": [model.n_layers, model.n_heads],
    }  # fmt: skip
    path = None if checkpoint is None else Path(checkpoint)
    stage, fit = _resume(path, about) or (0, Fit.start(model, numbers))
    plans = [(how.free, torch.zeros(len(numbers))), (how.pressed, _both_ways(len(numbers)))]
    total = how.free.updates + how.pressed.updates
    with bar(f"Gating {model.name} on {task.name}", total, unit="updates") as progress, frozen(model):
        progress.advance(fit.update + (how.free.updates if stage else 0))
        for number, (plan, lam_C) in enumerate(plans):
            if number < stage:
                continue
            if number > stage:
                fit = fit.again(2)
            _fit(model, task, fit, plan, lam_C, how, progress, path, every, {**about, "stage": number})
    S = len(numbers)
    gates = fit.m_CLH.sigmoid().numpy()
    settings = {
        "n": len(task), "seed": task.seed, "seeds": numbers, "preset": preset if isinstance(preset, str) else "own",
        "log_prob": [-losses for losses in _last(fit.losses)],
    }  # fmt: skip
    if path is not None:
        path.unlink(missing_ok=True)
    return Roles(model.name, task.name, gates[:S], gates[S:], settings)


def _both_ways(seeds: int) -> torch.Tensor:
    return torch.cat([torch.full((seeds,), LAM), torch.full((seeds,), -LAM)])


def _last(losses: list[list[float]], updates: int = 8) -> list[float]:
    """Mean loss over the last updates, by matrix."""
    return torch.tensor(losses[-updates:]).mean(0).tolist()


def _resume(path: Path | None, about: dict[str, Any]) -> tuple[int, Fit] | None:
    if path is None or not path.exists():
        return None
    try:
        fit, there = Fit.load(path)
    except ValueError as error:
        set_aside(path, f"is no checkpoint of a fit: {error}")
        return None
    stage = there.pop("stage")
    if there != _as_json(about):
        raise InputError(f"{path} is the checkpoint of another fit. Delete it, or give another place.")
    return stage, fit


def _as_json(value: dict[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps(value))


def _fit(
    model: Model, task: Task, fit: Fit, plan: Stage, lam_C: torch.Tensor, how: Preset, progress: Bar, path: Path | None,
    every: float, about: dict[str, Any],
) -> None:  # fmt: skip
    """The rest of one stage, in place."""
    saved = time.monotonic()
    offset = 10_000 * about["stage"]
    while fit.update < plan.updates:
        rows_CB = [batch_rows(len(task), how.batch, seed, fit.update + offset) for seed in fit.seeds]
        gradient_CLH, log_C = gate_gradient(model, task, fit.m_CLH, rows_CB)
        rate = plan.rate_at(fit.update)
        fit.step(gradient_CLH + regulariser(fit.m_CLH, lam_C), rate)
        fit.losses.append((-log_C).tolist())
        progress.say(f"loss {-log_C.mean():.3f}, {fit.share_open:.0%} open")
        progress.advance()
        if path is not None and (stopping.asked() or time.monotonic() - saved > every):
            fit.save(path, about)
            stopping.stop_if_asked()
            saved = time.monotonic()
    if path is not None:
        fit.save(path, about)
