"""Where an intervention takes hold, besides z: one way to see and change a value at every layer.

| part | value | shape |
|---|---|---|
| z, q, k, v | a head's output, and what it reads; heads that share k and v get a copy each | (B, T, H, K) |
| pattern | a head's attention weights, by query position | (B, T, H, S) |
| resid_pre, resid_mid | the stream before a layer, and between its attention and its MLP | (B, T, 1, D) |
| attn_out, mlp_out | what attention and MLP add to the stream, behind a norm where there is one | (B, T, 1, D) |

A site is a part, or two: a "component" is a head or the MLP of a layer, a "layer" its attention and MLP together. Heads
and the stream before a layer are found on every model; the others need its row in `models/layouts.py`.

Shape letters: B prompts, T positions, S keys, H heads, X components of a layer at a site, K head width, D stream width,
W width of a value.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from headscope.errors import InputError
from headscope.models.attention import Inside, armed
from headscope.models.eager import Edit
from headscope.models.layouts import is_parallel, layout_of
from headscope.models.model import Model
from headscope.running.layer_modules import hidden_of, layers_of, replaced, with_hidden
from headscope.tasks.task import Task

SiteName = Literal["z", "q", "k", "v", "pattern", "resid_pre", "attn_out", "resid_mid", "mlp_out", "component", "layer"]
SITES: tuple[SiteName, ...] = get_args(SiteName)
# All positions at once, one or some of them at once, or one after the other.
Positions = int | Sequence[int] | Literal["each"] | None


@dataclass(frozen=True)
class Site:
    """One site of one model. `columns` says which components of a layer each of its parts is."""

    name: str
    axis: str  # what a layer has several of: "head", "component", or nothing
    width: int  # components of a layer
    columns: dict[str, slice]

    @property
    def axes(self) -> list[str]:
        return ["layer", self.axis] if self.axis else ["layer"]


def site_of(model: Model, name: str | None) -> Site:
    """A site by its name; what this model does not have is refused."""
    name, H = name or "z", model.n_heads
    if name not in SITES:
        raise InputError(f"Unknown site {name!r}. Known: {', '.join(SITES)}.")
    if name in ("z", "q", "k", "v", "pattern"):
        return Site(name, "head", H, {name: slice(0, H)})
    if name != "resid_pre":
        layout_of(model.hf)
    if name == "resid_mid" and is_parallel(model.hf):
        raise InputError(
            f"{model.name} has no resid_mid: attention and MLP of a layer read the same stream. Use resid_pre."
        )
    if name == "component":
        return Site(name, name, H + 1, {"z": slice(0, H), "mlp_out": slice(H, H + 1)})
    parts = ("attn_out", "mlp_out") if name == "layer" else (name,)
    return Site(name, "", 1, dict.fromkeys(parts, slice(0, 1)))


@contextmanager
def edited(model: Model, part: str, edit: Edit, layers: Collection[int] | None = None) -> Iterator[None]:
    """Inside the block `edit(value, layer)` gives the value that goes on, in the given layers (all unless given)."""
    layers = range(model.n_layers) if layers is None else layers
    with ExitStack() as stack:
        if part == "z":
            tap = lambda z, call: edit(z, call.layer) if call.layer in layers else z  # noqa: E731
            stack.enter_context(armed(model.hf, tap))
        elif part in ("q", "k", "v", "pattern", "visible"):
            stack.enter_context(armed(model.hf, inside=Inside(part, edit, layers)))
        else:
            for layer in layers:
                _edit_stream(stack, model, part, edit, layer)
        yield


def _edit_stream(stack: ExitStack, model: Model, part: str, edit: Edit, layer: int) -> None:
    """Replace, for the time of a block, the forward of the module that reads or writes the stream there."""

    def alone(value_BTD: Tensor) -> Tensor:
        return edit(value_BTD[:, :, None], layer)[:, :, 0]

    def replace(module: nn.Module, forward: Any) -> None:
        stack.enter_context(replaced(module, forward))

    if part == "resid_pre":
        block, _ = layers_of(model)[layer]
        plain = block.forward

        def read(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = with_hidden(args, kwargs, alone(hidden_of(args, kwargs)))
            return plain(*args, **kwargs)

        replace(block, read)
        return
    row = layout_of(model.hf)
    block = model.hf.get_submodule(f"{row.layers}.{layer}")
    name = row.after_mlp or row.mlp if part == "mlp_out" else row.after_attention or row.attention
    writer = block.get_submodule(name)
    before: list[Tensor] = []
    if part == "resid_mid":
        # The stream that attention's output is added to is what the first module of the block reads.
        reader = block.get_submodule(row.before_attention or row.attention)
        reads = reader.forward

        def note(*args: Any, **kwargs: Any) -> Any:
            before[:] = [hidden_of(args, kwargs)]
            return reads(*args, **kwargs)

        replace(reader, note)
    writes = writer.forward

    def write(*args: Any, **kwargs: Any) -> Any:
        out = writes(*args, **kwargs)
        value_BTD = out[0] if isinstance(out, tuple) else out
        if part == "resid_mid":
            stream_BTD = before[0][:, -value_BTD.shape[1] :]
            value_BTD = alone(stream_BTD + value_BTD) - stream_BTD
        else:
            value_BTD = alone(value_BTD)
        return (value_BTD, *out[1:]) if isinstance(out, tuple) else value_BTD

    replace(writer, write)


@contextmanager
def recorded(model: Model, parts: Collection[str]) -> Iterator[dict[str, list[Tensor]]]:
    """Keep the values of some parts at every layer, of the last run inside the block."""
    kept: dict[str, list[Tensor]] = {part: [torch.empty(0)] * model.n_layers for part in parts}
    with ExitStack() as stack:
        for part in parts:

            def keep(value: Tensor, layer: int, part: str = part) -> Tensor:
                kept[part][layer] = value.detach()
                return value

            stack.enter_context(edited(model, part, keep))
        yield kept


def about(model: Model, task: Task, site: Site, positions: Positions) -> dict[str, Any]:
    """What scores at a site and some positions say of themselves: axes, tokens and settings."""
    told: dict[str, Any] = {} if site.name == "z" else {"site": site.name}
    if positions == "each":
        tokens = [str(model.tokenizer.decode([token])) for token in task.clean_rows[0]]
        return {**told, "positions": "each", "axes": [*site.axes, "position"], "tokens": tokens}
    return {**told, **({} if positions is None else {"positions": positions_of(task, positions)}), "axes": site.axes}


def positions_of(task: Task, positions: Positions) -> list[int] | None:
    """Positions to act on, counted from the end where negative; None for all at once, or each."""
    lengths = sorted({len(row) for row in task.clean_rows})
    if positions is None or positions == "each":
        if positions == "each" and len(lengths) > 1:
            raise InputError(
                f'positions="each" needs prompts of one length; those of {task.name} have {lengths[0]} to '
                f"{lengths[-1]} tokens.\nTake the prompts of one length (task.take), or a position from the end, as -1."
            )
        return None
    chosen: list[Any] = list(positions) if isinstance(positions, Iterable) else [positions]
    for at in chosen:
        if isinstance(at, bool) or not isinstance(at, int):
            raise InputError(f'positions is None, "each", a number or several, found {positions!r}.')
        if not -lengths[0] <= at < lengths[0]:
            raise InputError(
                f"There is no position {at}: the shortest prompt of {task.name} has {lengths[0]} tokens, 0 to "
                f"{lengths[0] - 1}, or -1 to {-lengths[0]} from the end."
            )
    return chosen
