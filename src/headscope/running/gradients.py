"""The gradient of the metric at every head's output, for all heads in one backward pass.

Shape letters: B prompts, T positions, H heads, K head width, D stream width.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from headscope.errors import InputError
from headscope.models.attention import Call, armed
from headscope.models.model import Model
from headscope.models.sparse_gate import CONFIG_KEY, straight_through
from headscope.running.interventions import record
from headscope.running.layer_modules import replaced
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


def z_of(model: Model, ids: list[list[int]], targets: Targets) -> list[Tensor]:
    """Every head's output on some prompts; per layer (B, T, H, K)."""
    with torch.no_grad(), record(model) as z:
        metrics_of(model, ids, targets)
    return [z[layer] for layer in range(model.n_layers)]


def z_and_gradient(
    model: Model, ids: list[list[int]], targets: Targets, *, embedding_BTD: Tensor | None = None
) -> tuple[list[Tensor], list[Tensor]]:
    """Every head's output and the gradient of its prompt's metric there; per layer (B, T, H, K).

    embedding_BTD: run with these token embeddings instead of the prompts' own.
    """
    z: list[Tensor] = [torch.empty(0)] * model.n_layers
    nudges: list[Tensor] = [torch.empty(0)] * model.n_layers

    def nudge(z_BTHK: Tensor, call: Call) -> Tensor:
        # Adding nothing, but something that can be differentiated by: z itself need not require gradients.
        z[call.layer] = z_BTHK.detach()
        nudges[call.layer] = torch.zeros_like(z_BTHK, requires_grad=True)
        return z_BTHK + nudges[call.layer]

    with torch.enable_grad(), armed(model.hf, nudge), embedded(model, embedding_BTD):
        gradients = torch.autograd.grad(metrics_of(model, ids, targets).sum(), nudges)
    return z, list(gradients)


def embeddings(model: Model, ids: list[list[int]]) -> Tensor:
    """Token embeddings of some prompts, (B, T, D)."""
    with torch.no_grad():
        return model.hf.get_input_embeddings()(torch.tensor(ids, device=model.device))


def embedded(model: Model, embedding_BTD: Tensor | None) -> AbstractContextManager[Any]:
    """A block in which the model reads these token embeddings, whatever ids it is given."""
    if embedding_BTD is None:
        return nullcontext()
    return replaced(model.hf.get_input_embeddings(), lambda *_, **__: embedding_BTD)
