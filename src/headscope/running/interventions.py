"""Recording, gating, patching and masking heads: context managers over the attention function.

All of them but `record` are one equation, applied to every head's output z before the output projection:

    z' = m * z + (1 - m) * fill

`gated` and `masked` have fill 0; `patched` takes it from another run (a `Recording`), or from means. The mask m may be
(L, H), or one per batch row (B, L, H), or per row and position (B, T, L, H); it may carry gradients. A circuit of
heads, or a list of names (L9.H6), is a mask that is 1 there and 0 elsewhere. Blocks nest: an inner block sees what the
outer ones hand on, so `record` inside `gated` records gated values.

Shape letters: B batch, T positions, S key positions, H heads, G key-value heads, K head width, L layers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from headscope.errors import InputError
from headscope.models.attention import Call, Inside, armed
from headscope.models.model import Model
from headscope.records import Circuit, Head, is_naming, which_heads

Steps = Literal["all", "prompt", "decode"]
Mask = Tensor | np.ndarray | Sequence | Circuit | str


class Fill(Protocol):
    """What replaces a head's output: for each layer a tensor (B, T, H, K), or (H, K) for the same everywhere."""

    def __getitem__(self, layer: int, /) -> Tensor: ...


class Recording:
    """What `record` saw. `recording[layer]` is z, (B, T, H, K).

    Decode steps of a generation with a cache are joined along T; a run that starts anew replaces the one before.
    """

    def __init__(self, n_layers: int):
        self._z: list[list[Tensor]] = [[] for _ in range(n_layers)]
        self._pattern: list[list[tuple[int, Tensor]]] = [[] for _ in range(n_layers)]
        self._qkv: list[tuple[Tensor, Tensor, Tensor] | None] = [None] * n_layers

    def __len__(self) -> int:
        return len(self._z)

    def __getitem__(self, layer: int) -> Tensor:
        chunks = self._z[layer]
        if not chunks:
            raise InputError("Nothing was recorded: run the model inside the `with record(model)` block.")
        return chunks[0] if len(chunks) == 1 else torch.cat(chunks, dim=1)

    def pattern(self, layer: int) -> Tensor:
        """Attention weights, with `record(model, patterns=True)`.

        Args:
            layer: counted from 0.

        Returns:
            (B, H, T, S): by row, head, query and key.
        """
        chunks = self._pattern[layer]
        if not chunks:
            raise InputError("No attention patterns were recorded: use record(model, patterns=True).")
        end = max(first + pattern.shape[-1] for first, pattern in chunks)
        padded = [
            torch.nn.functional.pad(pattern, (first, end - first - pattern.shape[-1])) for first, pattern in chunks
        ]
        return torch.cat(padded, dim=2)

    def qkv(self, layer: int) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v of the last run, with `record(model, qkv=True)`.

        Args:
            layer: counted from 0.

        Returns:
            q (B, T, H, K), k and v (B, S, G, K), which have a head per group.
        """
        kept = self._qkv[layer]
        if kept is None:
            raise InputError("No q, k and v were recorded: use record(model, qkv=True).")
        return kept

    def note(self, z_BTHK: Tensor, call: Call, *, patterns: bool, qkv: bool) -> None:
        """Keep what one call of a layer's attention did.

        Args:
            z_BTHK: its heads' outputs.
            call: all else that is known of it.
            patterns, qkv: whether to keep these too.
        """
        if call.start == 0:
            self._z[call.layer], self._pattern[call.layer] = [], []
        self._z[call.layer].append(z_BTHK)
        if patterns and call.pattern_BHTS is not None:
            # A sliding cache holds only the last keys: they end where the queries end.
            first = call.start + z_BTHK.shape[1] - call.pattern_BHTS.shape[-1]
            self._pattern[call.layer].append((max(first, 0), call.pattern_BHTS))
        if qkv and call.query_BHTK is not None and call.key_BGSK is not None and call.value_BGSK is not None:
            heads_last = (call.query_BHTK, call.key_BGSK, call.value_BGSK)
            q, k, v = (tensor.transpose(1, 2) for tensor in heads_last)
            self._qkv[call.layer] = (q, k, v)


@contextmanager
def record(model: Model, *, patterns: bool = False, qkv: bool = False) -> Iterator[Recording]:
    """Keep every head's output z; on request also attention patterns, q, k and v.

    Args:
        model: what `load` returned.
        patterns: keep attention weights, for `recording.pattern(layer)`.
        qkv: keep q, k and v, for `recording.qkv(layer)`.

    Returns:
        A block; inside it, the recording. `recording[layer]` is z, (B, T, H, K).
    """
    recording = Recording(model.n_layers)

    def tap(z_BTHK: Tensor, call: Call) -> Tensor:
        recording.note(z_BTHK, call, patterns=patterns, qkv=qkv)
        return z_BTHK

    with armed(model.hf, tap, patterns=patterns or qkv):
        yield recording


@contextmanager
def patched(model: Model, keep: Mask, *, fill: Fill | None = None, steps: Steps = "all") -> Iterator[None]:
    """z' = keep * z + (1 - keep) * fill at every head.

    Args:
        model: what `load` returned.
        keep: a circuit, names of heads, or numbers: (L, H), (B, L, H) by row, or (B, T, L, H) by row and position.
        fill: by layer (B, T, H, K) or (H, K), such as a recording of another run; zero unless given.
        steps: "prompt" acts only on runs that start with an empty cache, "decode" only on those that go on from one.

    Returns:
        A block in which `model.hf` runs so.
    """
    mask = _as_mask(model, keep)
    if steps not in ("all", "prompt", "decode"):
        raise InputError(f"Unknown steps {steps!r}. Known: all, prompt, decode.")
    # Layers left wholly open are passed by, which saves time and keeps their numbers exact.
    open_layers = set()
    if not mask.requires_grad:
        is_open = (mask == 1).all(dim=-1)
        open_layers = {layer for layer in range(model.n_layers) if bool(is_open[..., layer].all())}

    def tap(z_BTHK: Tensor, call: Call) -> Tensor:
        acts = steps == "all" or (steps == "prompt") == (call.start == 0)
        if not acts or call.layer in open_layers:
            return z_BTHK
        m = _mask_at(mask, z_BTHK, call)
        if fill is None:
            return m * z_BTHK
        return m * z_BTHK + (1 - m) * _fill_at(fill, z_BTHK, call)

    with armed(model.hf, tap):
        yield


@contextmanager
def gated(model: Model, mask: Mask, *, steps: Steps = "all") -> Iterator[None]:
    """Multiply every head's output by its gate: 0 removes the head, 1 leaves it.

    Args:
        model: what `load` returned.
        mask, steps: as `keep` and `steps` in `patched`.

    Returns:
        A block in which `model.hf` runs so.
    """
    with patched(model, mask, steps=steps):
        yield


@contextmanager
def masked(
    model: Model, heads: Circuit | Head | Iterable[Head], *, factor: float = 0.0, steps: Steps = "all"
) -> Iterator[None]:
    """Multiply the outputs of the named heads by `factor`; leave all others.

    Args:
        model: what `load` returned.
        heads: names such as "L9.H6", (layer, head) pairs, what `scores.top(k)` gives, or a circuit of heads.
        factor: 0 removes them.
        steps: as in `patched`.

    Returns:
        A block in which `model.hf` runs so.
    """
    named = mask_of(model, heads)
    with patched(model, 1 - named + factor * named, steps=steps):
        yield


@contextmanager
def knocked_out(
    model: Model, heads: Circuit | Head | Iterable[Head], *, queries: int | Sequence[int] | None = None,
    keys: int | Sequence[int] | None = None,
) -> Iterator[None]:  # fmt: skip
    """Cut query positions from key positions in some heads, before the softmax: the other keys take over their share.

    Args:
        model: what `load` returned.
        heads: as in `masked`.
        queries, keys: a position or several, from the end where negative; all of them unless given. A query that is cut
            from every key adds nothing up: its z is zero.

    Returns:
        A block in which `model.hf` runs so.
    """
    chosen_LH = mask_of(model, heads) != 0
    layers = chosen_LH.any(1).nonzero().flatten().tolist()

    def cut(visible_BTHS: Tensor, layer: int) -> Tensor:
        T, S = visible_BTHS.shape[1], visible_BTHS.shape[3]
        query_T, key_S = _among(queries, S, visible_BTHS.device)[S - T :], _among(keys, S, visible_BTHS.device)
        head_H = chosen_LH[layer].to(visible_BTHS.device)
        return visible_BTHS & ~(query_T[:, None, None] & head_H[:, None] & key_S)

    with armed(model.hf, inside=Inside("visible", cut, layers)):
        yield


def _among(positions: int | Sequence[int] | None, length: int, device: torch.device) -> Tensor:
    """(length,): which positions are meant."""
    meant = torch.zeros(length, dtype=torch.bool, device=device)
    chosen = [positions] if isinstance(positions, int) else range(length) if positions is None else positions
    for at in chosen:
        if not -length <= at < length:
            raise InputError(f"There is no position {at}: the model runs at {length}, 0 to {length - 1}.")
        meant[at] = True
    return meant


@contextmanager
def shifted(model: Model, shift: Fill) -> Iterator[None]:
    """z' = z + shift at every head; `shift[layer]` is (H, K), or (B, H, K) for a shift per batch row."""

    def tap(z_BTHK: Tensor, call: Call) -> Tensor:
        value = shift[call.layer]
        value = _rows(value[:, None], z_BTHK, "shift") if value.ndim == 3 else value
        return z_BTHK + value.to(z_BTHK)

    with armed(model.hf, tap):
        yield


