"""Running edge circuits, exactly.

Every reader (a head, or its q, k and v apart; an MLP; the logits) gets an input of its own: the stream in which each
writer outside the circuit has the value of its fill, which is that of the corrupt run unless another is given,

    input_v = base stream at v + sum over writers u of keep(u, v) * (u - fill_u)

then its own norm and its own q, k and v. Many circuits go through in one batch. The attention itself (rotary positions,
norms of q and k, windows, soft-capping) is the model's own: its projections are replaced, for the time of a pass, by
what the readers computed. The base stream is what v would read if every writer wrote its fill: the corrupt run's own,
or the sum of the fills and of what no writer writes (biases of output projections).

Shape letters: C circuits, B prompts, R = C * B rows, T positions, H heads, K head width, D stream width, W writers,
V readers of a layer, E edges.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from headscope.errors import InputError
from headscope.models.attention import armed
from headscope.models.model import Model
from headscope.models.sparse_gate import Gates, deciding
from headscope.models.weights import is_coarse
from headscope.records import Graph, head_name
from headscope.running.batching import in_parts
from headscope.running.edge_view import (
    PARTS,
    Block,
    EdgeView,
    Streams,
    filled_streams,
    head_values,
    project,
    writer_values,
)
from headscope.running.interventions import patched
from headscope.running.layer_modules import first_output, probe_ids, replaced
from headscope.running.targets import Targets, metrics_of, narrow_head


def view_of(model: Model) -> EdgeView:
    """The edge view of a model, made and checked when first asked for."""
    if "edges" not in model.kept:
        try:
            view = EdgeView(model)
        except AttributeError as error:
            raise _wrong_row(model, f"a module that it names is not there ({error})") from error
        # With all gates of a sparse model open: rounding moves one over its threshold now and then, which says nothing
        # about where the block keeps its parts.
        with deciding(Gates("open")):
            _check(view)
        model.kept["edges"] = view
    return model.kept["edges"]


@torch.no_grad()
def _check(view: EdgeView) -> None:
    """On a short pair of prompts: what components write must sum to what readers read; all edges kept must give the
    plain metric, none the corrupt one, and cutting the edges into every other head what patching those heads gives."""
    model, graph = view.model, view.graph()
    ids = probe_ids(model).tolist()
    other = [ids[0][:1] + ids[0][:-1]]
    targets = Targets.first_two(1, model.device)
    # Rounding grows with depth (5e-4 in a metric of SmolLM2's 30 layers); a wrong row is off by far more.
    tolerance, of_sums = (0.1, 0.1) if is_coarse(model.hf) else (2e-3, 1e-3)
    session = EdgeSession(view, ids, other, targets, graph)
    for reader, off in _off_the_sum(session).items():
        if not off <= of_sums:
            raise _wrong_row(
                model,
                f"what {reader} reads is not the sum of what was written before it (off by {off:.1e} of its size)",
            )
    open_LH = torch.arange(model.n_layers)[:, None].add(torch.arange(model.n_heads)) % 2 == 1
    closed = {head_name(int(layer), int(head)) for layer, head in (~open_LH).nonzero()}
    heard = torch.tensor([graph.readers[reader] not in closed for reader in graph.ends[1]])
    metrics = session.metrics(torch.stack([torch.ones(len(graph)), torch.zeros(len(graph)), heard.float()]))
    plain = [metrics_of(model, one, targets) for one in (ids, other)]
    with patched(model, open_LH.float(), fill=session.corrupt.z):
        expected = torch.stack([*plain, metrics_of(model, ids, targets)])
    if not torch.allclose(metrics, expected, atol=tolerance, rtol=tolerance):
        raise _wrong_row(model, f"run by edges its metric is off by {(metrics - expected).abs().max():.1e}")


def _off_the_sum(session: EdgeSession) -> dict[str, float]:
    """By reader, how far its input is from the sum of what its writers wrote, as a share of its size. Compared is the
    difference between the clean and the corrupt run, from which biases are gone; of the heads of a layer, which read
    the same here, the first stands for all."""
    graph, clean, corrupt = session.graph, session.clean, session.corrupt
    written_BWTD = (writer_values(session.view, clean).float() - session.fill_BWTD.float()).cumsum(1)
    readers = [place for place, name in enumerate(graph.readers) if ".H" not in name or name.endswith(".H0")]
    off = {}
    for reader, of_clean, of_corrupt in zip(readers, clean.inputs(), corrupt.inputs(), strict=True):
        read_BTD = of_clean.float() - of_corrupt.float()
        gap = (written_BWTD[:, graph.heard[reader] - 1] - read_BTD).abs().max()
        off[graph.readers[reader]] = float(gap / read_BTD.abs().max()) if gap else 0.0
    return off


def _wrong_row(model: Model, why: str) -> InputError:
    return InputError(
        f"The layout row of {model.hf.config.model_type} does not describe {model.name}: {why}. Correct the row in "
        "models/layouts.py."
    )


class EdgeSession:
    """A batch of pairs of rows of one length, ready to be run under many edge circuits."""

    def __init__(
        self,
        view: EdgeView,
        clean_ids: list[list[int]],
        corrupt_ids: list[list[int]],
        targets: Targets,
        graph: Graph,
        *,
        fill_WTD: Tensor | None = None,
    ):
        """fill_WTD: what writers outside a circuit have, with one position where it is the same at all; the values of
        the corrupt run unless given."""
        self.view, self.targets, self.graph = view, targets, graph
        self.B, self.T = len(clean_ids), len(clean_ids[0])
        self.corrupt = Streams.of(view, corrupt_ids, targets)
        self.clean = Streams.of(view, clean_ids, targets)
        self.arguments = _attention_arguments(view, clean_ids[:1])
        if fill_WTD is None:
            self.fill_BWTD, self.base = writer_values(view, self.corrupt), self.corrupt
        else:
            self.fill_BWTD = fill_WTD.expand(self.B, -1, self.T, -1)
            self.base = filled_streams(view, self.fill_BWTD)

    def metrics(self, keep_CE: Tensor) -> Tensor:
        """Metric of every prompt under every circuit, (C, B). keep_CE: which edges of the graph each circuit keeps."""
        metrics: list[Tensor] = []

        def run(part: Sequence[int]) -> None:
            metrics.append(self._pass(keep_CE[part[0] : part[-1] + 1]))

        in_parts(self.view.model, "circuits", range(len(keep_CE)), run, each=self.T * self.B)
        return torch.cat(metrics)

    def _pass(self, keep_CE: Tensor) -> Tensor:
        view, graph = self.view, self.graph
        C, H = len(keep_CE), view.model.n_heads
        keep_CVW = _as_matrix(graph, keep_CE)
        splits = 1 if graph.split == "none" else 3
        first = self.clean.attention_in[0]
        change_RWTD = first.new_zeros(C * self.B, len(graph.writers), *first.shape[1:])
        change_RWTD[:, 0] = self._rows(first - self.fill_BWTD[:, 0], C)
        reader = 0
        for layer, block in enumerate(view.blocks):
            writer = 1 + layer * (H + 1)
            input_RVTD = self._read(
                self.base.attention_in[layer], change_RWTD, keep_CVW[:, reader : reader + H * splits]
            )
            z_RTHK = self._attend(layer, block, input_RVTD.unflatten(1, (H, splits)))
            live_RHTD = head_values(block, z_RTHK)
            change_RWTD = _writable(change_RWTD)
            change_RWTD[:, writer : writer + H] = live_RHTD - self._rows(self.fill_BWTD[:, writer : writer + H], C)
            reader += H * splits
            stream_RTD = self._read(self.base.mlp_in[layer], change_RWTD, keep_CVW[:, reader : reader + 1])[:, 0]
            wrote_RTD = first_output(block.mlp(block.before_mlp(stream_RTD)))
            wrote_RTD = wrote_RTD if block.after_mlp is None else block.after_mlp(wrote_RTD)
            change_RWTD = _writable(change_RWTD)
            change_RWTD[:, writer + H] = wrote_RTD - self._rows(self.fill_BWTD[:, writer + H], C)
            reader += 1
        stream_RTD = self._read(self.base.final_in, change_RWTD, keep_CVW[:, reader:])[:, 0]
        return self._metric(stream_RTD[:, -self.targets.positions :])

    def _rows(self, value: Tensor, circuits: int) -> Tensor:
        return value.expand(circuits, *value.shape).flatten(0, 1)

    def _read(self, base_BTD: Tensor, change_RWTD: Tensor, keep_CVW: Tensor) -> Tensor:
        """Inputs of some readers, (R, V, T, D)."""
        C = len(keep_CVW)
        keep_RVW = keep_CVW.to(change_RWTD).repeat_interleave(self.B, dim=0)
        changed_RVTD = torch.bmm(keep_RVW, change_RWTD.flatten(2)).unflatten(2, change_RWTD.shape[2:])
        return changed_RVTD + self._rows(base_BTD, C)[:, None]

    def _attend(self, layer: int, block: Block, input_RHSTD: Tensor) -> Tensor:
        """The model's own attention on q, k and v that every head computed from its own input; z (R, T, H, K)."""
        normed_RHSTD = block.before_attention(input_RHSTD)
        parts = normed_RHSTD.shape[2]
        made = {part: project(block, part, normed_RHSTD[:, :, i % parts]) for i, part in enumerate(PARTS)}
        seen: list[Tensor] = []

        def keep_z(z_RTHK: Tensor, call: Any) -> Tensor:
            if call.layer == layer:
                seen.append(z_RTHK)
            return z_RTHK

        with ExitStack() as stack:
            for module, value in self._given(block, made):
                stack.enter_context(replaced(module, lambda *_, value=value: value))
            stack.enter_context(armed(self.view.model.hf, keep_z))
            block.attention(normed_RHSTD[:, 0, 0], **self.arguments[layer])
        return seen[0]

    def _given(self, block: Block, made: dict[str, Tensor]) -> list[tuple[nn.Module, Tensor]]:
        """(module, what it gives instead), for the projections and joint norms of an attention module."""
        row = self.view.layout
        modules = [block.attention.get_submodule(name) for name in row.projections]
        if row.fused:
            whole = torch.stack([made[part] for part in PARTS], dim=2 if row.fused == "joined" else 3)
            return [(modules[0], whole.flatten(2))]
        given = [(module, made[part].flatten(2)) for part, module in zip(PARTS, modules, strict=True)]
        return given + [(norm, made[part].flatten(2)) for part, (_, norm, _) in block.joint.items()]

    def _metric(self, stream_RPD: Tensor) -> Tensor:
        """From the stream at the target positions to the metric: final norm, unembedding and what follows it."""
        hf = self.view.model.hf
        narrow, targets = narrow_head(self.view.model, self.targets)
        R, P = stream_RPD.shape[:2]
        with ExitStack() as stack:
            stack.enter_context(narrow)
            for layer in self.view.layers:
                outputs = self.clean.layer_outputs
                wrapped = (stream_RPD, *[None] * (outputs - 1)) if outputs else stream_RPD
                stack.enter_context(replaced(layer, lambda *_, wrapped=wrapped, **__: wrapped))
            ids = torch.ones(R, P, dtype=torch.long, device=stream_RPD.device)
            logits_RPV = hf(input_ids=ids, use_cache=False, logits_to_keep=P).logits
        return torch.stack([targets(logits_BPV) for logits_BPV in logits_RPV.split(self.B)])


