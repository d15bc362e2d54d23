"""The one place that touches attention heads.

`install(hf)` puts every head of a Hugging Face causal language model in reach, in one of two ways:

* through transformers' `AttentionInterface`: `attend` is registered there under the name "headscope" and sees q, k
  and v before, and z after, attention, with the heads still apart;
* for the few architectures that do not dispatch through the interface, by a pre-hook on the output projection, whose
  input is z (the rows of `PROJECTIONS`).

With nothing armed, both hand over to the model's own attention, bit for bit. (Where a model's config says that it is
gated, `sparse_gate.py` decides what passes; only the interface can do that.) `armed(...)` arms a tap for the time of a
`with` block: a tap is called with each layer's z and returns the z that goes on. Taps live in a context variable, so
other models, other threads and code after an exception never see them.

Shape letters: B batch, T query positions, S key positions, H heads, G key-value heads, K head width, L layers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from headscope.errors import InputError
from headscope.models.eager import Edit, eager_attention, trained_attention
from headscope.models.sparse_gate import Gates, deciding, gates_of
from headscope.models.weights import is_coarse, refuse_overflow

NAME = "headscope"

# Where z enters the output projection, for architectures whose attention cannot be replaced: a row per model type.
PROJECTIONS: dict[str, str] = {
    "gpt_neo": "transformer.h.{layer}.attn.attention.out_proj",
    "gptj": "transformer.h.{layer}.attn.out_proj",
    "bloom": "transformer.h.{layer}.self_attention.dense",
    "falcon": "transformer.h.{layer}.self_attention.dense",
}


@dataclass(frozen=True)
class Call:
    """What a tap may see besides z: the layer, where the queries start, and through the interface the rest."""

    layer: int
    start: int
    query_BHTK: Tensor | None = None
    key_BGSK: Tensor | None = None
    value_BGSK: Tensor | None = None
    pattern_BHTS: Tensor | None = None


Tap = Callable[[Tensor, Call], Tensor]


@dataclass(frozen=True)
class Reach:
    """How the heads of one model are reached, and the shape that was found when they were."""

    way: str  # "interface" or "projection"
    n_layers: int
    n_heads: int
    head_widths: tuple[int, ...]


@dataclass(frozen=True)
class Inside:
    """An edit of what attention itself works with in some layers: "q", "k" or "v" (B, T, H, K), with a copy for each
    head that shares them; the "pattern" (B, T, H, S); or which keys are "visible" before the softmax, (B, T, H, S)."""

    part: str
    edit: Edit
    layers: Container[int]


@dataclass(frozen=True)
class _Armed:
    hf: PreTrainedModel
    tap: Tap
    patterns: bool
    inside: Inside | None


@dataclass(frozen=True)
class _Site:
    """Which layer of which model an attention module is; `hf` is only compared, never called."""

    hf: PreTrainedModel
    layer: int


@dataclass(frozen=True)
class _Before:
    """What a model was like before its heads were put in reach."""

    attention: str
    training: tuple[str, ...]  # names of the modules in training mode


@dataclass(frozen=True)
class _Ungrouped:
    """All that SDPA asks of an attention module whose heads share no k and v."""

    is_causal: bool


_ARMED: ContextVar[tuple[_Armed, ...]] = ContextVar("headscope_armed", default=())
_START: ContextVar[int] = ContextVar("headscope_start", default=0)
_PROBE: ContextVar[list[tuple[nn.Module, Tensor]] | None] = ContextVar("headscope_probe", default=None)


@contextmanager
def armed(
    hf: PreTrainedModel, tap: Tap | None = None, *, patterns: bool = False, inside: Inside | None = None
) -> Iterator[None]:
    """Call `tap` at every layer of `hf` inside the block; taps armed later see what earlier ones return."""
    if not hasattr(hf, "_headscope_before"):
        raise InputError("This model was released, and its heads are out of reach: load it again with hs.load.")
    if (patterns or inside) and not hasattr(hf, "_headscope_interface"):
        raise InputError(
            f"Attention patterns, q, k and v are out of reach on {hf.config.model_type}: its attention does not go "
            "through transformers' AttentionInterface. z can be recorded, gated and patched."
        )
    token = _ARMED.set((*_ARMED.get(), _Armed(hf, tap or _left, patterns, inside)))
    try:
        yield
    finally:
        _ARMED.reset(token)


def _left(z_BTHK: Tensor, _call: Call) -> Tensor:
    return z_BTHK


def attend(
    module: nn.Module,
    query_BHTK: Tensor,
    key_BGSK: Tensor,
    value_BGSK: Tensor,
    attention_mask: Tensor | None,
    **kwargs,
) -> tuple[Tensor, Tensor | None]:
    """The registered attention function: the model's own attention, then whatever is armed for this model."""
    site: _Site | None = getattr(module, "headscope_site", None)
    taps = [a for a in _ARMED.get() if site is not None and a.hf is site.hf]
    pattern_BHTS, sparse, layer = None, gates_of(module), _layer_of(module)
    inside = [a.inside for a in taps if a.inside is not None and layer in a.inside.layers]
    query_BHTK, key_BGSK, value_BGSK = _edited(query_BHTK, key_BGSK, value_BGSK, inside, layer)
    edits = [(one.part, one.edit) for one in inside if one.part in ("visible", "pattern")]
    odd = kwargs.get("softcap") is not None or kwargs.get("s_aux") is not None
    if sparse and sparse.kind == "trained" and not odd:
        z_BTHK = trained_attention(
            module, query_BHTK, key_BGSK, value_BGSK, attention_mask, kwargs.get("scaling"), sparse, layer
        )
    # SDPA knows neither gates nor soft-capping nor sinks, and never shows its pattern.
    elif sparse or odd or edits or any(a.patterns for a in taps):
        kwargs.update(sparse=sparse, layer=layer, edits=edits)
        z_BTHK, pattern_BHTS = eager_attention(module, query_BHTK, key_BGSK, value_BGSK, attention_mask, **kwargs)
    else:
        # Heads that come with a k and v each (as in a run by edges) need none repeated, whatever their module says.
        ungrouped = key_BGSK.shape[1] == query_BHTK.shape[1] and getattr(module, "num_key_value_groups", 1) > 1
        asked = _Ungrouped(getattr(module, "is_causal", True)) if ungrouped else module
        z_BTHK, _ = sdpa_attention_forward(asked, query_BHTK, key_BGSK, value_BGSK, attention_mask, **kwargs)  # pyright: ignore[reportArgumentType]
    probe = _PROBE.get()
    if probe is not None:
        probe.append((module, z_BTHK))
    if site is not None and taps:
        call = Call(site.layer, _START.get(), query_BHTK, key_BGSK, value_BGSK, pattern_BHTS)
        for a in taps:
            z_BTHK = a.tap(z_BTHK, call)
    return z_BTHK, pattern_BHTS


