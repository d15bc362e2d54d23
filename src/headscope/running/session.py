"""Running a model many times from the middle, exactly.

An intervention on heads leaves most of a run as it was. A `Session` runs a batch of prompts (with their targets behind
them) once, keeps the stream at every layer, and answers `metrics(keep)`: the metric of every prompt under each of many
masks, paying only for what a mask can change:

1. Layers below the first closed head are skipped; the run starts from the kept stream.
2. In that first layer z is already known: the closed heads are filled in and only the output projection runs.
3. Positions before the first difference between clean and corrupt never change: their keys and values are kept.
4. In the last layer only the positions that predict the target go on behind attention.
5. Of the unembedding only the rows that the metric reads are multiplied.
6. Many masks go through in one batch; when memory runs out, the batch is halved and tried again.

The model stays the Hugging Face one. For the time of a pass the `forward` of some of its modules is replaced; other
threads see the plain ones. Where the modules are is found by watching one run (`layer_modules`), and the whole thing
is checked once per model against plain interventions. A model that fails the check runs the plain way, and
`Engine.reason` says why.

Shape letters: C masks, B prompts, R = C * B rows, T positions (behind the shared prefix), P of them that predict a
target, S keys, L layers, H heads, X components of a layer at a site, K head width, W width of a value there, D stream
width, V vocabulary.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import DynamicCache, DynamicLayer

from headscope.models.eager import Edit
from headscope.models.model import Model
from headscope.running.batching import in_parts
from headscope.running.interventions import Fill, record
from headscope.running.layer_modules import (
    LayerModules,
    find_layer_modules,
    first_output,
    hidden_of,
    probe_ids,
    replaced,
    with_hidden,
    wrapped,
)
from headscope.running.sites import edited, recorded, site_of
from headscope.running.targets import Targets, metrics_of, narrow_head, target_logits

# By closed layer, what of each component stays, (C, B, T, X).
Masks = Mapping[int, Tensor]


class Engine:
    """What is known of one model: its parts, and whether the fast way holds on it."""

    def __init__(self, model: Model):
        self.model = model
        self.parts: list[LayerModules] = []
        self.reason = ""
        try:
            self.parts = find_layer_modules(model)
            self.reason = _check(self)
        except (RuntimeError, AttributeError, TypeError, ValueError, IndexError, KeyError) as error:
            self.reason = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        if self.reason:
            kind = model.hf.config.model_type
            warnings.warn(f"{kind}: the fast engine does not hold ({self.reason}); running plainly.", stacklevel=3)

    @property
    def fast(self) -> bool:
        return not self.reason


def engine_of(model: Model) -> Engine:
    """The engine of a model, made and checked when first asked for."""
    if "engine" not in model.kept:
        model.kept["engine"] = Engine(model)
    return model.kept["engine"]


class Session:
    """A batch of rows of one length, run once, ready to be run again under many masks.

    ids: prompts with their targets behind them, all but the last token (`task.clean_rows`). other_ids: rows whose
    values fill the closed heads (corrupt fill); or `fill`: by part of the site, per layer (X, W) or (B, T, X, W);
    neither means zero. start: positions before it are left as they are under every mask. site: where masks act.
    """

    def __init__(
        self,
        model: Model,
        ids: list[list[int]],
        targets: Targets,
        *,
        other_ids: list[list[int]] | None = None,
        fill: Mapping[str, Fill] | None = None,
        start: int = 0,
        engine: Engine | None = None,
        site: str | None = None,
    ):
        self.model, self.ids, self.targets, self.site = model, ids, targets, site_of(model, site)
        self.engine = engine or engine_of(model)
        self.other_metric_B: Tensor | None = None
        latest = len(ids[0]) - targets.positions
        self.start = min(start, latest)
        if other_ids is not None:
            with recorded(model, self.site.columns) as fill:
                self.other_metric_B = metrics_of(model, other_ids, targets)
            if self.engine.fast:
                shared = min(_shared(a, b) for a, b in zip(ids, other_ids, strict=True))
                self.start = max(self.start, min(shared, latest))
        self.fill = fill or {}
        if self.engine.fast:
            self._run_base()
        else:
            self.metric_B = targets(target_logits(model, ids, targets))

    def _run_base(self) -> None:
        """One whole run: streams and z behind the prefix, keys and values of the prefix, the metric."""
        model, start = self.model, self.start
        self._stream: list[Tensor] = [torch.empty(0)] * model.n_layers
        hooks = []
        for layer, parts in enumerate(self.engine.parts):

            def keep(_module: nn.Module, args: tuple, kwargs: dict, layer: int = layer) -> None:
                self._stream[layer] = hidden_of(args, kwargs)[:, start:]

            hooks.append(parts.layer.register_forward_pre_hook(keep, with_kwargs=True))
        cache = DynamicCache() if start else None
        P, (narrow, targets) = self.targets.positions, narrow_head(model, self.targets)
        try:
            with record(model) as z, narrow:
                ids_BT = torch.tensor(self.ids, device=model.device)
                out = model.hf(input_ids=ids_BT, past_key_values=cache, use_cache=cache is not None, logits_to_keep=P)
        finally:
            for hook in hooks:
                hook.remove()
        self.metric_B = targets(out.logits[:, -P:])
        self._z = [z[layer][:, start:] for layer in range(model.n_layers)]
        self._prefix = []
        if cache is not None:
            pairs: list[tuple[Any, Any]] = [(vars(layer)["keys"], vars(layer)["values"]) for layer in cache.layers]
            self._prefix = [(k[..., :start, :].clone(), v[..., :start, :].clone()) for k, v in pairs]

    def metrics(self, keep: Tensor) -> Tensor:
        """Metric of every prompt under every mask, (C, B). keep: (C, L, X), or (C, B, L, X) for masks per prompt."""
        keep_CBLX = keep if keep.ndim == 4 else keep[:, None]
        closed_CL = (keep_CBLX != 1).any(dim=3).any(dim=1)
        first_C = torch.where(closed_CL.any(1), closed_CL.int().argmax(1), self.model.n_layers)
        out_CB = self.metric_B.repeat(len(keep_CBLX), 1)
        for first in first_C.unique().tolist():
            if first == self.model.n_layers:
                continue
            which = (first_C == first).nonzero().flatten().tolist()

            def run(part: Sequence[int], first: int = first, which: list[int] = which) -> None:
                chosen = [which[i] for i in part]
                closed = closed_CL[chosen].any(0).nonzero().flatten().tolist()
                out_CB[chosen] = self._pass({at: keep_CBLX[chosen, :, None, at] for at in closed}, first)

            self._in_parts(len(which), run)
        return out_CB

    def metrics_at(self, layer: int, keep_CTX: Tensor) -> Tensor:
        """The same for masks that close components of one layer only, (C, B). keep_CTX: one position for all, or as
        many as a row has."""
        out_CB = self.metric_B.repeat(len(keep_CTX), 1)

        def run(part: Sequence[int]) -> None:
            out_CB[list(part)] = self._pass({layer: keep_CTX[list(part), None]}, layer)

        self._in_parts(len(keep_CTX), run)
        return out_CB

    def _in_parts(self, masks: int, run: Callable[[Sequence[int]], None]) -> None:
        in_parts(self.model, "masks", range(masks), run, each=(len(self.ids[0]) - self.start) * len(self.ids))

    def _pass(self, keep: Masks, first: int) -> Tensor:
        """One pass under some masks; keep: by closed layer, (C, B, T, X), each of B and T one where it is for all."""
        C, B = len(keep[first]), len(self.ids)
        P, (narrow, targets) = self.targets.positions, narrow_head(self.model, self.targets)
        with ExitStack() as stack:
            if self.engine.fast:
                stack.enter_context(narrow)
                for replacement in self._replacements(keep, first):
                    stack.enter_context(replaced(*replacement))
            for part in self.site.columns:
                stack.enter_context(edited(self.model, part, self._edit(part, keep, first), keep))
            if not self.engine.fast:
                logits_RPV = target_logits(self.model, self.ids * C, self.targets)
                return torch.stack([self.targets(logits_BPV) for logits_BPV in logits_RPV.split(B)])
            rows = [row[self.start :] for row in self.ids] * C
            cache = _PrefixCache(self._prefix) if self.start else None
            ids_RT = torch.tensor(rows, device=self.model.device)
            out = self.model.hf(input_ids=ids_RT, past_key_values=cache, use_cache=cache is not None, logits_to_keep=P)
        return torch.stack([targets(logits_BPV) for logits_BPV in out.logits[:, -P:].split(B)])

    def _edit(self, part: str, keep: Masks, first: int) -> Edit:
        """v' = m * v + (1 - m) * fill for rows that are prompts under masks, without repeating the fill."""

        def edit(value_RTXW: Tensor, layer: int) -> Tensor:
            if layer == first and self.engine.fast and part == "resid_pre":
                return value_RTXW  # (It starts from a kept stream, which is filled already.)
            value_CBTXW = value_RTXW.unflatten(0, (-1, len(self.ids)))
            return self._filled(part, value_CBTXW, layer, keep[layer]).flatten(0, 1)

        return edit

    def _filled(self, part: str, value_CBTXW: Tensor, layer: int, keep_CBTX: Tensor) -> Tensor:
        # Values begin at different positions (behind a prefix, or where only the target goes on), and end at the last.
        length, T = len(self.ids[0]), value_CBTXW.shape[2]
        keep_CBTX = keep_CBTX[..., self.site.columns[part]]
        if self.start > length - T and keep_CBTX.shape[2] == 1:
            keep_CBTX = keep_CBTX.repeat(1, 1, length, 1)
            keep_CBTX[:, :, : self.start] = 1.0
        keep_CBTX = keep_CBTX[:, :, -T:] if keep_CBTX.shape[2] > 1 else keep_CBTX
        m = keep_CBTX[..., None].to(value_CBTXW)
        if part not in self.fill:
            return m * value_CBTXW
        fill = self.fill[part][layer].to(value_CBTXW)
        if fill.ndim == 4 and fill.shape[1] > 1:
            fill = fill[:, -T:]
        return m * value_CBTXW + (1 - m) * fill

    def _replacements(self, keep: Masks, first: int) -> Iterator[tuple[nn.Module, Callable]]:
        """(module, its forward for this pass)."""
        C, last = len(keep[first]), self.model.n_layers - 1
        parts = self.engine.parts
        for layer in range(first):
            yield parts[layer].layer, lambda *a, p=parts[layer], **k: wrapped(hidden_of(a, k), p.layer_outputs)
        stream_CBTD = self._stream[first].expand(C, *self._stream[first].shape)
        if "resid_pre" in self.site.columns:
            stream_CBTD = self._filled("resid_pre", stream_CBTD[:, :, :, None], first, keep[first])[:, :, :, 0]

        def from_stream(call_layer: Callable, args: tuple, kwargs: dict) -> Any:
            args, kwargs = with_hidden(args, kwargs, stream_CBTD.flatten(0, 1))
            return call_layer(*args, **kwargs)

        p = parts[first]
        # What attention reads is as it was unless the site is in it or before it.
        known_z = p.projection is not None and not {"q", "k", "v", "pattern", "resid_pre"} & self.site.columns.keys()
        if known_z:
            z_CBTHK = self._z[first].expand(C, *self._z[first].shape)
            if "z" in self.site.columns:
                z_CBTHK = self._filled("z", z_CBTHK, first, keep[first])
            z_RTD = z_CBTHK.flatten(0, 1).flatten(2).contiguous()
        trim = parts[last].norm is not None
        if first < last or not trim:
            original = p.layer.forward
            yield p.layer, lambda *a, **k: from_stream(original, a, k)
            if known_z:
                yield p.attention, lambda *a, **k: wrapped(p.projection.forward(z_RTD), p.attention_outputs)  # pyright: ignore[reportOptionalMemberAccess, reportPossiblyUnboundVariable]
        if not trim:
            return

        # The last layer: attention reads all positions, everything behind it only those that predict the target.
        q, P = parts[last], self.targets.positions
        whole: list[Tensor] = []
        layer_forward, attention_forward = q.layer.forward, q.attention.forward

        def target_only(*args: Any, **kwargs: Any) -> Any:
            stream_RTD = hidden_of(args, kwargs)
            whole[:] = [stream_RTD]
            args, kwargs = with_hidden(args, kwargs, _last(stream_RTD, P))
            out = layer_forward(*args, **kwargs)
            # Some models reshape to the shape of their input afterwards: give it, for one position without copying.
            return wrapped(_at_all(first_output(out), stream_RTD.shape[1]), q.layer_outputs)

        def attend_from_all(*args: Any, **kwargs: Any) -> Any:
            if first == last and known_z:
                return wrapped(q.projection.forward(_last(z_RTD, P)), q.attention_outputs)  # pyright: ignore[reportOptionalMemberAccess, reportPossiblyUnboundVariable]
            # (Some attention modules add the stream themselves: it gets back its length.)
            T, narrow = whole[0].shape[1], hidden_of(args, kwargs).shape
            args = tuple(_at_all(a, T) if isinstance(a, Tensor) and a.shape == narrow else a for a in args)
            args, kwargs = with_hidden(args, kwargs, q.norm(whole[0]))  # pyright: ignore[reportOptionalCall]
            return wrapped(_last(first_output(attention_forward(*args, **kwargs)), P), q.attention_outputs)

        if first == last:
            yield q.layer, lambda *a, **k: from_stream(target_only, a, k)
        else:
            yield q.layer, target_only
        yield q.attention, attend_from_all