def _as_mask(model: Model, mask: Mask) -> Tensor:
    if is_naming(mask):
        return mask_of(model, mask)  # pyright: ignore[reportArgumentType]
    tensor = mask if isinstance(mask, Tensor) else torch.as_tensor(np.asarray(mask))
    tensor = tensor if tensor.is_floating_point() else tensor.float()
    if tensor.ndim not in (2, 3, 4) or tensor.shape[-2:] != (model.n_layers, model.n_heads):
        raise InputError(
            f"A mask for {model.name} is (layers, heads) = ({model.n_layers}, {model.n_heads}), with a leading batch "
            f"(and position) dimension where wanted; found shape {tuple(tensor.shape)}."
        )
    return tensor


def mask_of(model: Model, heads: Circuit | Head | Iterable[Head]) -> Tensor:
    """(L, H): 1 at the named heads, 0 elsewhere."""
    mask = torch.zeros(model.n_layers, model.n_heads)
    for layer, head in which_heads(heads, model):
        mask[layer, head] = 1.0
    return mask


def _mask_at(mask: Tensor, z_BTHK: Tensor, call: Call) -> Tensor:
    """The mask of one layer, shaped to multiply z."""
    m = mask[..., call.layer, :]
    if m.ndim == 1:
        m = m[None, None]
    elif m.ndim == 2:
        m = m[:, None]
    else:
        m = _positions(m, z_BTHK, call, "mask")
    return _rows(m, z_BTHK, "mask").to(z_BTHK)[..., None]


def _fill_at(fill: Fill, z_BTHK: Tensor, call: Call) -> Tensor:
    value = fill[call.layer]
    if value.ndim == 4:
        value = _rows(_positions(value, z_BTHK, call, "fill"), z_BTHK, "fill")
    return value.to(z_BTHK)


def _positions(value: Tensor, z_BTHK: Tensor, call: Call, what: str) -> Tensor:
    T = z_BTHK.shape[1]
    if value.shape[1] == 1:
        return value
    if value.shape[1] < call.start + T:
        raise InputError(
            f"The {what} covers {value.shape[1]} positions, but the model runs at {call.start + T}: give it for all "
            'positions, or act on the prompt only (steps="prompt").'
        )
    return value[:, call.start : call.start + T]


def _rows(value: Tensor, z_BTHK: Tensor, what: str) -> Tensor:
    if value.shape[0] not in (1, z_BTHK.shape[0]):
        raise InputError(f"The {what} has {value.shape[0]} rows, but the batch has {z_BTHK.shape[0]}.")
    return value
