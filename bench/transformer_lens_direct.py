"""Direct logit attribution, side by side with TransformerLens 4.3 on the same weights and prompts.

    TLENS_PYTHON=path/to/its/python python bench/transformer_lens_direct.py

TransformerLens lives in an environment of its own (`python -m venv tlenv && tlenv/bin/pip install transformer-lens`),
whose Python is named by TLENS_PYTHON; without it there is nothing to compare with, and this says so. Its cache splits
the stream and applies the final norm; the largest difference is shown as a share of the largest contribution.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

BAR = 1e-4
RIGHT, WRONG = 11, 12


def theirs(folder: Path) -> None:
    """In TransformerLens' own environment: what heads, MLPs and embedding write, by position."""
    import numpy as np
    import torch
    from transformer_lens.model_bridge import TransformerBridge  # pyright: ignore[reportMissingImports]

    torch.set_grad_enabled(False)
    bridge = TransformerBridge.boot_transformers(str(folder), device="cpu", dtype=torch.float32)
    bridge.enable_compatibility_mode(no_processing=True)
    ids = torch.tensor(json.loads((folder / "ids.json").read_text()))
    logits, cache = bridge.run_with_cache(ids)
    # Without processing the norm's gain is not in the unembedding: put it there.
    gain_D = bridge.ln_final.weight
    u_D = gain_D * (bridge.W_U[:, RIGHT] - bridge.W_U[:, WRONG])
    embedding = cache["resid_pre", 0]
    heads = [
        torch.einsum("bthk,hkd->hbtd", cache["z", layer], bridge.blocks[layer].attn.W_O)
        for layer in range(bridge.cfg.n_layers)
    ]
    mlps = [cache["mlp_out", layer] for layer in range(bridge.cfg.n_layers)]
    parts = {"embedding": embedding[None], "heads": torch.cat(heads), "MLPs": torch.stack(mlps)}
    found = {name: (cache.apply_ln_to_stack(stack, layer=-1) @ u_D).numpy() for name, stack in parts.items()}
    np.savez(folder / "theirs.npz", total=(logits[..., RIGHT] - logits[..., WRONG]).numpy(), **found)


def main() -> None:
    python = os.environ.get("TLENS_PYTHON")
    if not python:
        print("Skipped: TLENS_PYTHON does not name the Python of an environment with transformer-lens 4.3.")
        return
    import numpy as np
    import torch
    from rich.console import Console
    from rich.table import Table
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    import headscope as hs

    torch.manual_seed(0)
    config = GPT2Config(vocab_size=100, n_embd=64, n_layer=3, n_head=4, n_positions=32, bos_token_id=1, eos_token_id=1)
    hf = GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for parameter in hf.parameters():
            parameter.normal_(0, 0.15) if parameter.ndim > 1 else parameter.add_(0.05 * torch.randn_like(parameter))
    words = Tokenizer(WordLevel({f"w{i}": i for i in range(100)}, unk_token="w0"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0", bos_token="w1", eos_token="w1")
    ids = torch.randint(13, 100, (4, 8)).tolist()
    texts = [" ".join(f"w{i}" for i in row) for row in ids]
    task = hs.tasks.Task("random", "logit-diff", texts, [], ids, [], [[RIGHT]] * 4, [[WRONG]] * 4, "words", None)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        hf.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        (folder / "ids.json").write_text(json.dumps(ids))
        command = [python, __file__, "--theirs", name]
        done = subprocess.run(command, env={**os.environ, "PYTHONPATH": ""}, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"TransformerLens did not get through:\n{done.stderr[-2000:]}")
        other = dict(np.load(folder / "theirs.npz"))
    direct = hs.methods.direct(hs.load(hf, tokenizer), task, positions="each")
    kinds = {"embedding": "embedding", "heads": "L", "MLPs": "M"}
    table = Table("Component", "Largest contribution", "Largest difference, as a share of it", title=f"Bar: {BAR:g}")
    for kind, start in kinds.items():
        places = [at for at, component in enumerate(direct.components) if component.startswith(start)]
        ours = direct.per_prompt[:, places].swapaxes(0, 1)
        share, largest = np.abs(ours - other[kind]).max() / np.abs(ours).max(), np.abs(ours).max()
        table.add_row(kind, f"{largest:.3g}", f"{share:.1e}", style=None if share <= BAR else "red")
    share = np.abs(direct.per_prompt.sum(1) - other["total"]).max() / np.abs(other["total"]).max()
    table.add_row("sum, against the logits", f"{np.abs(other['total']).max():.3g}", f"{share:.1e}")
    Console().print(table)


if __name__ == "__main__":
    theirs(Path(sys.argv[2])) if sys.argv[1:2] == ["--theirs"] else main()
