"""Direct logit attribution, side by side with TransformerLens 4.3 on the same weights and prompts.

    TLENS_PYTHON=path/to/its/python python bench/transformer_lens_direct.py

TransformerLens lives in an environment of its own (`python -m venv tlenv && tlenv/bin/pip install transformer-lens`),
whose Python is named by TLENS_PYTHON; without it there is nothing to compare with, and this says so. Its cache splits
the stream and applies the final norm; the largest difference is shown as a share of the largest contribution.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from transformer_lens_peer import ask, peer_python, random_gpt2

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
    python = peer_python()
    if python is None:
        return
    import numpy as np
    import torch
    from rich.console import Console
    from rich.table import Table

    import headscope as hs

    hf, tokenizer = random_gpt2()
    ids = torch.randint(13, 100, (4, 8)).tolist()
    texts = [" ".join(f"w{i}" for i in row) for row in ids]
    task = hs.tasks.Task("random", "logit-diff", texts, [], ids, [], [[RIGHT]] * 4, [[WRONG]] * 4, "words", None)
    other = ask(python, __file__, hf, tokenizer, ids)
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
