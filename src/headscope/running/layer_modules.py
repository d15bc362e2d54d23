"""Where a model keeps what the engine replaces, found by watching one run, and the replacing itself.

For the time of a pass the `forward` of some modules is another function; other threads see the plain one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from headscope.models.model import Model
from headscope.running.interventions import record

# The blocks that this thread is inside of.
_BLOCKS: ContextVar[frozenset[object]] = ContextVar("headscope_blocks", default=frozenset())


@dataclass(frozen=True)
class LayerModules:
    """Where one layer keeps what the engine replaces. Without `projection` or `norm` a step is left out."""

    layer: nn.Module
    attention: nn.Module
    projection: nn.Module | None  # its input is z, its output that of the attention module
    norm: Callable[[Tensor], Tensor] | None  # from the layer's input to the attention module's
    layer_outputs: int  # 0: a bare tensor, otherwise the length of the tuple
    attention_outputs: int


@contextmanager
def replaced(module: nn.Module, forward: Callable) -> Iterator[None]:
    """Replace a module's forward inside the block, for this thread's context alone."""
    mine, plain = object(), module.forward

    def switch(*args: Any, **kwargs: Any) -> Any:
        return forward(*args, **kwargs) if mine in _BLOCKS.get() else plain(*args, **kwargs)

    had = module.__dict__.get("forward")
    module.forward = switch  # pyright: ignore[reportAttributeAccessIssue]
    token = _BLOCKS.set(_BLOCKS.get() | {mine})
    try:
        yield
    finally:
        _BLOCKS.reset(token)
        if had is None:
            del module.forward
        else:
            module.forward = had  # pyright: ignore[reportAttributeAccessIssue]


def narrowed(head: nn.Linear, wanted: Tensor) -> AbstractContextManager[None]:
    """A block in which an unembedding gives the logits of the wanted tokens only."""
    weight, bias = head.weight[wanted], None if head.bias is None else head.bias[wanted]
    return replaced(head, lambda hidden: nn.functional.linear(hidden, weight, bias))


def layers_of(model: Model) -> list[tuple[nn.Module, nn.Module]]:
    """Every layer, the member of the model's list of layers, and the attention module inside it."""
    if "layers" not in model.kept:
        sites = {
            module.headscope_site.layer: (name, module)  # pyright: ignore[reportAttributeAccessIssue]
            for name, module in model.hf.named_modules()
            if hasattr(module, "headscope_site")
        }
        in_order = [sites[index] for index in range(model.n_layers)]
        model.kept["layers"] = [(_layer_above(model.hf, name, model.n_layers), module) for name, module in in_order]
    return cast(list[tuple[nn.Module, nn.Module]], model.kept["layers"])


def find_layer_modules(model: Model) -> list[LayerModules]:
    """Watch one short run: which module is each layer's attention, what feeds it, and what projects z."""
    hf = model.hf
    seen: dict[nn.Module, tuple[Tensor, Any]] = {}
    layers, attentions = map(list, zip(*layers_of(model), strict=True))
    around = [*layers, *attentions]
    hooks = [
        module.register_forward_hook(
            lambda m, args, kwargs, out: seen.__setitem__(m, (hidden_of(args, kwargs), out)), with_kwargs=True
        )
        for module in {*around, *(child for module in around for child in module.children())}
    ]
    try:
        with torch.no_grad(), record(model) as z:
            hf(input_ids=probe_ids(model), use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()

    def between(module: nn.Module, before: Any, after: Any) -> bool:
        return module in seen and _same(seen[module][0], before) and _same(seen[module][1], after)

    parts = []
    for index, (layer, attention) in enumerate(zip(layers, attentions, strict=True)):
        (layer_in, layer_out), (attention_in, attention_out) = seen[layer], seen[attention]
        z_BTD = z[index].flatten(2)
        projection = next((m for m in attention.children() if between(m, z_BTD, first_output(attention_out))), None)
        norm = next((m for m in layer.children() if between(m, layer_in, attention_in)), None)
        norm = nn.Identity() if _same(layer_in, attention_in) else norm
        lengths = [len(out) if isinstance(out, tuple) else 0 for out in (layer_out, attention_out)]
        parts.append(LayerModules(layer, attention, projection, norm, *lengths))
    return parts


def _layer_above(hf: nn.Module, name: str, n_layers: int) -> nn.Module:
    steps = name.split(".")
    for end, step in enumerate(steps):
        above = hf.get_submodule(".".join(steps[:end])) if end else hf
        if step.isdigit() and isinstance(above, nn.ModuleList) and len(above) == n_layers:
            return above[int(step)]
    raise ValueError(f"{name} is not in a list of {n_layers} layers")


def probe_ids(model: Model) -> Tensor:
    config = model.hf.config.get_text_config()
    longest = getattr(config, "max_position_embeddings", None) or 8
    return torch.tensor([[5, 3, 8, 6, 4, 9, 7, 1][:longest]], device=model.device) % config.vocab_size


def hidden_of(args: tuple, kwargs: dict) -> Any:
    return args[0] if args else kwargs.get("hidden_states")


def with_hidden(args: tuple, kwargs: dict, hidden: Tensor) -> tuple[tuple, dict]:
    return ((hidden, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": hidden})


def first_output(output: Any) -> Tensor:
    return output[0] if isinstance(output, tuple) else output


def wrapped(value: Tensor, outputs: int) -> Any:
    return (value, *[None] * (outputs - 1)) if outputs else value


def _same(a: Any, b: Any) -> bool:
    return isinstance(a, Tensor) and isinstance(b, Tensor) and a.shape == b.shape and torch.equal(a, b)
