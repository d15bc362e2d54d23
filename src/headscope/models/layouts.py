"""Where a block keeps its norms and projections: a row per architecture. Data, not subclasses.

Heads are reached without it; edges between components need it, because every reader gets an input of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from transformers import PreTrainedModel

from headscope.errors import InputError


@dataclass(frozen=True)
class Layout:
    """Names of modules, relative to a layer unless said otherwise; "" where a block has none."""

    layers: str = "model.layers"  # relative to the model
    final_norm: str = "model.norm"  # relative to the model
    attention: str = "self_attn"
    mlp: str = "mlp"
    before_attention: str = "input_layernorm"
    before_mlp: str = "post_attention_layernorm"
    after_attention: str = ""
    after_mlp: str = ""
    # Relative to the attention module. One fused projection gives q, k and v one after the other ("joined"), or head by
    # head ("interleaved").
    projections: tuple[str, ...] = ("q_proj", "k_proj", "v_proj")
    fused: str = ""
    output: str = "o_proj"
    # Norms of q and k over all heads together, which a head's own input must pass as a whole.
    joint_norms: tuple[str, ...] = ()


_LLAMA = Layout()
_GEMMA = Layout(
    before_mlp="pre_feedforward_layernorm",
    after_attention="post_attention_layernorm",
    after_mlp="post_feedforward_layernorm",
)

LAYOUTS: dict[str, Layout] = {
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": _LLAMA,
    "olmo": _LLAMA,
    "gemma2": _GEMMA,
    "gemma3_text": _GEMMA,
    "olmo2": Layout(
        before_attention="",
        before_mlp="",
        after_attention="post_attention_layernorm",
        after_mlp="post_feedforward_layernorm",
        joint_norms=("q_norm", "k_norm"),
    ),
    "gpt2": Layout(
        layers="transformer.h",
        final_norm="transformer.ln_f",
        attention="attn",
        before_attention="ln_1",
        before_mlp="ln_2",
        projections=("c_attn",),
        fused="joined",
        output="c_proj",
    ),
    "gpt_neox": Layout(
        layers="gpt_neox.layers",
        final_norm="gpt_neox.final_layer_norm",
        attention="attention",
        projections=("query_key_value",),
        fused="interleaved",
        output="dense",
    ),
}


def layout_of(hf: PreTrainedModel) -> Layout:
    """The row of a model, or an error that says which is missing."""
    kind = hf.config.model_type
    if kind not in LAYOUTS:
        raise InputError(
            f"Edges need to know where {kind} keeps its norms and projections, and LAYOUTS in models/layouts.py has no "
            f"row for it (it has {', '.join(LAYOUTS)}).\nAdd a row; heads work without one."
        )
    return LAYOUTS[kind]


def is_parallel(hf: PreTrainedModel) -> bool:
    """Whether attention and MLP of a block read the same stream."""
    return bool(getattr(hf.config, "use_parallel_residual", False))
