"""Reading checkpoints quietly, and so that a gap in it is an error (transformers would fill it with random numbers),
and so is a weight that is no number to compute with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers.utils import logging as hf_logging

from headscope.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

COMPUTED = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
# A product of two weights beyond this is not finite in float32, nor in bfloat16.
LARGEST = torch.finfo(torch.float32).max ** 0.5


def read_weights(source: str | Path, **options: Any) -> PreTrainedModel:
    """The model in `source`, with every tensor of its config found there in the right shape."""
    # (Not above: as transformers is imported it imports our attention, which needs this module whole.)
    from transformers import AutoModelForCausalLM

    loaded: Any = AutoModelForCausalLM.from_pretrained(
        source, trust_remote_code=False, output_loading_info=True, ignore_mismatched_sizes=True, **options
    )
    hf, info = loaded
    other_shape = sorted(name for name, *_ in info["mismatched_keys"])
    wrong = sorted(info["missing_keys"]) + [f"{name} of another shape" for name in other_shape]
    refuse_gaps(source, wrong)
    return hf.eval()


def is_plain(tensor: Tensor) -> bool:
    """Whether a weight is numbers in memory. (It may wait on disk; quantisers have classes with few operations.)"""
    return type(tensor) in (Tensor, nn.Parameter) and not tensor.is_meta


def is_coarse(hf: PreTrainedModel) -> bool:
    """Whether a model computes in less than float32: half precision, or weights of a quantiser, some of which round
    what goes in as well, on a scale that all tokens of a batch share."""
    return hf.dtype not in (torch.float32, torch.float64) or getattr(hf, "is_quantized", False)


def refuse_gaps(place: str | Path, wrong: Sequence[str]) -> None:
    """wrong: names of tensors that are missing, or that have another shape."""
    if wrong:
        raise InputError(
            f"The weights in {place} do not belong to its config: tensors missing or of another shape: {len(wrong)}, "
            f"the first {wrong[0]}."
        )


def refuse_odd_weights(hf: PreTrainedModel, name: str) -> None:
    """Every weight is finite and at most `LARGEST`; otherwise the tensor is named. One pass over the weights: the least
    and the greatest of a tensor are not finite if any of it is not."""
    for key, tensor in _floating(hf):
        if (largest := _largest(tensor)) <= LARGEST:
            continue
        odd = ~tensor.isfinite() if not tensor.isfinite().all() else tensor.abs() > LARGEST
        first = odd.nonzero()[0].tolist()
        found = tensor[tuple(first)].item()
        what = f"the largest that can be computed with is {LARGEST:.1e}" if largest < torch.inf else "expected numbers"
        raise InputError(
            f"The weights of {name} are damaged or were trained to nothing: {key} has {found:g} at {first} and {what} "
            f"({int(odd.sum()):,} of {odd.numel():,} such, in {str(tensor.dtype).removeprefix('torch.')}).\n"
            "Fetch or make them again; if they are finite in the file, load them in float32."
        )


def refuse_overflow(hf: PreTrainedModel, values: Tensor, what: str = "logits") -> None:
    """What was computed is finite; otherwise the tensor with the largest weights is named (weights are finite)."""
    if bool(values.isfinite().all()):
        return
    largest, key = max((_largest(tensor), key) for key, tensor in _floating(hf))
    raise InputError(
        f"The {what} of this {hf.config.model_type} model are not finite, though its weights are: numbers overflow on "
        f"the way. Its largest weights are in {key}: {largest:.1e}.\nSee to that tensor, or load it in float32."
    )


def _floating(hf: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    """Weights by name, those that are shared once."""
    seen: set[int] = set()
    for key, tensor in hf.state_dict().items():
        # (Of a model in memory some weights may be quantised.)
        if is_plain(tensor) and tensor.dtype in COMPUTED and tensor.numel() and tensor.data_ptr() not in seen:
            seen.add(tensor.data_ptr())
            yield key, tensor


def _largest(tensor: Tensor) -> float:
    """The largest absolute value; NaN counts as infinite."""
    low, high = (end.item() for end in tensor.aminmax())
    return max(-low, high) if low == low and high == high else torch.inf


@contextmanager
def quiet() -> Iterator[None]:
    """Inside the block transformers shows neither bars nor warnings of its own."""
    verbosity, bars = hf_logging.get_verbosity(), hf_logging.is_progress_bar_enabled()
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    try:
        yield
    finally:
        hf_logging.set_verbosity(verbosity)
        if bars:
            hf_logging.enable_progress_bar()