def _edited(q_BHTK: Tensor, k_BGSK: Tensor, v_BGSK: Tensor, inside: list[Inside], layer: int) -> list[Tensor]:
    """q, k and v as the edits leave them. Where k or v is edited, heads that share them get a copy each."""
    parts = {"q": q_BHTK, "k": k_BGSK, "v": v_BGSK}
    if any(one.part in ("k", "v") for one in inside):
        groups = q_BHTK.shape[1] // k_BGSK.shape[1]
        parts |= {"k": repeat_kv(k_BGSK, groups), "v": repeat_kv(v_BGSK, groups)}
    for one in inside:
        if one.part in parts:
            parts[one.part] = one.edit(parts[one.part].transpose(1, 2), layer).transpose(1, 2)
    return list(parts.values())


def _layer_of(module: nn.Module) -> int:
    """(A model loaded without Headscope's `load` has no sites, but its layers know their number.)"""
    site: _Site | None = getattr(module, "headscope_site", None)
    return getattr(module, "layer_idx", 0) if site is None else site.layer


def install(hf: PreTrainedModel) -> Reach:
    """Put the heads of `hf` in reach and prove it: in short runs every layer is seen exactly once, the logits stay what
    they were, and no position reads a later one. Refuses what neither way covers, and leaves it as it was."""
    uninstall(hf)
    trained = tuple(name for name, module in hf.named_modules() if module.training)
    hf._headscope_before = _Before(str(hf.config._attn_implementation), trained)  # pyright: ignore[reportArgumentType]
    hf.eval()
    try:
        reach = _hook_projections(hf) if hf.config.model_type in PROJECTIONS else _use_interface(hf)
        _refuse_looking_ahead(hf)
    except BaseException:
        uninstall(hf)
        raise
    # Some models skip their own base model (OPT calls its decoder), some users call nothing else.
    for entrance in {hf, hf.base_model}:
        entrance.register_forward_pre_hook(_NoteStart(), with_kwargs=True)
    return reach


