"""Attribution of every edge, in closed form.

    score(u -> v) = sum over positions of (u_clean - fill_u) . d m / d input_v

with what u has in the corrupt run as fill_u, or its mean, or zero; positive where the edge helps, as everywhere here.
(The papers write the difference the other way round.) No split forward is needed: one backward pass gives the gradients
at q, k and v of every head, at the input of every MLP and at the final norm; a reader's input gradient is those, back
through its projection and its norm's Jacobian; and all scores of a layer's readers are one matrix product with what the
writers wrote.

Shape letters: B prompts, T positions, H heads, K head width, D stream width, W writers, V readers, E edges.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from headscope.records import Graph
from headscope.running.edge_view import PARTS, Block, EdgeView, Streams, project, watched, writer_values
from headscope.running.gradients import embedded, embeddings
from headscope.running.layer_modules import replaced
from headscope.running.targets import Targets, metrics_of


@torch.no_grad()
def edge_attribution(
    view: EdgeView, graph: Graph, clean_ids: list[list[int]], corrupt_ids: list[list[int]], targets: Targets, *,
    steps: int = 0, fill_WTD: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Scores of all edges for each prompt, (B, E).

    steps: 0 takes the gradient at the clean run; otherwise it is averaged over that many points between the corrupt and
    the clean embeddings, the middles of equal parts.
    fill_WTD: as for an edge session; the values of the corrupt run unless given.
    """
    corrupt = writer_values(view, Streams.of(view, corrupt_ids, targets)) if fill_WTD is None else fill_WTD
    if steps == 0:
        run = Gradients(view, clean_ids, targets)
        difference_BWTD = writer_values(view, run.streams).sub_(corrupt)
        return _scores(view, graph, run, difference_BWTD)
    difference_BWTD = writer_values(view, Streams.of(view, clean_ids, targets)).sub_(corrupt)
    near, far = embeddings(view.model, corrupt_ids), embeddings(view.model, clean_ids)
    total_BE = torch.zeros(len(clean_ids), len(graph))
    for step in range(steps):
        point_BTD = near + (step + 0.5) / steps * (far - near)
        run = Gradients(view, clean_ids, targets, embedding_BTD=point_BTD)
        total_BE += _scores(view, graph, run, difference_BWTD)
    return total_BE / steps


