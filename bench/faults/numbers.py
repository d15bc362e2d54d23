"""Models whose weights are NaN, infinite or huge: `check` refuses them by the tensor's name, or they are harmless.

A weight that is not finite, or above the square root of float32's largest number, is refused where the model is loaded.
Smaller ones pass; they are harmless by this rule: all that is computed is finite, or the run ends with the name of the
tensor with the largest weights. Such a model may do no task, and a command may say so and end, but none prints a nan.
"""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from faults.here import called
from faults.process import scratch
from faults.trial import Trial
from headscope.models import builtin_folder
from headscope.models.weights import LARGEST

VALUES = (float("nan"), float("inf"), float("-inf"), 3e38, 1e38, -1e30, 1e25, 1e19, 1e18, -1e15, 1e10, 1e6)
COMMANDS = (("check",), ("heads", "--draws", "0", "--format", "png"), ("roles", "--preset", "quick", "--seeds", "1"))


def trials(seed: int, n: int) -> Iterator[Trial]:
    folder = scratch()
    try:
        for number in range(n):
            yield trial(random.Random(f"{seed} {number}"), number, folder / str(number))
    finally:
        shutil.rmtree(folder)


def trial(draw: random.Random, number: int, folder: Path) -> Trial:
    shutil.copytree(builtin_folder("nano"), folder / "model")
    weights = load_file(folder / "model" / "model.safetensors")
    tensor, value = draw.choice(sorted(weights)), VALUES[number % len(VALUES)]
    flat = weights[tensor].flatten().float()
    places = draw.choice((1, 3, len(flat)))
    flat[torch.tensor(draw.sample(range(len(flat)), places))] = value
    weights[tensor] = flat.reshape(weights[tensor].shape)
    save_file(weights, folder / "model" / "model.safetensors", metadata={"format": "pt"})
    command, *options = COMMANDS[number % len(COMMANDS)]
    out = ["--out", folder / "run", *options] if command != "check" else []
    ended = called([command, folder / "model", "--task", "ioi", "--n", "4", *out], seconds=60)
    name = f"{command}, {value:g} in {places} places of {tensor}"
    refused = ended.code == 2 and tensor in ended.err
    finite = not re.search(r"\b(nan|inf)\b", ended.out + ended.err)
    says_so = ended.code == 0 or "there is no effect to explain" in ended.err
    harmless = abs(value) <= LARGEST and finite and says_so
    return Trial("numbers", name, (refused or harmless) and not ended.traceback, ended.said)
