"""Sentence embeddings by a sentence-transformers model, local or from the hub, through transformers alone.

The mean of the last layer over the text's tokens, or its first token where the model's own pooling file says so,
normalised to length 1.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModel, AutoTokenizer
from transformers.utils.hub import cached_file

from headscope.errors import InputError
from headscope.models.builtin import EMBEDDERS, builtin_folder
from headscope.models.weights import quiet, refuse_odd_weights
from headscope.schema import read_json

BATCH = 64


def embedder(name: str) -> Callable[[list[str]], np.ndarray]:
    """The function from texts to embeddings, (N, D), of a built-in embedder, or of a folder's or the hub's model."""
    if name in EMBEDDERS and not Path(name).is_dir():
        name = str(builtin_folder(name))
    try:
        # Nothing that could run code is opened: safetensors only, and none of the model's own code. (Unless it is told,
        # transformers asks on the terminal.)
        with quiet():
            tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
            hf = AutoModel.from_pretrained(name, use_safetensors=True, trust_remote_code=False).eval()
        refuse_odd_weights(hf, name)
        first_token = _pools_first_token(name)
    except InputError:
        raise
    # What a broken checkpoint makes transformers raise is anybody's guess: all of it is about the input.
    except Exception as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise InputError(
            f"{name} cannot be loaded as a sentence embedder: {first}\n"
            "Give a folder or hub id of a sentence-transformers model with safetensors, or --embedder none."
        ) from error

    @torch.no_grad()
    def embed(texts: list[str]) -> np.ndarray:
        different = sorted(set(texts))
        parts = []
        for start in range(0, len(different), BATCH):
            inputs = tokenizer(different[start : start + BATCH], return_tensors="pt", padding=True, truncation=True)
            hidden_BTD = hf(**inputs).last_hidden_state
            seen_BT1 = inputs["attention_mask"][..., None].to(hidden_BTD)
            pooled_BD = hidden_BTD[:, 0] if first_token else (hidden_BTD * seen_BT1).sum(1) / seen_BT1.sum(1)
            parts.append(torch.nn.functional.normalize(pooled_BD, dim=-1).numpy())
        table = dict(zip(different, np.concatenate(parts), strict=True))
        return np.stack([table[text] for text in texts])

    return embed


def _pools_first_token(name: str) -> bool:
    config = cached_file(name, "1_Pooling/config.json", _raise_exceptions_for_missing_entries=False,
                        _raise_exceptions_for_connection_errors=False)  # fmt: skip
    return bool(config) and bool(read_json(Path(str(config)), dict[str, Any]).get("pooling_mode_cls_token"))