class Gradients:
    """One run with its backward pass: the metric's gradient at q, k, v, MLP inputs and the final norm's input."""

    def __init__(self, view: EdgeView, ids: list[list[int]], targets: Targets, *, embedding_BTD: Tensor | None = None):
        self._nudges: list[Tensor] = []
        n = len(view.blocks)
        self._qkv: list[dict[str, int]] = [{} for _ in range(n)]
        self._mlp: list[int] = [0] * n
        self._final = 0
        with ExitStack() as stack:
            stack.enter_context(torch.enable_grad())
            self.streams = stack.enter_context(watched(view))
            stack.enter_context(embedded(view.model, embedding_BTD))
            for layer, block in enumerate(view.blocks):
                for module, forward in self._nudged(view, layer, block):
                    stack.enter_context(replaced(module, forward))
            stack.enter_context(replaced(view.final_norm, self._final_norm(view.final_norm.forward)))
            self._gradients = torch.autograd.grad(metrics_of(view.model, ids, targets).sum(), self._nudges)

    def qkv(self, layer: int) -> dict[str, Tensor]:
        """Gradients at q, k and v of every head, each (B, T, H, K)."""
        return {part: self._gradients[at] for part, at in self._qkv[layer].items()}

    def mlp(self, layer: int) -> Tensor:
        return self._gradients[self._mlp[layer]]

    def final(self) -> Tensor:
        return self._gradients[self._final]

    def _nudge(self, like: Tensor) -> Tensor:
        # Adding nothing, but something that can be differentiated by.
        self._nudges.append(torch.zeros_like(like, requires_grad=True))
        return self._nudges[-1]

    def _final_norm(self, plain: Any) -> Any:
        def forward(value: Tensor) -> Tensor:
            nudge = self._nudge(value)
            self._final = len(self._nudges) - 1
            return plain(value + nudge)

        return forward

    def _nudged(self, view: EdgeView, layer: int, block: Block) -> list[tuple[nn.Module, Any]]:
        """(module, its forward with something added that the metric can be differentiated by)."""
        row, H = view.layout, view.model.n_heads
        mlp_forward = block.mlp.forward

        def mlp(value: Tensor, *args: Any, **kwargs: Any) -> Any:
            nudge = self._nudge(value)
            self._mlp[layer] = len(self._nudges) - 1
            return mlp_forward(value + nudge, *args, **kwargs)

        def per_head(part: str, plain: Any) -> Any:
            def forward(value: Tensor) -> Tensor:
                made_BTGK = plain(value).unflatten(-1, (-1, block.weight_HKD[part].shape[1]))
                made_BTHK = made_BTGK.repeat_interleave(H // made_BTGK.shape[2], dim=2)
                nudge = self._nudge(made_BTHK)
                self._qkv[layer][part] = len(self._nudges) - 1
                return (made_BTHK + nudge).flatten(2)

            return forward

        def fused(plain: Any) -> Any:
            def forward(value: Tensor) -> Tensor:
                whole = plain(value)
                shape = (3, H, -1) if row.fused == "joined" else (H, 3, -1)
                apart = whole.unflatten(-1, shape).unbind(2 if row.fused == "joined" else 3)
                moved = []
                for part, made_BTHK in zip(PARTS, apart, strict=True):
                    moved.append(made_BTHK + self._nudge(made_BTHK))
                    self._qkv[layer][part] = len(self._nudges) - 1
                return torch.stack(moved, dim=2 if row.fused == "joined" else 3).flatten(2)

            return forward

        modules = [block.attention.get_submodule(name) for name in row.projections]
        made: list[tuple[nn.Module, Any]] = [(block.mlp, mlp)]
        if row.fused:
            return [*made, (modules[0], fused(modules[0].forward))]
        for part, module in zip(PARTS, modules, strict=True):
            # Behind a norm over all heads together, q and k are what the norm gives.
            at: Any = block.joint[part][1] if part in block.joint else module
            made.append((at, per_head(part, at.forward)))
        return made


def _scores(view: EdgeView, graph: Graph, run: Gradients, difference_BWTD: Tensor) -> Tensor:
    parts, H = 1 if graph.split == "none" else 3, view.model.n_heads
    B = len(difference_BWTD)
    flat_BWX = difference_BWTD.flatten(2)
    out_BE = torch.empty(B, len(graph))
    starts = [0, *graph.heard.cumsum().tolist()]
    reader = 0

    def put(gradient_BVTD: Tensor) -> None:
        nonlocal reader
        V, heard = gradient_BVTD.shape[1], int(graph.heard[reader])
        scores_BVW = torch.bmm(gradient_BVTD.flatten(2), flat_BWX[:, :heard].transpose(1, 2))
        out_BE[:, starts[reader] : starts[reader + V]] = scores_BVW.flatten(1).cpu()
        reader += V

    for layer, block in enumerate(view.blocks):
        put(_head_input_gradients(block, run.streams.attention_in[layer], run.qkv(layer), parts, H))
        put(_back(block.before_mlp, run.streams.mlp_in[layer], run.mlp(layer))[:, None])
    put(run.final()[:, None])
    return out_BE


def _head_input_gradients(block: Block, stream_BTD: Tensor, at: dict[str, Tensor], parts: int, H: int) -> Tensor:
    """Gradients at the inputs of a layer's heads, (B, H * parts, T, D)."""
    with torch.enable_grad():
        own_BHTD = stream_BTD[:, None].expand(-1, H, -1, -1).detach().requires_grad_()
        normed_BHTD = block.before_attention(own_BHTD)
        made = [project(block, part, normed_BHTD) for part in PARTS]
        given = [at[part] for part in PARTS]
        if parts == 1:
            return torch.autograd.grad(made, own_BHTD, given)[0]
        each = [torch.autograd.grad(m, own_BHTD, g, retain_graph=True)[0] for m, g in zip(made, given, strict=True)]
    return torch.stack(each, dim=2).flatten(1, 2)


def _back(norm: nn.Module, stream_BTD: Tensor, gradient_BTD: Tensor) -> Tensor:
    """A gradient behind a norm, taken back through it."""
    with torch.enable_grad():
        own = stream_BTD.detach().requires_grad_()
        return torch.autograd.grad(norm(own), own, gradient_BTD)[0]
