"""The gates' learned offsets while they are trained: parameters of the attention modules, c_h and b_h of every head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from headscope.models import Model
from headscope.models.attention import Call, armed
from headscope.models.sparse_gate import OFFSETS, packed, unpacked


@torch.no_grad()
def add_offsets(student: nn.Module, model: Model, start: Sequence[str] | None) -> None:
    """Give every attention module of a copy of `model` offsets: zeros, or those to start from."""
    shapes: dict[int, tuple[int, int]] = {}

    def see(z_BTHK: Tensor, call: Call) -> Tensor:
        assert call.query_BHTK is not None
        shapes[call.layer] = call.query_BHTK.shape[1], call.query_BHTK.shape[3] + 1
        return z_BTHK

    with armed(model.hf, see):
        model.hf(input_ids=torch.ones(1, 2, dtype=torch.long, device=model.device), use_cache=False)
    for layer, module in _modules(student):
        first_HO = torch.zeros(shapes[layer], device=model.device)
        if start is not None:
            first_HO += unpacked(start[layer], shapes[layer][0], model.device)
        module.register_parameter(OFFSETS, nn.Parameter(first_HO))


def gate_entry(student: nn.Module, bias: float) -> dict[str, Any]:
    """The gate as a config keeps it: its bias, and its offsets where it has some."""
    offsets = {layer: packed(module._parameters[OFFSETS]) for layer, module in _modules(student) if has_offsets(module)}  # pyright: ignore[reportArgumentType]
    return {"bias": bias, **({"offsets": [offsets[layer] for layer in sorted(offsets)]} if offsets else {})}


def has_offsets(module: nn.Module) -> bool:
    return OFFSETS in module._parameters


def _modules(student: nn.Module) -> list[tuple[int, nn.Module]]:
    """Layer and attention module, for each attention module."""
    sites = [(getattr(module, "headscope_site", None), module) for module in student.modules()]
    return [(site.layer, module) for site, module in sites if site is not None]
