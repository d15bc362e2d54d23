"""GGUF files as plain Hugging Face models: weights dequantised to float32, tokenizer with the BOS the file asks for."""

from __future__ import annotations

import io
import tempfile
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import torch
from tokenizers.processors import TemplateProcessing
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from headscope.models.weights import read_weights


def read_gguf(path: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Model and tokenizer of a GGUF file. The model is a fresh one holding the file's weights, free of quantisation
    settings, so that it can be saved like any other."""
    # transformers prefers other models' files beside a GGUF file to what the file itself says: show it an empty folder.
    with tempfile.TemporaryDirectory() as empty:
        own = {"gguf_file": str(path.resolve())}
        # It also shows a bar that cannot be turned off.
        with redirect_stderr(io.StringIO()):
            loaded = read_weights(empty, dtype=torch.float32, **own)
        tokenizer: Any = AutoTokenizer.from_pretrained(empty, trust_remote_code=False, **own)
    tokenizer.name_or_path = path.name
    config = type(loaded.config).from_dict(
        {k: v for k, v in loaded.config.to_dict().items() if k not in ("quantization_config", "_name_or_path")}
    )
    hf: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    hf.load_state_dict(loaded.state_dict())
    hf.tie_weights()
    if _asks_for_bos(path):
        _add_bos(tokenizer)
    return hf.eval(), tokenizer


def _asks_for_bos(path: Path) -> bool:
    """What the file says of BOS; files that say nothing follow llama.cpp's rule: SentencePiece vocabularies want it."""
    from gguf import GGUFReader

    fields = GGUFReader(path).fields
    if stated := fields.get("tokenizer.ggml.add_bos_token"):
        return bool(stated.contents())
    kind = fields.get("tokenizer.ggml.model")
    return kind is not None and kind.contents() == "llama"


def _add_bos(tokenizer: Any) -> None:
    if tokenizer.bos_token_id is None or tokenizer("a")["input_ids"][0] == tokenizer.bos_token_id:
        return
    bos = tokenizer.bos_token
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, tokenizer.bos_token_id)]
    )
