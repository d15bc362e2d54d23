"""Patching by position, side by side with TransformerLens 4.3 on the same weights and prompts.

    TLENS_PYTHON=path/to/its/python python bench/transformer_lens_sites.py

TransformerLens lives in an environment of its own (`python -m venv tlenv && tlenv/bin/pip install transformer-lens`),
whose Python is named by TLENS_PYTHON; without it there is nothing to compare with, and this says so. Its own functions
(`transformer_lens.patching`) are run; the largest difference is shown as a share of the site's largest score.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from transformer_lens_peer import ask, peer_python, random_gpt2

BAR = 1e-4
RIGHT, WRONG = 11, 12
# Their name of each site's function, and the order in which it gives its axes.
THEIRS = {
    "z": ("attn_head_out_by_pos", "layer position head"),
    "q": ("attn_head_q_by_pos", "layer position head"),
    "k": ("attn_head_k_by_pos", "layer position head"),
    "v": ("attn_head_v_by_pos", "layer position head"),
    "pattern": ("attn_head_pattern_by_pos", "layer head position"),
    "attn_out": ("attn_out", "layer position"),
    "mlp_out": ("mlp_out", "layer position"),
    "resid_pre": ("resid_pre", "layer position"),
    "resid_mid": ("resid_mid", "layer position"),
}


def theirs(folder: Path) -> None:
    """In TransformerLens' own environment: the metric under every patch, site by site."""
    import numpy as np
    import torch
    from transformer_lens import patching  # pyright: ignore[reportMissingImports]
    from transformer_lens.model_bridge import TransformerBridge  # pyright: ignore[reportMissingImports]

    torch.set_grad_enabled(False)
    bridge = TransformerBridge.boot_transformers(str(folder), device="cpu", dtype=torch.float32)
    bridge.enable_compatibility_mode(no_processing=True)
    ids = json.loads((folder / "ids.json").read_text())
    clean, corrupt = (torch.tensor(ids[side]) for side in ("clean", "corrupt"))

    def metric(logits: torch.Tensor) -> torch.Tensor:
        return (logits[:, -1, RIGHT] - logits[:, -1, WRONG]).mean()

    _, cache = bridge.run_with_cache(corrupt)
    found = {"clean": metric(bridge(clean)).numpy()}
    for site, (name, _) in THEIRS.items():
        # (What they call corrupted is the run that is patched: here the clean one.)
        found[site] = getattr(patching, f"get_act_patch_{name}")(bridge, clean, cache, metric).numpy()
    np.savez(folder / "theirs.npz", **found)  # pyright: ignore[reportArgumentType]


def main() -> None:
    python = peer_python()
    if python is None:
        return
    import numpy as np
    import torch
    from rich.console import Console
    from rich.table import Table

    import headscope as hs

    hf, tokenizer = random_gpt2()
    clean, corrupt = torch.randint(13, 100, (2, 4, 8)).tolist()
    texts = [" ".join(f"w{i}" for i in ids) for ids in clean]
    task = hs.tasks.Task(
        "random pairs", "logit-diff", texts, texts, clean, corrupt, [[RIGHT]] * 4, [[WRONG]] * 4, "words", None
    )
    table = Table("Site", "Largest score", "Largest difference, as a share of it", title=f"Bar: {BAR:g}")
    found = ask(python, __file__, hf, tokenizer, {"clean": clean, "corrupt": corrupt})
    model = hs.load(hf, tokenizer)
    for site, (_, axes) in THEIRS.items():
        ours = hs.methods.patching(model, task, site=site, positions="each")  # pyright: ignore[reportArgumentType]
        other = np.transpose(found["clean"] - found[site], [axes.split().index(axis) for axis in ours.axes])
        largest = np.abs(ours.values).max()
        share = np.abs(ours.values - other).max() / largest
        table.add_row(site, f"{largest:.3g}", f"{share:.1e}", style=None if share <= BAR else "red")
    Console().print(table)


if __name__ == "__main__":
    theirs(Path(sys.argv[2])) if sys.argv[1:2] == ["--theirs"] else main()
