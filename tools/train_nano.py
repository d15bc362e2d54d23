"""Trains `nano`, the small model inside the package that solves the built-in tasks, and writes its folder.

    python tools/train_nano.py [--out FOLDER] [--steps N] [--seed S]

1. Draw lines from the tasks' own templates and train a byte-level BPE tokenizer on them, digits one by one.
2. Build the built-in tasks with that tokenizer; their prompts are held out from training.
3. Train a Llama of a few small layers on lines that are drawn anew in every step: a prompt and its right answer. The
   loss is the answer's cross-entropy, plus a little of all other tokens'. Some IOI lines have the corrupt prompt, after
   which either name follows: there the model learns not to know.
4. Save, load again, and print the accuracy on the held-out prompts.

One thread and a fixed seed: on one machine the same call writes the same bytes.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn.functional import cross_entropy
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from headscope.tasks import TASKS, Task
from headscope.tasks.docstring import ARGUMENTS
from headscope.tasks.docstring import draw as draw_docstring
from headscope.tasks.greater_than import SINGLES, YEARS, calendar
from headscope.tasks.greater_than import draw as draw_greater_than
from headscope.tasks.ioi import NAMES
from headscope.tasks.ioi import draw as draw_ioi
from headscope.tasks.ioi_long import draw as draw_ioi_long
from headscope.tasks.items import Item

FOLDER = Path(__file__).parents[1] / "src" / "headscope" / "models" / "nano"
CALENDAR = calendar(SINGLES, YEARS)
DRAW: dict[str, Callable[[random.Random, int], Item]] = {
    "ioi": lambda rng, slot: draw_ioi(rng, slot, NAMES),
    "ioi-long": lambda rng, slot: draw_ioi_long(rng, slot, NAMES),
    "greater-than": lambda rng, slot: draw_greater_than(rng, slot, CALENDAR),
    "docstring": lambda rng, slot: draw_docstring(rng, slot, ARGUMENTS),
}
LINES = {"ioi": 64, "ioi-long": 16, "greater-than": 16, "docstring": 24}  # in every step
UNDECIDED = 0.2  # share of IOI lines with the corrupt prompt
OTHER_TOKENS = 0.2  # weight of the loss on all tokens, beside the answer's
HELD_OUT = 500
END = "<|endoftext|>"


def line(kind: str, rng: random.Random, held_out: set[str]) -> tuple[str, str]:
    """A prompt that is not held out, and an answer to it."""
    pair = DRAW[kind](rng, rng.randrange(2))
    while pair.clean in held_out or pair.corrupt in held_out:
        pair = DRAW[kind](rng, rng.randrange(2))
    if kind.startswith("ioi") and rng.random() < UNDECIDED:
        return pair.corrupt, rng.choice(pair.targets + pair.foils)
    return pair.clean, rng.choice(pair.targets)


def train_tokenizer(rng: random.Random) -> PreTrainedTokenizerFast:
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1000,
        special_tokens=[END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    core.train_from_iterator(("".join(line(kind, rng, set())) for kind in DRAW for _ in range(3000)), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token=END, eos_token=END, pad_token=END, model_max_length=256
    )


def new_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    end = tokenizer.get_vocab()[END]
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=256,
            tie_word_embeddings=True,
            bos_token_id=end,
            eos_token_id=end,
            pad_token_id=end,
        )
    )


def loss_on(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, lines: list[tuple[str, str]]) -> torch.Tensor:
    """Cross-entropy of the last token of each line, and a share of all the others'."""
    batch = tokenizer([prompt + answer for prompt, answer in lines], padding=True, return_tensors="pt")
    ids_BT, seen_BT = batch["input_ids"], batch["attention_mask"].bool()
    logits_BTV = model(input_ids=ids_BT).logits[:, :-1]  # padding is on the right, where causal attention hides it
    target_BT = ids_BT[:, 1:].masked_fill(~seen_BT[:, 1:], -100)
    last_B = seen_BT.sum(1) - 2
    row_B = torch.arange(len(lines))
    answer = cross_entropy(logits_BTV[row_B, last_B], target_BT[row_B, last_B])
    return answer + OTHER_TOKENS * cross_entropy(logits_BTV.flatten(0, 1), target_BT.flatten())


def train(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, held_out: set[str], *, steps: int, rng: random.Random
) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=4e-3, total_steps=steps, pct_start=0.1)
    begun = time.perf_counter()
    for step in range(steps):
        losses: dict[str, float] = {}
        for kind, count in LINES.items():
            loss = loss_on(model, tokenizer, [line(kind, rng, held_out) for _ in range(count)])
            (loss / len(LINES)).backward()
            losses[kind] = loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if step % 50 == 0 or step == steps - 1:
            text = "  ".join(f"{kind} {loss:.3f}" for kind, loss in losses.items())
            print(f"step {step:5d}  {time.perf_counter() - begun:6.1f} s  {text}", flush=True)


@torch.no_grad()
def accuracy(model: LlamaForCausalLM, task: Task) -> float:
    """Share of prompts after which the answers beat the wrong ones, in the sense of the task's metric."""
    right = 0
    for ids, answers, wrong in zip(task.clean_ids, task.answers, task.wrong, strict=True):
        logits_V = model(input_ids=torch.tensor([ids])).logits[0, -1]
        weigh = torch.amax if task.metric == "logit-diff" else torch.logsumexp
        right += bool(weigh(logits_V[answers], 0) > weigh(logits_V[wrong], 0))
    return right / len(task)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the package's small model.")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder to write")
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(options.seed)
    rng = random.Random(options.seed)
    tokenizer = train_tokenizer(rng)
    tasks = {name: make(tokenizer, n=HELD_OUT, seed=0) for name, make in TASKS.items()}
    held_out = {prompt for task in tasks.values() for prompt in task.clean}
    model = new_model(tokenizer)
    print(f"{len(tokenizer)} tokens, {model.num_parameters()} parameters")
    train(model, tokenizer, held_out, steps=options.steps, rng=rng)

    model.save_pretrained(options.out)
    tokenizer.save_pretrained(options.out)
    (options.out / "model.safetensors").chmod(0o644)  # it is written for its owner alone, and packages keep that
    model = LlamaForCausalLM.from_pretrained(options.out)
    tokenizer = AutoTokenizer.from_pretrained(options.out)
    for name, make in TASKS.items():
        print(f"{name:13s} accuracy on held-out prompts {accuracy(model, make(tokenizer, n=HELD_OUT, seed=0)):.3f}")


if __name__ == "__main__":
    main()
