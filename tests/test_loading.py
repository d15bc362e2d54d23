"""What `load` accepts: folders, GGUF files, built-in names; and what its options do."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from architectures import build
from conftest import shared, word_tokenizer
from gguf import GGMLQuantizationType, dequantize, quantize
from gguf_files import write_gguf
from transformers import AutoModelForCausalLM
from transformers.utils import logging as hf_logging

import headscope as hs

IDS = torch.randint(3, 96, (2, 9), generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def logits(hf) -> torch.Tensor:
    return hf(IDS).logits


@pytest.fixture(scope="module")
def llama():
    return build("llama-gqa")


def test_a_folder(tiny, llama):
    folder = tiny("llama-gqa")
    model = hs.load(folder)
    assert (model.n_layers, model.n_heads, model.reach.way) == (2, 4, "interface")
    assert model.source == {"kind": "folder"}
    assert model.name == folder.name
    assert torch.equal(logits(model.hf), logits(llama))
    assert not model.hf.training
    assert model.tokenizer("w5 w7")["input_ids"] == [5, 7]


def test_a_folder_by_other_names(tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    shutil.copytree(tiny("llama-gqa"), tmp_path / "my model.v1.5")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path / "my model.v1.5")
    whole = hs.load(tmp_path / "my model.v1.5").fingerprint()
    for name in (".", "~/my model.v1.5", "../my model.v1.5/"):
        model = hs.load(name)
        assert model.name == "my model.v1.5"
        assert model.fingerprint() == whole


def test_shards(llama, tmp_path: Path):
    llama.save_pretrained(tmp_path, max_shard_size="20KB")
    word_tokenizer().save_pretrained(tmp_path)
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    assert torch.equal(logits(hs.load(tmp_path).hf), logits(llama))


def test_pickle_beside_safetensors_is_not_opened(tiny, llama, tmp_path: Path):
    shutil.copytree(tiny("llama-gqa"), tmp_path, dirs_exist_ok=True)
    (tmp_path / "pytorch_model.bin").write_bytes(b"no pickle at all")
    assert torch.equal(logits(hs.load(tmp_path).hf), logits(llama))


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
@pytest.mark.parametrize("add_bos", [True, False, None])
def test_a_gguf_file(llama, tmp_path: Path, kind: str, add_bos: bool | None):
    path = write_gguf(tmp_path / "tiny.gguf", llama, kind=kind, add_bos=add_bos)
    model = hs.load(path)
    assert (model.name, model.source) == ("tiny", {"kind": "gguf"})
    assert model.hf.dtype == torch.float32
    assert torch.equal(logits(model.hf), logits(llama))
    # A file that does not say follows llama.cpp: SentencePiece vocabularies begin with BOS, byte-level ones do not.
    bos = [1] if (kind == "llama" if add_bos is None else add_bos) else []
    assert model.tokenizer(" ab c")["input_ids"] == [*bos, 3, 94, 3, 6]
    assert model.tokenizer([" ab", " c"])["input_ids"] == [[*bos, 3, 94], [*bos, 3, 6]]


def test_a_quantised_gguf_file(llama, tmp_path: Path):
    model = hs.load(write_gguf(tmp_path / "tiny.gguf", llama, quantised=True))
    found, plain = (hf.state_dict()["model.layers.1.mlp.up_proj.weight"].numpy() for hf in (model.hf, llama))
    kind = GGMLQuantizationType.Q8_0
    np.testing.assert_array_equal(found, dequantize(quantize(plain, kind), kind))
    assert 0 < np.abs(found - plain).max() < 0.01


def test_a_gguf_file_with_tied_embeddings(llama, tmp_path: Path):
    """Without output.weight, llama.cpp reads the embedding in its place."""
    model = hs.load(write_gguf(tmp_path / "tiny.gguf", llama, leave_out=["output.weight"]))
    assert torch.equal(model.hf.state_dict()["lm_head.weight"], llama.state_dict()["model.embed_tokens.weight"])


def test_a_gguf_file_beside_another_model(tiny, llama, tmp_path: Path):
    """Config and tokenizer are the file's own, whatever lies in its folder."""
    shutil.copytree(tiny("gpt2"), tmp_path, dirs_exist_ok=True)
    model = hs.load(write_gguf(tmp_path / "tiny.gguf", llama))
    assert torch.equal(logits(model.hf), logits(llama))
    assert model.tokenizer("ab")["input_ids"] == [94]
    assert Path(model.tokenizer.name_or_path).name.startswith("tiny-")


