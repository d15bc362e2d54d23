"""Reading checkpoints quietly, and so that a gap in it is an error; transformers would fill it with random numbers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging as hf_logging

from headscope.errors import InputError


def read_weights(source: str | Path, **options: Any) -> PreTrainedModel:
    """The model in `source`, with every tensor of its config found there in the right shape."""
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        source, trust_remote_code=False, output_loading_info=True, ignore_mismatched_sizes=True, **options
    )
    hf, info = loaded
    other_shape = sorted(name for name, *_ in info["mismatched_keys"])
    wrong = sorted(info["missing_keys"]) + [f"{name} of another shape" for name in other_shape]
    if wrong:
        place = Path(source, options.get("gguf_file", ""))
        raise InputError(
            f"The weights in {place} do not belong to its config: tensors missing or of another shape: {len(wrong)}, "
            f"the first {wrong[0]}."
        )
    return hf.eval()


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
