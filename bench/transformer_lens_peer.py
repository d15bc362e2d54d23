"""What the comparisons with TransformerLens share: a random GPT-2 with a tokenizer of words, and the call of the peer.

The peer runs in an environment of its own, whose Python TLENS_PYTHON names.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any


def peer_python() -> str | None:
    """The peer's interpreter; says so where there is none."""
    python = os.environ.get("TLENS_PYTHON")
    if not python:
        print("Skipped: TLENS_PYTHON does not name the Python of an environment with transformer-lens 4.3.")
    return python


def random_gpt2() -> tuple[Any, Any]:
    """Model and tokenizer: 3 layers of 4 heads, 100 words."""
    import torch
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    torch.manual_seed(0)
    config = GPT2Config(vocab_size=100, n_embd=64, n_layer=3, n_head=4, n_positions=32, bos_token_id=1, eos_token_id=1)
    hf = GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for parameter in hf.parameters():
            parameter.normal_(0, 0.15) if parameter.ndim > 1 else parameter.add_(0.05 * torch.randn_like(parameter))
    words = Tokenizer(WordLevel({f"w{i}": i for i in range(100)}, unk_token="w0"))
    return hf, PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0", bos_token="w1", eos_token="w1")


def ask(python: str, script: str, hf: Any, tokenizer: Any, ids: Any) -> dict[str, Any]:
    """What the script's `theirs` saves, run by the peer's interpreter on this model and these token ids."""
    import numpy as np

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        hf.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        (folder / "ids.json").write_text(json.dumps(ids))
        command = [python, script, "--theirs", name]
        done = subprocess.run(command, env={**os.environ, "PYTHONPATH": ""}, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"TransformerLens did not get through:\n{done.stderr[-2000:]}")
        return dict(np.load(folder / "theirs.npz"))