def test_a_gguf_model_can_be_saved_and_loaded(llama, tmp_path: Path):
    first = hs.load(write_gguf(tmp_path / "tiny.gguf", llama, add_bos=True, quantised=True))
    first.hf.save_pretrained(tmp_path / "saved")
    first.tokenizer.save_pretrained(tmp_path / "saved")
    again = hs.load(tmp_path / "saved")
    assert torch.equal(logits(first.hf), logits(again.hf))
    assert again.tokenizer("ab")["input_ids"] == first.tokenizer("ab")["input_ids"] == [1, 94]


def test_nano(nano: hs.Model):
    assert (nano.name, nano.source["kind"]) == ("nano", "built-in")
    assert (nano.n_layers, nano.n_heads) == (4, 4)
    facts = nano.describe()
    assert facts.items() >= {"licence": "Apache-2.0", "architecture": "llama", "dtype": "float32"}.items()


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16", torch.float64])
def test_dtypes(tiny, llama, tmp_path: Path, dtype):
    wanted = dtype if isinstance(dtype, torch.dtype) else getattr(torch, dtype)
    gguf = write_gguf(tmp_path / "tiny.gguf", llama)
    for source in (tiny("llama-gqa"), gguf):
        model = hs.load(source, dtype=dtype)
        assert {parameter.dtype for parameter in model.hf.parameters()} == {wanted}
        torch.testing.assert_close(logits(model.hf).float(), logits(llama), atol=0.1, rtol=0.1)


def test_a_checkpoint_in_half_precision_is_float32_on_the_cpu(llama, tmp_path: Path):
    AutoModelForCausalLM.from_config(llama.config).bfloat16().save_pretrained(tmp_path)
    word_tokenizer().save_pretrained(tmp_path)
    assert hs.load(tmp_path, device="cpu").hf.dtype == torch.float32
    assert hs.load(tmp_path, device="cpu", dtype="bfloat16").hf.dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", ["floaty", "int8", "float8_e4m3fn", "", torch.int64])
def test_unknown_dtypes(dtype):
    with pytest.raises(hs.InputError, match=r"Unknown dtype .* Known: float32, float16, bfloat16, float64"):
        hs.load("nano", dtype=dtype)


def test_unknown_devices():
    with pytest.raises(hs.InputError, match=r"Unknown device 'floppy'\. Known: cpu, cuda"):
        hs.load("nano", device="floppy")
    with pytest.raises(hs.InputError, match="meta holds no numbers"):
        hs.load("nano", device="meta")
    with pytest.raises(hs.InputError, match="Device cuda:77 cannot be used here"):
        hs.load("nano", device="cuda:77")


def test_the_fingerprint_names_the_weights(tiny, llama, tmp_path: Path):
    first = hs.load(tiny("llama-gqa"))
    gguf = hs.load(write_gguf(tmp_path / "other.gguf", llama))
    assert first.fingerprint() == gguf.fingerprint(), "the same numbers, wherever they came from"
    assert hs.load(tiny("llama-gqa"), dtype="bfloat16").fingerprint() != first.fingerprint()
    with torch.no_grad():
        next(gguf.hf.parameters())[3, 4] += 1e-3
    assert gguf.fingerprint() != first.fingerprint()


def test_padding_is_on_the_right(tiny):
    model = hs.load(tiny("llama-gqa"))
    batch = model.encode(["w5 w6 w7", "w8"])
    assert batch["input_ids"].tolist() == [[5, 6, 7], [8, 0, 0]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]


@pytest.mark.parametrize("bars", [True, False])
def test_transformers_is_as_talkative_as_before(tiny, bars: bool):
    before = hf_logging.get_verbosity(), hf_logging.is_progress_bar_enabled()
    try:
        hf_logging.set_verbosity_info()
        (hf_logging.enable_progress_bar if bars else hf_logging.disable_progress_bar)()
        hs.load(tiny("llama-gqa"))
        assert (hf_logging.get_verbosity(), hf_logging.is_progress_bar_enabled()) == (logging.INFO, bars)
    finally:
        hf_logging.set_verbosity(before[0])
        (hf_logging.enable_progress_bar if before[1] else hf_logging.disable_progress_bar)()


def test_loading_says_nothing(tiny, llama, tmp_path: Path, capfd):
    gguf = write_gguf(tmp_path / "tiny.gguf", llama)
    capfd.readouterr()
    hs.load(tiny("llama-gqa"))
    hs.load(gguf)
    assert capfd.readouterr() == ("", "")


def test_a_real_folder():
    folder = shared("models", "stories260K")
    model = hs.load(folder)
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    inputs = model.encode(["Once upon a time, there was a"])
    with torch.no_grad():
        assert torch.equal(model.hf(**inputs).logits, plain(**inputs).logits)
