"""COMET's own package in its own environment, on a small checkpoint made here.

The environment (1.4 GB) is not made by a test run: these tests use one that `headscope comet setup` left in the cache,
and are skipped without it. HEADSCOPE_TEST_COMET=1 makes it first.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest

import headscope as hs
from headscope.functions.comet import Comet, Environment, setup

# Runs in COMET's environment: a random XLM-R of two layers with a tokenizer of single letters, as a COMET checkpoint.
BUILD = """
import sys, torch, yaml, pytorch_lightning
from pathlib import Path
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import XLMRobertaConfig, XLMRobertaModel, XLMRobertaTokenizerFast
from comet.models import RegressionMetric

folder = Path(sys.argv[1])
letters = ["<s>", "<pad>", "</s>", "<unk>", *"\\u2581abcdefghijklmnopqrstuvwxyz0123456789", "<mask>"]
plain = Tokenizer(models.Unigram([(letter, -float(i)) for i, letter in enumerate(letters)], unk_id=3))
plain.pre_tokenizer = pre_tokenizers.Metaspace()
XLMRobertaTokenizerFast(tokenizer_object=plain).save_pretrained(folder / "encoder")
torch.manual_seed(0)
config = XLMRobertaConfig(vocab_size=len(letters), hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
                          intermediate_size=32, max_position_embeddings=80, type_vocab_size=1)
encoder = XLMRobertaModel(config, add_pooling_layer=False)
torch.nn.init.normal_(encoder.embeddings.word_embeddings.weight, std=1.0)
encoder.save_pretrained(folder / "encoder")
hparams = dict(encoder_model="XLM-RoBERTa", pretrained_model=str(folder / "encoder"), layer="mix", pool="avg",
               hidden_sizes=[32, 16], activations="Tanh", layer_transformation="softmax", layer_norm=False,
               local_files_only=True)
model = RegressionMetric(**hparams)
(folder / "checkpoints").mkdir()
torch.save({"state_dict": model.state_dict(), "hyper_parameters": dict(model.hparams),
            "pytorch-lightning_version": pytorch_lightning.__version__}, folder / "checkpoints" / "model.ckpt")
(folder / "hparams.yaml").write_text(yaml.safe_dump({**hparams, "class_identifier": "regression_metric"}))
"""

GOLD = ["paris", "red hat", "12", "the kitchen", "tuesday", "a blue cup"]
GIVEN = ["paris", "blue hat", "11", "kitchen", "it is monday or so", "cup"]
UNMASKED = ["paris", "red hat", "13", "kitchen", "monday", "a red cup"]
SURROUNDINGS = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}


@pytest.fixture(scope="module")
def environment() -> Environment:
    found = Environment.here()
    if not found.ready:
        if not os.environ.get("HEADSCOPE_TEST_COMET"):
            pytest.skip("COMET's environment is not in the cache; HEADSCOPE_TEST_COMET=1 makes it (1.4 GB)")
        try:
            setup(None)
        except hs.SetupError as error:
            pytest.skip(f"COMET's environment cannot be made here: {error}")
    return found


@pytest.fixture(scope="module")
def checkpoint(environment: Environment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("comet")
    subprocess.run([environment.python, "-W", "ignore", "-c", BUILD, folder], check=True, env=SURROUNDINGS)
    return folder / "checkpoints" / "model.ckpt"


def by_comet_score(environment: Environment, checkpoint: Path, folder: Path) -> list[float]:
    """What the package's own command says of the same texts."""
    for name, texts in (("source", GOLD), ("given", GIVEN), ("reference", UNMASKED)):
        (folder / name).write_text("\n".join(texts) + "\n")
    command = [environment.python, "-W", "ignore", "-m", "comet.cli.score", "-s", "source", "-t", "given"]
    command += ["-r", "reference", "--gpus", "0", "--quiet", "--model", checkpoint, "--to_json", "scores.json"]
    subprocess.run(command, check=True, cwd=folder, env=SURROUNDINGS, capture_output=True)
    (rows,) = json.loads((folder / "scores.json").read_text()).values()
    return [row["COMET"] for row in rows]


def test_scores_are_those_of_the_package_and_survive_a_death(
    environment: Environment, checkpoint: Path, tmp_path: Path
):
    expected = by_comet_score(environment, checkpoint, tmp_path)
    assert len(set(np.round(expected, 4))) > 3, "the checkpoint must tell answers apart"
    with Comet(str(checkpoint)) as comet:
        np.testing.assert_allclose(comet.score(GOLD, GIVEN, UNMASKED), expected, atol=1e-5)
        os.kill(comet._process.pid, signal.SIGKILL)
        np.testing.assert_allclose(comet.score(GOLD, GIVEN, UNMASKED), expected, atol=1e-5)
        assert comet.restarts == 1
        os.kill(comet._process.pid, signal.SIGKILL)
        with pytest.raises(hs.SetupError, match="died twice"):
            comet.score(GOLD, GIVEN, UNMASKED)


def test_a_missing_checkpoint_is_told(environment: Environment, tmp_path: Path):
    with pytest.raises(hs.InputError, match="There is no COMET checkpoint"):
        Comet(str(tmp_path / "nothing.ckpt"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(hs.SetupError, match=r"could not be opened: .*no \.ckpt file"):
        Comet(str(tmp_path / "empty"))
