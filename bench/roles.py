"""What one update of head gating costs per gate matrix, against the published package `nam-causal-head-gating`, on the
same small Llama-shaped model with random weights and the same prompts: both in turn, in one run.

    python -m venv PEER; PEER/bin/pip install torch==2.13.0 nam-causal-head-gating
    python bench/roles.py PEER/bin/python

The package runs in its own process and environment, fed over a pipe, so that the two never run at once.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from shapes import ROUNDS
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from headscope.models import Model
from headscope.models.attention import install
from headscope.running.gates import Fit, gate_gradient
from headscope.tasks import Task

SHAPE = {
    "vocab_size": 32000, "hidden_size": 288, "intermediate_size": 768, "num_hidden_layers": 6, "num_attention_heads": 6,
}  # fmt: skip
PROMPTS, TOKENS, TARGET, MASKS = 8, 24, 2, 4
BAR = 3.0

PEER = """
import json, sys, time, torch
from transformers import AutoModelForCausalLM
from causal_head_gating import CHG
torch.set_num_threads(1)
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32).eval()
for parameter in model.parameters():
    parameter.requires_grad = False
given = json.load(open(sys.argv[2]))
ids, target, masks = torch.tensor(given["ids"]), given["target"], given["masks"]
loss = torch.zeros_like(ids, dtype=torch.bool)
loss[:, -target:] = True
chg = CHG(model)
logits = chg.create_masks(masks)
def update():
    log = chg.get_logp(logits.sigmoid(), ids, loss, agg="mean")
    (-log.mean()).backward()
    logits.grad = None
update()
print("ready", flush=True)
for _ in sys.stdin:
    began = time.perf_counter()
    update()
    print(time.perf_counter() - began, flush=True)
"""


def main(peer_python: str) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    hf = LlamaForCausalLM(LlamaConfig.from_dict({**SHAPE, "tie_word_embeddings": True})).eval()
    ids = torch.randint(3, SHAPE["vocab_size"], (PROMPTS, TOKENS + TARGET)).tolist()
    with tempfile.TemporaryDirectory() as folder:
        hf.save_pretrained(folder)
        Path(folder, "given.json").write_text(json.dumps({"ids": ids, "target": TARGET, "masks": MASKS}))
        words = [peer_python, "-c", PEER, folder, str(Path(folder, "given.json"))]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as peer:
            assert peer.stdin is not None
            assert peer.stdout is not None
            if peer.stdout.readline().strip() != "ready":
                sys.exit(f"{peer_python} cannot run nam-causal-head-gating.")
            ratios = compare(ours(hf, ids), lambda: ask(peer))
            peer.stdin.close()
    middle = statistics.median(ratios)
    print(
        f"nam-causal-head-gating takes {middle:.1f}x as long per update and mask ({min(ratios):.1f} to "
        f"{max(ratios):.1f}, {len(ratios)} rounds; bar: at least {BAR:g}x). {MASKS} masks, {PROMPTS} prompts of "
        f"{TOKENS} tokens with targets of {TARGET}, 6 layers of width 288, 32,000 tokens, float32, one thread."
    )


def ours(hf: LlamaForCausalLM, ids: list[list[int]]) -> Callable[[], float]:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel({"a": 0}, unk_token="a")), pad_token="a")
    model = Model("llama-shape", hf, tokenizer, install(hf))
    prompts, targets, texts = [row[:TOKENS] for row in ids], [row[TOKENS:] for row in ids], [""] * PROMPTS
    first = [target[:1] for target in targets]
    task = Task("bench", "log-prob", texts, [], prompts, [], first, [[]] * PROMPTS, "none", 0, targets=targets)
    fit = Fit.start(model, list(range(MASKS)))
    hf.requires_grad_(False)

    def update() -> float:
        began = time.perf_counter()
        gate_gradient(model, task, fit.m_CLH, [list(range(PROMPTS))] * MASKS)
        return time.perf_counter() - began

    update()
    return update


def ask(peer: subprocess.Popen) -> float:
    assert peer.stdin is not None
    assert peer.stdout is not None
    peer.stdin.write("go\n")
    peer.stdin.flush()
    return float(peer.stdout.readline())


def compare(mine: Callable[[], float], theirs: Callable[[], float]) -> list[float]:
    """Their time over mine, each of theirs between two of mine."""
    ratios, before = [], mine()
    for _ in range(max(ROUNDS, 7)):
        other, after = theirs(), mine()
        ratios.append(other / ((before + after) / 2))
        before = after
    return ratios


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
