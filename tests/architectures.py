"""Tiny random models of many architectures, built from their configs: two or three layers, a few heads."""

from __future__ import annotations

from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedModel

VOCAB = 96

_LLAMA_LIKE: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_GPT2_LIKE: dict[str, Any] = {
    "vocab_size": VOCAB, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip

# Through the attention interface.
INTERFACE: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", _GPT2_LIKE),
    "gpt_neox": ("gpt_neox", {**_LLAMA_LIKE, "use_parallel_residual": True}),
    "llama-gqa": ("llama", _LLAMA_LIKE),
    "mistral": ("mistral", {**_LLAMA_LIKE, "sliding_window": 4}),
    "qwen2": ("qwen2", _LLAMA_LIKE),
    "qwen3": ("qwen3", {**_LLAMA_LIKE, "head_dim": 16}),
    "olmo": ("olmo", _LLAMA_LIKE),
    "olmo2": ("olmo2", _LLAMA_LIKE),
    "gemma2": ("gemma2", {**_LLAMA_LIKE, "head_dim": 16, "sliding_window": 4, "attn_logit_softcapping": 0.5,
                          "query_pre_attn_scalar": 16}),
    "gemma3": ("gemma3_text", {**_LLAMA_LIKE, "head_dim": 16, "sliding_window": 4, "num_hidden_layers": 3,
                               "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}),
    "phi3": ("phi3", _LLAMA_LIKE),
    "opt": ("opt", {"vocab_size": VOCAB, "hidden_size": 32, "ffn_dim": 48, "num_hidden_layers": 2,
                    "num_attention_heads": 4, "max_position_embeddings": 64, "word_embed_proj_dim": 32,
                    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}),
    "stablelm": ("stablelm", {**_LLAMA_LIKE, "use_parallel_residual": False}),
    "gpt_bigcode": ("gpt_bigcode", {**_GPT2_LIKE, "multi_query": True}),
    "phi": ("phi", _LLAMA_LIKE),
    "gpt_oss": ("gpt_oss", {**_LLAMA_LIKE, "head_dim": 16, "num_local_experts": 2, "num_experts_per_tok": 1,
                            "sliding_window": 4}),
}  # fmt: skip

# By a hook on the output projection.
PROJECTION: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt_neo": ("gpt_neo", {"vocab_size": VOCAB, "hidden_size": 32, "num_layers": 2, "num_heads": 4,
                            "attention_types": [[["global", "local"], 1]], "max_position_embeddings": 64,
                            "window_size": 4, "bos_token_id": 1, "eos_token_id": 2}),
    "gptj": ("gptj", {**_GPT2_LIKE, "rotary_dim": 4}),
    "bloom": ("bloom", {"vocab_size": VOCAB, "hidden_size": 32, "n_layer": 2, "n_head": 4}),
    "falcon": ("falcon", {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
                          "num_kv_heads": 2, "new_decoder_architecture": True, "alibi": False}),
}  # fmt: skip

ALL = {**INTERFACE, **PROJECTION}

# Where the output projection of a layer is, to scale its columns by hand.
OUTPUT_PROJECTION = {
    "gpt2": "transformer.h.{}.attn.c_proj", "gpt_bigcode": "transformer.h.{}.attn.c_proj",
    "gpt_neox": "gpt_neox.layers.{}.attention.dense", "opt": "model.decoder.layers.{}.self_attn.out_proj",
    "phi": "model.layers.{}.self_attn.dense", "gpt_neo": "transformer.h.{}.attn.attention.out_proj",
    "gptj": "transformer.h.{}.attn.out_proj", "bloom": "transformer.h.{}.self_attention.dense",
    "falcon": "transformer.h.{}.self_attention.dense",
}  # fmt: skip


def build(name: str, seed: int = 0) -> PreTrainedModel:
    """A random model, its weights spread wide enough that every head matters."""
    kind, settings = ALL[name]
    torch.manual_seed(seed)
    hf = AutoModelForCausalLM.from_config(CONFIG_MAPPING[kind](**settings), dtype=torch.float32)
    with torch.no_grad():
        for parameter in hf.parameters():
            if parameter.ndim >= 2:
                parameter.normal_(0, 0.15)
            else:
                parameter.add_(torch.randn_like(parameter) * 0.05)
    return hf.eval()


def output_projection(hf: PreTrainedModel, name: str, layer: int) -> Any:
    return hf.get_submodule(OUTPUT_PROJECTION.get(name, "model.layers.{}.self_attn.o_proj").format(layer))


def scale_head_by_hand(hf: PreTrainedModel, name: str, layer: int, head: int, n_heads: int, factor: float) -> None:
    """Multiply the columns of the output projection that read head (layer, head)."""
    projection = output_projection(hf, name, layer)
    weight = projection.weight
    # GPT-2's Conv1D keeps inputs in rows, Linear keeps them in columns.
    inputs_first = type(projection).__name__ == "Conv1D"
    width = (weight.shape[0] if inputs_first else weight.shape[1]) // n_heads
    columns = slice(head * width, (head + 1) * width)
    with torch.no_grad():
        if inputs_first:
            weight[columns] *= factor
        else:
            weight[:, columns] *= factor