def _writable(value: Tensor) -> Tensor:
    """A tensor to write into: itself, or a copy where gradients must find what was read before."""
    return value.clone() if torch.is_grad_enabled() else value


def _as_matrix(graph: Graph, keep_CE: Tensor) -> Tensor:
    """(C, readers, writers), zero where there is no edge."""
    writer, reader = (torch.from_numpy(end) for end in graph.ends)
    matrix = keep_CE.new_zeros(len(keep_CE), len(graph.readers), len(graph.writers))
    matrix[:, reader, writer] = keep_CE
    return matrix


def _attention_arguments(view: EdgeView, ids: list[list[int]]) -> list[dict[str, Any]]:
    """What each layer's attention is given besides its input: positions and masks, which depend on length alone."""
    arguments: list[dict[str, Any]] = []
    hooks = [
        block.attention.register_forward_pre_hook(
            lambda _m, args, kwargs: arguments.append({k: v for k, v in kwargs.items() if k != "hidden_states"}),
            with_kwargs=True,
        )
        for block in view.blocks
    ]
    try:
        with torch.no_grad():
            view.model.hf(input_ids=torch.tensor(ids, device=view.model.device), use_cache=False, logits_to_keep=1)
    finally:
        for hook in hooks:
            hook.remove()
    return arguments
