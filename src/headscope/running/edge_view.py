"""A model seen as readers and writers: what edges need of each layer, and what a run reads and writes.

Writers are the embedding, every head and every MLP; readers every head (or its q, k and v apart), every MLP and the
logits. Post-norm models scale what a block writes by a norm over all its heads together; a head's value is its share of
that.

Shape letters: B prompts, R rows (prompts under circuits), T positions, H heads, G heads before ungrouping,
K head width, D stream width, W writers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from headscope.models.attention import Call, armed
from headscope.models.layouts import is_parallel, layout_of
from headscope.models.model import Model
from headscope.models.weights import is_plain
from headscope.records import Graph
from headscope.running.layer_modules import first_output
from headscope.running.targets import Targets, metrics_of

PARTS = ("q", "k", "v")


@dataclass(frozen=True)
class Block:
    """The modules of one layer that edges need, and its weights per head."""

    layer: nn.Module
    attention: Any
    mlp: nn.Module
    before_attention: nn.Module
    before_mlp: nn.Module
    after_attention: nn.Module | None
    after_mlp: nn.Module | None
    weight_HKD: dict[str, Tensor]  # by "q", "k", "v": from a reader's normed input to its head
    bias_HK: dict[str, Tensor | None]
    output_HKD: Tensor
    output_bias: Tensor | None  # of all heads together, so no head's own
    joint: dict[str, Any]  # by "q", "k": (projection, norm over all heads, index of the head that each head reads)


class EdgeView:
    """A model seen as readers and writers."""

    def __init__(self, model: Model):
        self.model, self.layout = model, layout_of(model.hf)
        hf = model.hf
        self.layers = [hf.get_submodule(f"{self.layout.layers}.{i}") for i in range(model.n_layers)]
        self.blocks = [self._block(layer) for layer in self.layers]
        self.final_norm = hf.get_submodule(self.layout.final_norm)
        self.parallel = is_parallel(hf)

    def graph(self, split: str = "none") -> Graph:
        return Graph(self.model.n_layers, self.model.n_heads, split, self.parallel)

    def _block(self, layer: nn.Module) -> Block:
        row, H = self.layout, self.model.n_heads
        attention: Any = layer.get_submodule(row.attention)

        def norm(name: str) -> nn.Module:
            return layer.get_submodule(name) if name else nn.Identity()

        weights, biases, joint = {}, {}, {}
        projections = [attention.get_submodule(name) for name in row.projections]
        unit = {"dtype": self.model.hf.dtype, "device": self.model.device}
        stream = torch.eye(self.model.hf.config.get_text_config().hidden_size, **unit)
        if row.fused:
            weight, bias = linear_of(projections[0], stream)
            shape = (3, H) if row.fused == "joined" else (H, 3)
            weight = weight.unflatten(0, (*shape, -1))
            bias = None if bias is None else bias.unflatten(0, (*shape, -1))
            for i, part in enumerate(PARTS):
                weights[part] = weight.select(0 if row.fused == "joined" else 1, i)
                biases[part] = None if bias is None else bias.select(0 if row.fused == "joined" else 1, i)
        else:
            width = attention.head_dim
            for part, projection in zip(PARTS, projections, strict=True):
                weight, bias = linear_of(projection, stream)
                heads = weight.shape[0] // width
                # Heads of a group share k and v: every head gets its own copy, which changes nothing ("ungroup").
                share = torch.arange(H, device=weight.device) // (H // heads)
                weights[part] = weight.unflatten(0, (heads, width))[share]
                biases[part] = None if bias is None else bias.unflatten(0, (heads, width))[share]
                for name in row.joint_norms:
                    if name.startswith(part):
                        joint[part] = (projection, attention.get_submodule(name), share)
        z = torch.eye(H * self.model.reach.head_widths[self.layers.index(layer)], **unit)
        weight, output_bias = linear_of(attention.get_submodule(row.output), z)
        output = weight.T.unflatten(0, (H, -1))
        return Block(
            layer, attention, layer.get_submodule(row.mlp), norm(row.before_attention), norm(row.before_mlp),
            norm(row.after_attention) if row.after_attention else None,
            norm(row.after_mlp) if row.after_mlp else None, weights, biases, output, output_bias, joint,
        )  # fmt: skip


@torch.no_grad()
def linear_of(module: Any, unit: Tensor) -> tuple[Tensor, Tensor | None]:
    """Weight (outputs, inputs) and bias of a projection. GPT-2's Conv1D keeps its weight the other way round; of one
    that is not plain (with a LoRA beside it, quantised, its weights on disk) they are what it does to unit vectors."""
    if type(module) is nn.Linear and is_plain(module.weight):
        return module.weight, module.bias
    if type(module).__name__ == "Conv1D" and is_plain(module.weight):
        return module.weight.T, module.bias
    bias = module(torch.zeros_like(unit[:1]))[0]
    return (module(unit) - bias).T, bias


class Streams:
    """What one run reads and writes: inputs of readers, outputs of MLPs, z of heads. Filled inside `watched`."""

    def __init__(self, n_layers: int):
        self.attention_in: list[Tensor] = [torch.empty(0)] * n_layers
        self.mlp_in: list[Tensor] = [torch.empty(0)] * n_layers
        self.mlp_out: list[Tensor] = [torch.empty(0)] * n_layers
        self.z: list[Tensor] = [torch.empty(0)] * n_layers
        self.final_in = torch.empty(0)
        self.layer_outputs = 0
        self.metric_B = torch.empty(0)

    @classmethod
    @torch.no_grad()
    def of(cls, view: EdgeView, ids: list[list[int]], targets: Targets) -> Streams:
        """Those of one plain run, and its metric."""
        with watched(view) as streams:
            streams.metric_B = metrics_of(view.model, ids, targets)
        return streams

    def inputs(self) -> list[Tensor]:
        """The stream as heads and MLP of each layer read it, and last the logits."""
        return [read for layer in zip(self.attention_in, self.mlp_in, strict=True) for read in layer] + [self.final_in]


@contextmanager
def watched(view: EdgeView) -> Iterator[Streams]:
    """Keep what runs inside the block read and write."""
    streams, hooks = Streams(len(view.blocks)), []

    def watch(module: nn.Module, note: Callable[[Tensor, Any], None]) -> None:
        def hook(_module: nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
            note((args[0] if args else kwargs["hidden_states"]).detach(), output)

        hooks.append(module.register_forward_hook(hook, with_kwargs=True))

    def note_layer(layer: int, value: Tensor, output: Any) -> None:
        streams.attention_in[layer] = value
        streams.layer_outputs = len(output) if isinstance(output, tuple) else 0

    for layer, block in enumerate(view.blocks):
        watch(block.layer, partial(note_layer, layer))
        reads = block.mlp if isinstance(block.before_mlp, nn.Identity) else block.before_mlp
        watch(reads, lambda value, _, at=layer: streams.mlp_in.__setitem__(at, value))
        wrote = block.mlp if block.after_mlp is None else block.after_mlp
        watch(wrote, lambda _, output, at=layer: streams.mlp_out.__setitem__(at, first_output(output).detach()))
    watch(view.final_norm, lambda value, _: setattr(streams, "final_in", value))

    def keep_z(z_BTHK: Tensor, call: Call) -> Tensor:
        streams.z[call.layer] = z_BTHK.detach()
        return z_BTHK

    try:
        with armed(view.model.hf, keep_z):
            yield streams
    finally:
        for hook in hooks:
            hook.remove()


def writer_values(view: EdgeView, streams: Streams) -> Tensor:
    """What every writer wrote in a run, (B, W, T, D), without biases."""
    first = streams.attention_in[0]
    n_heads = view.model.n_heads
    values = first.new_empty(len(first), 1 + len(view.blocks) * (n_heads + 1), *first.shape[1:])
    values[:, 0] = first
    for layer, block in enumerate(view.blocks):
        at = 1 + layer * (n_heads + 1)
        values[:, at : at + n_heads] = head_values(block, streams.z[layer])
        values[:, at + n_heads] = streams.mlp_out[layer]
    return values


def filled_streams(view: EdgeView, value_BWTD: Tensor) -> Streams:
    """What readers read where every writer writes the given value: their sum, and the biases that no writer writes."""
    written_BWTD, n_heads = value_BWTD.clone(), view.model.n_heads
    firsts = [1 + layer * (n_heads + 1) for layer in range(len(view.blocks))]
    for first, block in zip(firsts, view.blocks, strict=True):
        if block.output_bias is not None:
            written_BWTD[:, first] += block.output_bias.detach()
    written_BWTD, streams = written_BWTD.cumsum(1), Streams(len(view.blocks))
    for layer, first in enumerate(firsts):
        streams.attention_in[layer] = written_BWTD[:, first - 1]
        streams.mlp_in[layer] = written_BWTD[:, first - 1 if view.parallel else first + n_heads - 1]
    streams.final_in = written_BWTD[:, -1]
    return streams


def project(block: Block, part: str, normed_RHTD: Tensor) -> Tensor:
    """q, k or v of every head from its own normed input, (R, T, H, K)."""
    if part in block.joint:
        projection, norm, share = block.joint[part]
        whole_RHTGK = norm(projection(normed_RHTD)).unflatten(-1, (-1, block.weight_HKD[part].shape[1]))
        index = share.view(1, -1, 1, 1, 1).expand(len(whole_RHTGK), -1, whole_RHTGK.shape[2], 1, whole_RHTGK.shape[4])
        return whole_RHTGK.gather(3, index)[:, :, :, 0].transpose(1, 2)
    made_RTHK = torch.einsum("rhtd,hkd->rthk", normed_RHTD, block.weight_HKD[part])
    bias_HK = block.bias_HK[part]
    return made_RTHK if bias_HK is None else made_RTHK + bias_HK


def head_values(block: Block, z_RTHK: Tensor) -> Tensor:
    """What each head writes into the stream, (R, H, T, D), without biases, which no run changes."""
    wrote_RHTD = torch.einsum("rthk,hkd->rhtd", z_RTHK, block.output_HKD)
    if block.after_attention is None:
        return wrote_RHTD
    # The norm divides by the size of all heads' sum together; with that size given, every head has its share.
    total_RTD = wrote_RHTD.sum(1)
    norm: Any = block.after_attention
    eps = getattr(norm, "variance_epsilon", None) or norm.eps
    gain_D = norm(torch.ones_like(total_RTD[:1, :1])) * (1 + eps) ** 0.5
    size_R1T1 = (total_RTD.pow(2).mean(-1, keepdim=True) + eps).sqrt()[:, None]
    return wrote_RHTD / size_R1T1 * gain_D
