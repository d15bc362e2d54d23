"""A cache with room for what is still to come: a step writes its own keys and values, and copies nobody else's.

Shape letters: R rows, G key-value heads, S positions, T new positions, K head width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer


class _Layer(DynamicLayer):
    """Keys and values are the filled part of larger tensors. (Sliding layers keep everything too: the attention mask
    knows the window.)"""

    def __init__(self, room: int):
        super().__init__()
        self.room = room
        self._whole: tuple[Tensor, Tensor] | None = None

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start = self.get_seq_length()
        end = start + key_states.shape[-2]
        if self._whole is None or end > self._whole[0].shape[-2]:
            self._whole = (self._larger(self.keys, key_states, end), self._larger(self.values, value_states, end))
        for whole, new in zip(self._whole, (key_states, value_states), strict=True):
            whole[..., start:end, :] = new
        self.keys, self.values = (whole[..., :end, :] for whole in self._whole)
        return self.keys, self.values

    def _larger(self, kept_RGSK: Tensor | None, new_RGTK: Tensor, end: int) -> Tensor:
        shape = (*new_RGTK.shape[:-2], end + self.room, new_RGTK.shape[-1])
        larger = torch.empty(shape, dtype=new_RGTK.dtype, device=new_RGTK.device)
        if kept_RGSK is not None and kept_RGSK.numel():
            larger[..., : kept_RGSK.shape[-2], :] = kept_RGSK
        return larger

    def batch_select_indices(self, indices: Tensor) -> None:
        super().batch_select_indices(indices)
        self._whole = None


class PreallocatedCache(DynamicCache):
    """A cache for `layers` layers that grows by `room` positions at a time."""

    def __init__(self, layers: int, room: int):
        super().__init__()
        self.layers = [_Layer(room) for _ in range(layers)]

    def rows(self, indices: Tensor) -> PreallocatedCache:
        """A cache of its own with these rows of this one."""
        chosen = PreallocatedCache(len(self.layers), vars(self.layers[0])["room"])
        for mine, theirs in zip(self.layers, chosen.layers, strict=True):
            if mine.keys is not None and mine.values is not None:
                theirs.update(mine.keys[indices], mine.values[indices])
        return chosen
