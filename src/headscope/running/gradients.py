"""The gradient of the metric at every head's output, for all heads in one backward pass.

Shape letters: B prompts, T positions, H heads, K head width, D stream width.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from headscope.errors import InputError
from headscope.models.model import Model
from headscope.models.sparse_gate import CONFIG_KEY, straight_through
from headscope.running.layer_modules import replaced
from headscope.running.sites import edited, recorded
from headscope.running.targets import Targets, metrics_of

# How a sparse model's gates pass gradients; a dense model has none.
GateGradient = Literal["hard", "straight-through"]
GATES: tuple[GateGradient, ...] = get_args(GateGradient)


def gate_gradient(gates: str, temperature: float) -> AbstractContextManager[None]:
    """A block in which gradients pass the gates of a sparse model: "hard" by what an open gate lets through alone,
    "straight-through" also by whether it opens or closes, as if it were a sigmoid of that temperature."""
    if gates not in GATES:
        raise InputError(f"Unknown gates {gates!r}. Known: {', '.join(GATES)}.")
    if temperature <= 0:
        raise InputError(f"The temperature of a gate is above 0, found {temperature:g}.")
    return straight_through(temperature) if gates == "straight-through" else nullcontext()


def gate_settings(model: Model, gates: str, temperature: float) -> dict[str, Any]:
    """How gradients passed the gates, for the record; nothing for a dense model."""
    if not hasattr(model.hf.config, CONFIG_KEY):
        return {}
    return {"gates": gates, **({"temperature": temperature} if gates == "straight-through" else {})}


@torch.no_grad()
def values_of(
    model: Model, ids: list[list[int]], targets: Targets, parts: Collection[str]
) -> dict[str, list[Tensor]]:  # fmt: skip
    """The values of some parts on some prompts; per layer (B, T, X, W)."""
    with recorded(model, parts) as values:
        metrics_of(model, ids, targets)
    return values


def z_and_gradient(
    model: Model, ids: list[list[int]], targets: Targets, *, embedding_BTD: Tensor | None = None
) -> tuple[list[Tensor], list[Tensor]]:
    """Every head's output and the gradient of its prompt's metric there; per layer (B, T, H, K)."""
    values, slopes = values_and_gradients(model, ids, targets, ("z",), embedding_BTD=embedding_BTD)
    return values["z"], slopes["z"]


def values_and_gradients(
    model: Model, ids: list[list[int]], targets: Targets, parts: Collection[str], *, embedding_BTD: Tensor | None = None
) -> tuple[dict[str, list[Tensor]], dict[str, list[Tensor]]]:
    """The values of some parts and the gradient of each prompt's metric there; per layer (B, T, X, W).

    embedding_BTD: run with these token embeddings instead of the prompts' own.
    """
    values: dict[str, list[Tensor]] = {part: [torch.empty(0)] * model.n_layers for part in parts}
    nudges: dict[str, list[Tensor]] = {part: [torch.empty(0)] * model.n_layers for part in parts}
    with ExitStack() as stack:
        stack.enter_context(torch.enable_grad())
        for part in parts:

            def nudge(value: Tensor, layer: int, part: str = part) -> Tensor:
                # Adding nothing, but something that can be differentiated by: the value need not require gradients.
                values[part][layer] = value.detach()
                nudges[part][layer] = torch.zeros_like(value, requires_grad=True)
                return value + nudges[part][layer]

            stack.enter_context(edited(model, part, nudge))
        stack.enter_context(embedded(model, embedding_BTD))
        metric = metrics_of(model, ids, targets).sum()
        slopes = iter(torch.autograd.grad(metric, [one for part in parts for one in nudges[part]]))
    return values, {part: [next(slopes) for _ in range(model.n_layers)] for part in parts}


def embeddings(model: Model, ids: list[list[int]]) -> Tensor:
    """Token embeddings of some prompts, (B, T, D)."""
    with torch.no_grad():
        return model.hf.get_input_embeddings()(torch.tensor(ids, device=model.device))


def embedded(model: Model, embedding_BTD: Tensor | None) -> AbstractContextManager[Any]:
    """A block in which the model reads these token embeddings, whatever ids it is given."""
    if embedding_BTD is None:
        return nullcontext()
    return replaced(model.hf.get_input_embeddings(), lambda *_, **__: embedding_BTD)