def uninstall(hf: PreTrainedModel) -> None:
    """Undo `install`: the attention implementation, the hooks, and which modules were in training are as before. Found
    on the modules themselves, so that a copy of a model can be undone as well."""
    before: _Before | None = vars(hf).pop("_headscope_before", None)
    if before is None:
        return
    if vars(hf).pop("_headscope_interface", False) or hf.config._attn_implementation == NAME:
        hf.set_attn_implementation(before.attention)
    for name, module in hf.named_modules():
        module.training = name in before.training
        vars(module).pop("headscope_site", None)
        for key, hook in list(module._forward_pre_hooks.items()):
            if isinstance(hook, (_NoteStart, _ProjectionHook)):
                del module._forward_pre_hooks[key]
                module._forward_pre_hooks_with_kwargs.pop(key, None)


def _probe_ids(hf: PreTrainedModel, last: int = 1) -> Tensor:
    return torch.tensor([[1, 2, 3, last]], device=device_of(hf)) % hf.config.get_text_config().vocab_size


def device_of(hf: PreTrainedModel) -> torch.device:
    """Where a model takes its inputs. (Of one whose weights wait on disk, the parameters do not tell.)"""
    found = hf.device
    return torch.device(hf._hf_hook.execution_device) if found.type == "meta" else found  # pyright: ignore[reportArgumentType, reportAttributeAccessIssue, reportCallIssue]


def _same_logits(hf: PreTrainedModel, one: Tensor, other: Tensor) -> bool:
    """Up to rounding, which in a coarse model is that of their largest."""
    if not is_coarse(hf):
        return torch.allclose(one, other, atol=1e-4, rtol=1e-3)
    return bool((one - other).abs().max() <= 0.05 * one.abs().max())


@torch.no_grad()
def _refuse_looking_ahead(hf: PreTrainedModel) -> None:
    one, other = (hf(input_ids=_probe_ids(hf, last), use_cache=False).logits[:, :-1] for last in (1, 2))
    refuse_overflow(hf, one)
    if not _same_logits(hf, one, other):
        raise InputError(
            f"{hf.config.model_type} is not a causal language model as loaded: the logits of a token change with the "
            "tokens behind it.\nHeadscope studies causal models; for an encoder set is_decoder in its config."
        )


@torch.no_grad()
def _use_interface(hf: PreTrainedModel) -> Reach:
    ids_BT = _probe_ids(hf)
    seen: list[tuple[nn.Module, Tensor]] = []
    # (What a sparse model's own attention was cannot be compared: its gates are ours. They stay open here.)
    with deciding(Gates("open")):
        before = hf(input_ids=ids_BT, use_cache=False).logits
        refuse_overflow(hf, before)
        hf.set_attn_implementation(NAME)
        token = _PROBE.set(seen)
        try:
            after = hf(input_ids=ids_BT, use_cache=False).logits
        finally:
            _PROBE.reset(token)
    n_layers = hf.config.get_text_config().num_hidden_layers
    shapes = [z.shape for _, z in seen]
    kind = hf.config.model_type
    if len(seen) != n_layers or len({id(module) for module, _ in seen}) != n_layers:
        raise InputError(
            f"Headscope cannot reach the heads of {kind}: expected one call of the attention interface in each of "
            f"{n_layers} layers, saw {len(seen)}{_unseen(hf, [module for module, _ in seen])}. {_covered()}"
        )
    if len({shape[2] for shape in shapes}) != 1:
        raise InputError(f"{kind} has layers with different numbers of heads, which Headscope does not handle yet.")
    if not _same_logits(hf, before, after):
        raise InputError(
            f"{kind} computes attention in a way of its own: under Headscope's its logits change by "
            f"{(before - after).abs().max():.1e}. {_covered()}"
        )
    for layer, (module, _) in enumerate(seen):
        module.headscope_site = _Site(hf, layer)  # pyright: ignore[reportArgumentType]
    hf._headscope_interface = True  # pyright: ignore[reportArgumentType]
    return Reach("interface", n_layers, shapes[0][2], tuple(shape[3] for shape in shapes))