class _PrefixLayer(DynamicLayer):
    """Keys and values of the shared prefix, put before those of all rows; nothing is kept of the rows."""

    def __init__(self, keys: Tensor, values: Tensor):
        super().__init__()
        self.keys, self.values, self.is_initialized = keys, values, True
        self.dtype, self.device = keys.dtype, keys.device

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        def join(kept_BGSK: Tensor, new_RGTK: Tensor) -> Tensor:
            new = new_RGTK.unflatten(0, (-1, len(kept_BGSK)))
            return torch.cat([kept_BGSK.expand(len(new), *kept_BGSK.shape), new], dim=-2).flatten(0, 1)

        assert self.keys is not None
        assert self.values is not None
        return join(self.keys, key_states), join(self.values, value_states)


class _PrefixCache(DynamicCache):
    def __init__(self, prefix: Sequence[tuple[Tensor, Tensor]]):
        super().__init__()
        self.layers = [_PrefixLayer(keys, values) for keys, values in prefix]


@torch.no_grad()
def _check(engine: Engine) -> str:
    """Fast and plain on a short pair of prompts under random masks: an empty string, or what differs."""
    model = engine.model
    ids = probe_ids(model).repeat(2, 1)
    ids[1] = ids[1].roll(1)
    other = ids.clone()
    other[:, -3] = ids[:, -4]
    draw = torch.Generator().manual_seed(0)
    keep = (torch.rand(4, model.n_layers, model.n_heads, generator=draw) > 0.5).float()
    keep[1, :-1] = keep[2, :1] = 1.0
    differences = []
    for positions in (1, 2):
        targets = Targets.first_two(2, model.device, positions=positions)
        arguments: dict[str, Any] = {"ids": ids.tolist(), "targets": targets, "other_ids": other.tolist()}
        fast = Session(model, **arguments, engine=engine).metrics(keep)
        engine.reason = "checking"
        plain = Session(model, **arguments, engine=engine).metrics(keep)
        engine.reason = ""
        differences.append((fast - plain).abs().max().item())
    tolerance = 1e-3 if model.hf.dtype == torch.float32 else 0.1
    worst = next((difference for difference in differences if not difference < tolerance), None)
    return "" if worst is None else f"differs by {worst:.1e} from the plain way"


def _last(value_RTX: Tensor, positions: int) -> Tensor:
    """The last positions, in one piece, as some modules want more than one."""
    return value_RTX[:, -1:] if positions == 1 else value_RTX[:, -positions:].contiguous()


def _at_all(value_RPD: Tensor, length: int) -> Tensor:
    """The last positions as the end of all of them: before it is nothing that counts. One is not copied."""
    R, P, D = value_RPD.shape
    return value_RPD.expand(R, length, D) if P == 1 else nn.functional.pad(value_RPD, (0, 0, length - P, 0))


def _shared(a: list[int], b: list[int]) -> int:
    """Length of the common beginning."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), len(a))
