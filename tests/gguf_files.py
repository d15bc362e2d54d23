"""Tiny GGUF files, written as llama.cpp's converter writes them, from models of `architectures`."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, TokenType, quantize
from transformers import PreTrainedModel

# <unk> <s> </s>, then visible bytes as byte-level BPE spells them, then two merges: 96 tokens.
LETTERS = "ĠabcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,;:!?'\"()-+*/=<>_@#$%&[]{}^"
MERGES = ["a b", "Ġ a"]
SPECIAL = ["<unk>", "<s>", "</s>"]
TOKENS = [*SPECIAL, *LETTERS, *(merge.replace(" ", "") for merge in MERGES)]


def write_gguf(
    path: Path,
    hf: PreTrainedModel,
    *,
    add_bos: bool | None = None,
    kind: str = "gpt2",
    quantised: bool = False,
    leave_out: Collection[str] = (),
) -> Path:
    """A Llama model as a GGUF file: float32 or (where rows allow it) Q8_0, with a small byte-level ("gpt2") or
    SentencePiece ("llama") vocabulary, without the tensors named in `leave_out`."""
    config = hf.config
    heads, groups = config.num_attention_heads, config.num_key_value_heads
    assert len(TOKENS) == config.vocab_size
    writer = GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(heads)
    writer.add_head_count_kv(groups)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(config.hidden_size // heads)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model(kind)
    writer.add_tokenizer_pre("default")
    spelled = [token.replace("Ġ", "▁") for token in TOKENS] if kind == "llama" else TOKENS
    writer.add_token_list(spelled)
    writer.add_token_scores([-float(i) for i in range(len(TOKENS))])
    writer.add_token_types([TokenType.CONTROL if token in SPECIAL else TokenType.NORMAL for token in TOKENS])
    if kind == "gpt2":
        writer.add_token_merges(MERGES)
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    if add_bos is not None:
        writer.add_add_bos_token(add_bos)
    for name, tensor in hf.state_dict().items():
        gguf_name, values = _gguf_name(name), tensor.float().numpy()
        if gguf_name in leave_out:
            continue
        if ".attn_q." in gguf_name:
            values = _permuted(values, heads)
        if ".attn_k." in gguf_name:
            values = _permuted(values, groups)
        if quantised and values.ndim == 2 and values.shape[1] % 32 == 0:
            packed = quantize(values, GGMLQuantizationType.Q8_0)
            writer.add_tensor(gguf_name, packed, raw_dtype=GGMLQuantizationType.Q8_0)
        else:
            writer.add_tensor(gguf_name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _gguf_name(name: str) -> str:
    whole = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    if name in whole:
        return whole[name]
    parts = {
        "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    }  # fmt: skip
    _, _, layer, *part, weight = name.split(".")
    return f"blk.{layer}.{parts['.'.join(part)]}.{weight}"


def _permuted(weight: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp rotates neighbouring rows, Hugging Face the two halves of a head: the converter reorders q and k."""
    halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(weight.shape))
