"""A loaded model: the Hugging Face model itself, its tokenizer, and the shape of its heads."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headscope.models.attention import NOTES, Reach, device_of
from headscope.models.layouts import is_parallel
from headscope.models.sparse_gate import CONFIG_KEY


@dataclass(frozen=True, eq=False)
class Model:
    """What `load` returns. `hf` is the plain Hugging Face model and can be used as such."""

    name: str
    hf: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    reach: Reach
    source: dict[str, Any] = field(default_factory=dict)
    # What higher floors found out about this model (its engine, its edge view); it goes when the model goes.
    kept: dict[str, Any] = field(default_factory=dict)

    @property
    def note(self) -> str:
        """What is to be known of its heads; empty for most architectures."""
        return NOTES.get(self.hf.config.model_type, "")

    @property
    def n_layers(self) -> int:
        return self.reach.n_layers

    @property
    def n_heads(self) -> int:
        return self.reach.n_heads

    @property
    def parallel(self) -> bool:
        """Whether attention and MLP of a block read the same stream."""
        return is_parallel(self.hf)

    @property
    def device(self) -> torch.device:
        return device_of(self.hf)

    def batch(self, ids: list[list[int]]) -> dict[str, Tensor]:
        """Token ids of several prompts as model inputs, padded on the right where lengths differ.

        Args:
            ids: of each prompt.

        Returns:
            input_ids and attention_mask, (B, T) each.
        """
        longest = max(map(len, ids))
        pad = self.tokenizer.pad_token_id or 0
        rows = [row + [pad] * (longest - len(row)) for row in ids]
        seen = [[1] * len(row) + [0] * (longest - len(row)) for row in ids]
        return {
            "input_ids": torch.tensor(rows, device=self.device),
            "attention_mask": torch.tensor(seen, device=self.device),
        }

    def encode(self, prompts: list[str]) -> dict[str, Tensor]:
        """Prompts as model inputs, tokenised as this model expects them.

        Args:
            prompts: texts.

        Returns:
            input_ids and attention_mask, (B, T) each.
        """
        return self.batch(self.tokenizer(prompts)["input_ids"])  # pyright: ignore[reportArgumentType]

    def fingerprint(self) -> str:
        """SHA-256 over the weights as they are in memory: names the model exactly, wherever it came from.

        Returns:
            64 hexadecimal digits.
        """
        return fingerprint(self.hf)

    def describe(self) -> dict[str, Any]:
        """What a run's manifest says of a model.

        Returns:
            Source, architecture, layers, heads, dtype and SHA-256.
        """
        return {
            **self.source,
            "architecture": self.hf.config.model_type,
            "layers": self.n_layers,
            "heads": self.n_heads,
            "dtype": str(self.hf.dtype).removeprefix("torch."),
            "sha256": self.fingerprint(),
            **({"note": self.note} if self.note else {}),
        }

    def __repr__(self) -> str:
        return f"Model({self.name!r}, {self.n_layers} layers x {self.n_heads} heads, {self.hf.config.model_type})"


def fingerprint(hf: PreTrainedModel) -> str:
    digest = hashlib.sha256()
    weights = hf.state_dict()
    if any(tensor.is_meta for tensor in weights.values()):
        # Some wait on disk, or elsewhere.
        from accelerate.utils.modeling import get_state_dict_offloaded_model

        weights = get_state_dict_offloaded_model(hf)
    for name, tensor in sorted(weights.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        for part in _parts(tensor.detach()):
            digest.update(part.cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    # Learned offsets of gates are weights too, though the config keeps them.
    for text in (getattr(hf.config, CONFIG_KEY, None) or {}).get("offsets", ()):
        digest.update(text.encode())
    return digest.hexdigest()


def _parts(tensor: Any) -> Iterator[Tensor]:
    """A quantiser's tensor is made of several, numbers and scales, which torch's protocol for them names."""
    if not hasattr(tensor, "__tensor_flatten__"):
        yield tensor
        return
    for name in tensor.__tensor_flatten__()[0]:
        yield from _parts(getattr(tensor, name))
