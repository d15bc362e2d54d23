"""Contrastive gating: gates that keep one task and forget another.

    loss = -log P_R + clip(log P_F - stopgrad(log P_R), min=-5) - 0.1 * mean(clip(m, -4, 4))

R is the task to keep, F the one to forget, log P as in `gating`; the model frozen, Adam, gradient norm clipped at 1,
from gates uniform in (0, 1), lr 0.1 -> 0.01 over 500 updates in the paper (arXiv 2505.13737). Once F is 5 nats less
likely than R it is left alone. Cost: a forward and a backward pass per prompt of both tasks, update and gate matrix.

Departures: log P of a task is the mean over a batch, and the clipping applies to that mean; the preset `cpu` is as for
`gating`, with the updates of both stages in one.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from headscope.methods.gating import LAM, PRESETS, preset_of
from headscope.models.model import Model
from headscope.progress import bar
from headscope.records import Contrast
from headscope.running.gates import Fit, Stage, batch_rows, frozen, gate_gradient, regulariser
from headscope.running.interventions import gated
from headscope.running.measure import measures
from headscope.running.targets import refuse_unfit
from headscope.tasks.task import Task

# How much less likely the forgotten task has to become.
FAR = -5.0


def contrastive(
    model: Model,
    keep: Task,
    forget: Task,
    *,
    held_out: tuple[Task, Task],
    seeds: int | list[int] = 3,
    preset: str = "cpu",
) -> Contrast:
    """Fit gates that keep one task and forget another.

    Args:
        model: the model.
        keep: the task that the gates must leave as it is.
        forget: the task that they must make unlikely.
        held_out: other prompts of both tasks, on which accuracies are measured.
        seeds: how many fits, or their seeds.
        preset: as for gating.

    Returns:
        The fitted gates of every seed, (S, L, H), and both accuracies with and without them.
    """
    how = preset_of(preset)
    stage = Stage(how.free.updates + how.pressed.updates, how.free.rate) if preset != "paper" else PRESETS["paper"].free
    numbers = list(range(seeds)) if isinstance(seeds, int) else list(seeds)
    # (Whatever a task's own metric: gates are fitted to the target's log-probability, and so is what is measured.)
    keep, forget, *others = (replace(task, metric="log-prob") for task in (keep, forget, *held_out))
    for task in (keep, forget, *others):
        refuse_unfit(model, task)
    fit = Fit.start(model, numbers)
    lam_C = torch.full((len(numbers),), LAM)
    with bar(f"{model.name} keeps {keep.name}, forgets {forget.name}", stage.updates, unit="updates") as progress, \
            frozen(model):  # fmt: skip
        while fit.update < stage.updates:
            draws = [
                [batch_rows(len(task), how.batch, seed, fit.update) for seed in fit.seeds] for task in (keep, forget)
            ]
            gradient_CLH, keep_C = gate_gradient(model, keep, fit.m_CLH, draws[0])
            other_CLH, forget_C = gate_gradient(model, forget, fit.m_CLH, draws[1])
            still_C = (forget_C - keep_C > FAR).float()[:, None, None]
            fit.step(gradient_CLH - still_C * other_CLH + regulariser(fit.m_CLH, lam_C), stage.rate_at(fit.update))
            progress.say(f"log P {keep_C.mean():.2f} and {forget_C.mean():.2f}, {fit.share_open:.0%} open")
            progress.advance()
    gates_SLH = fit.m_CLH.sigmoid()
    plain = [float(measures(model, task)[1].mean()) for task in others]
    accuracies = np.empty((2, len(numbers)))
    for s, gates_LH in enumerate(gates_SLH):
        with gated(model, gates_LH.to(model.device)):
            accuracies[:, s] = [measures(model, task)[1].mean() for task in others]
    settings = {"seeds": numbers, "preset": preset, "n": [len(task) for task in (keep, forget, *others)]}
    return Contrast(
        model.name, keep.name, forget.name, gates_SLH.numpy(), accuracies[0], accuracies[1], plain, settings
    )
