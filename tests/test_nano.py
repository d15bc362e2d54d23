"""The package's small model, read by plain transformers: its size, its tasks, and that it solves them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import headscope
from headscope.tasks import TASKS
from headscope.tasks.docstring import ARGUMENTS
from headscope.tasks.ioi import NAMES
from headscope.tasks.items import single_tokens

FOLDER = Path(headscope.__file__).parent / "models" / "nano"
# The seed whose prompts tools/train_nano.py keeps out of training; their words and templates are the trained ones.
SEED = 0


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(FOLDER)


@pytest.fixture(scope="module")
def plain():
    return AutoModelForCausalLM.from_pretrained(FOLDER).eval()


def test_the_folder_is_small():
    names = {file.name for file in FOLDER.iterdir()}
    assert {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json"} <= names
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) < 2_000_000


def test_it_has_grouped_heads(plain):
    assert plain.config.num_key_value_heads < plain.config.num_attention_heads


def test_names_and_arguments_are_single_tokens(tokenizer):
    assert single_tokens("ioi", tokenizer, NAMES, after="One day,", least=3) == NAMES
    assert single_tokens("docstring", tokenizer, ARGUMENTS, after="(self,", least=10) == ARGUMENTS


@pytest.mark.parametrize("name", TASKS)
def test_it_solves_the_tasks(plain, tokenizer, name: str):
    task = TASKS[name](tokenizer, n=500, seed=SEED)
    assert len(set(task.clean)) == 500
    few = task.take(range(0, len(task), 5))
    batch = tokenizer(few.clean, padding=True, padding_side="right", return_tensors="pt")
    with torch.no_grad():
        logits_BTV = plain(input_ids=batch["input_ids"]).logits
    right = 0
    for i, (answers, wrong) in enumerate(zip(few.answers, few.wrong, strict=True)):
        next_V = logits_BTV[i, len(few.clean_ids[i]) - 1].softmax(-1)
        weigh = torch.amax if task.metric == "logit-diff" else torch.sum
        right += bool(weigh(next_V[answers], 0) > weigh(next_V[wrong], 0))
    assert right >= 0.95 * len(few)
