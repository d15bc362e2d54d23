"""A small transformer learns to add two-digit numbers, dense and then with sparse attention; a picture sets what their
heads read side by side, and the circuits that carry the one are counted in both.

    python examples/addition.py --out addition          (a few minutes on one core)
    python examples/addition.py --out addition --quick  (seconds, and it has learned nothing)

A problem is nine characters, such as 47+35=082. The model is trained on what stands behind the equals sign.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from safetensors.torch import save_file
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import headscope as hs

LENGTH, ANSWER, END = 9, 3, "<end>"
KEYS = ("tens", "ones", "+", "tens", "ones", "=", "1st", "2nd")
QUERIES = ("hundreds", "tens", "ones")  # what is said at "=", and behind the first and second digit of the answer


def problem(a: int, b: int) -> str:
    return f"{a:02}+{b:02}={a + b:03}"


def new_tokenizer() -> PreTrainedTokenizerFast:
    core = Tokenizer(models.WordLevel({sign: i for i, sign in enumerate([*"0123456789+=", END])}, unk_token="="))
    core.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    core.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token=END, pad_token=END)


def train(ids_NT: torch.Tensor, steps: int, batch: int = 256) -> LlamaForCausalLM:
    """The dense model: four layers of four heads."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=13, hidden_size=64, intermediate_size=128, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=16, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.98), weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=steps, pct_start=0.1)
    for step in range(steps):
        ids_BT = ids_NT[torch.randint(len(ids_NT), (batch,))]
        logits_BTV = model(input_ids=ids_BT).logits[:, -ANSWER - 1 : -1]
        loss = cross_entropy(logits_BTV.flatten(0, 1), ids_BT[:, -ANSWER:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 200 == 0 or step == steps - 1:
            print(f"step {step:5d}  loss {loss.item():.4f}", flush=True)
    return model.eval()


@torch.no_grad()
def accuracy(model: hs.Model, ids_NT: torch.Tensor) -> float:
    """Share of problems with all digits of the sum right."""
    said_NT = model.hf(input_ids=ids_NT).logits[:, -ANSWER - 1 : -1].argmax(-1)
    return (said_NT == ids_NT[:, -ANSWER:]).all(-1).float().mean().item()


def carry_pairs(held_out: list[tuple[int, int]], count: int) -> list[dict]:
    """Pairs for a task: only the ones of the second number differ, so that the tens of the sum hang on the carry."""
    pairs = []
    for a, b in held_out:
        other = b - b % 10  # no ones, no carry
        if a % 10 + b % 10 >= 10 and (a + b) // 100 == (a + other) // 100:
            clean, corrupt = problem(a, b), problem(a, other)
            pairs.append({"clean": clean[:7], "corrupt": corrupt[:7], "answers": [clean[7]], "wrong": [corrupt[7]]})
    return pairs[:count]


@torch.no_grad()
def reading(model: hs.Model, ids_NT: torch.Tensor) -> np.ndarray:
    """What passes on the mean from each position to those that say the sum, (L, H, 3, 8)."""
    with hs.record(model, patterns=True) as recording:
        model.hf(input_ids=ids_NT[:, :-1], use_cache=False)
    return np.stack([recording.pattern(l)[:, :, -ANSWER:].mean(0).cpu().numpy() for l in range(model.n_layers)])


def draw(found: dict[str, tuple[np.ndarray, list[tuple[int, int]], float]], file: Path) -> None:
    """Both models side by side: a small map for each head, framed where the head belongs to the carry's circuit."""
    figure = Figure(figsize=(12.5, 5.0), layout="constrained")
    halves: Any = figure.subfigures(1, 2)
    for part, (title, (read_LHTS, circuit, edges)) in zip(halves, found.items(), strict=True):
        part.suptitle(f"{title}: {edges:.2f} open edges per query and head", fontsize=10)
        L, H = read_LHTS.shape[:2]
        for (layer, head), axes in np.ndenumerate(part.subplots(L, H)):
            axes.imshow(read_LHTS[layer, head], cmap="Blues", vmin=0, vmax=1, aspect="auto")
            axes.set_xticks(range(8), KEYS if layer == L - 1 else [""] * 8, rotation=90, fontsize=6)
            axes.set_yticks(range(3), QUERIES if head == 0 else [""] * 3, fontsize=6)
            axes.set_title(f"{layer}.{head}", fontsize=6, pad=2)
            axes.tick_params(length=1)
            colour, width = ("#D55E00", 2.0) if (layer, head) in circuit else ("0.7", 0.5)
            for spine in axes.spines.values():
                spine.set(color=colour, linewidth=width)
    figure.savefig(file, dpi=140)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("addition"), help="folder for both models and the picture")
    parser.add_argument("--quick", action="store_true", help="a few steps of everything, to see that it runs")
    options = parser.parse_args()
    out, steps, sparse_steps = options.out, *((20, 20) if options.quick else (800, 500))
    torch.set_num_threads(1)

    tokenizer = new_tokenizer()
    problems = [(a, b) for a in range(100) for b in range(100)]
    random.Random(0).shuffle(problems)
    ids_NT = torch.tensor(tokenizer([problem(a, b) for a, b in problems])["input_ids"])
    held_NT, train_NT = ids_NT[:1000], ids_NT[1000:]

    train(train_NT, steps).save_pretrained(out / "dense")
    tokenizer.save_pretrained(out / "dense")
    dense = hs.load(out / "dense")

    # The sparse model: the same weights, trained on until few attention edges are open, to say what the dense one says.
    shutil.rmtree(out / "sparse", ignore_errors=True)
    save_file({"ids": ids_NT.int()}, out / "problems.safetensors")
    history = hs.sparsify(
        dense, out=out / "sparse", text=str(out / "problems.safetensors"), sequences=9000, held_out=1000, length=LENGTH,
        steps=sparse_steps, batch=64, positions=1.0, lr=2e-3, lr_end=5e-5, penalty_weight=0.1, rate=0.0,
        penalty="edges", temperature=1.0, temperature_end=0.4, offset_lr=3.0, average=20,
        every=max(20, sparse_steps // 4),
    )  # fmt: skip
    sparse = hs.load(out / "sparse")

    pairs = out / "carry.jsonl"
    count = 12 if options.quick else 100
    pairs.write_text("".join(json.dumps(pair) + "\n" for pair in carry_pairs(problems[:1000], count)))
    found, by_heads, by_edges = {}, [], []
    for title, model in (("dense", dense), ("sparse", sparse)):
        task = hs.tasks.make_task(str(pairs), model.tokenizer, n=count, seed=0)
        scores = hs.methods.patching(model, task)
        by_heads.append(hs.sweep(model, task, scores))
        by_edges.append(hs.sweep(model, task, hs.methods.eap_ig(model, task)))
        enough = by_heads[-1].k[by_heads[-1].explained >= 0.9]
        circuit = scores.ranked()[: int(min(enough, default=scores.values.size))]
        edges = (LENGTH + 1) / 2 if model is dense else history[-1]["edges_per_query"]
        found[title] = reading(model, held_NT), circuit, edges
        print(
            f"{title}: {accuracy(model, held_NT):.1%} of held-out sums right, {edges:.2f} open edges per query and head"
        )
        print(f"  the carry: {len(circuit)} of {scores.values.size} heads explain 90 %")
    print(f"heads, dense against sparse: {hs.multiplier(*by_heads, threshold=0.9)}")
    print(f"edges, dense against sparse: {hs.multiplier(*by_edges, threshold=0.9)}")
    draw(found, out / "addition.png")
    print(f"Picture: {out / 'addition.png'}")


if __name__ == "__main__":
    main()