def _unseen(hf: PreTrainedModel, seen: list[nn.Module]) -> str:
    """Which layers the interface was not called in: those without attention, and modules that do not dispatch."""
    stacks = [one for one in hf.modules() if isinstance(one, nn.ModuleList) and len(one) > 1]
    layers = max(stacks, key=lambda stack: sum(p.numel() for p in stack.parameters()), default=None)
    if layers is None:
        return ""
    without: dict[str, list[int]] = {}
    silent = []
    for number, layer in enumerate(layers):
        inside = list(layer.modules())
        attention = next((one for one in inside[1:] if "attention" in type(one).__name__.lower()), None)
        if attention is None:
            parts = [
                type(one).__name__ for one in layer.children() if not re.search("norm|mlp", type(one).__name__, re.I)
            ]
            without.setdefault(", ".join(parts[:1]) or type(layer).__name__, []).append(number)
        elif not any(one is module for one in inside for module in seen):
            silent.append((number, type(attention).__name__))
    words = [
        f"{plural('layer', at)} {_runs(at)} {'have' if at[1:] else 'has'} no attention ({name})"
        for name, at in without.items()
    ]
    if silent:
        words.append(
            f"{silent[0][1]} of {plural('layer', silent)} {_runs([n for n, _ in silent])} does not dispatch through it"
        )
    return f" ({'; '.join(words)})" if words else ""


def plural(word: str, things: Sequence) -> str:
    return word + "s" * (len(things) != 1)


def _runs(numbers: list[int]) -> str:
    """0, 1, 2, 5 as "0-2, 5"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == z else f"{a}-{z}" for a, z in runs)


# What is to be known of an architecture's heads, though they are in reach.
NOTES = {
    "bitnet": "z goes through a norm over all heads before the output projection, so what a head writes depends on the "
    "other heads of its layer",
    "jetmoe": "heads are slots of routed experts: which weights a head has changes with the token",
}


def _hook_projections(hf: PreTrainedModel) -> Reach:
    config = hf.config.get_text_config()
    n_layers, n_heads = config.num_hidden_layers, config.num_attention_heads
    widths = []
    for layer in range(n_layers):
        path = PROJECTIONS[config.model_type].format(layer=layer)
        projection = hf.get_submodule(path)
        hf.get_submodule(path.rpartition(".")[0]).headscope_site = _Site(hf, layer)  # pyright: ignore[reportArgumentType]
        projection.register_forward_pre_hook(_ProjectionHook(_Site(hf, layer), n_heads))
        widths.append(cast(nn.Linear, projection).in_features // n_heads)
    return Reach("projection", n_layers, n_heads, tuple(widths))


@dataclass(frozen=True)
class _ProjectionHook:
    """Calls the armed taps with an output projection's input. (A class, so that a copied model gets its own.)"""

    site: _Site
    n_heads: int

    def __call__(self, _module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        taps = [a.tap for a in _ARMED.get() if a.hf is self.site.hf]
        if not taps:
            return None
        z_BTHK = args[0].unflatten(-1, (self.n_heads, -1))
        for tap in taps:
            z_BTHK = tap(z_BTHK, Call(self.site.layer, _START.get()))
        return (z_BTHK.flatten(-2), *args[1:])


class _NoteStart:
    """Notes where the cache stands when a model is called. (A class, so that `uninstall` knows it.)"""

    def __call__(self, _module: nn.Module, _args: tuple, kwargs: dict) -> None:
        if _ARMED.get():
            past = kwargs.get("past_key_values")
            _START.set(int(past.get_seq_length()) if past is not None else 0)


def _covered() -> str:
    rows = ", ".join(PROJECTIONS)
    return (
        "Covered are architectures that dispatch through transformers' AttentionInterface in every layer, "
        f"and by a hook: {rows}."
    )


# Whoever opens a sparse checkpoint, with `load` or with plain transformers, needs the name to be known.
AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, sdpa_mask)
