"""What cannot be used is refused with exit code 2 and one or two lines that say why: no traceback, nothing on standard
output, nothing run that the input brought along."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from architectures import VOCAB, build
from command import Said, headscope, headscope_process
from conftest import word_tokenizer
from gguf_files import write_gguf
from safetensors.torch import load_file, save_file
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

import headscope as hs
from headscope.tasks import TASKS

WEIGHTS = "model.safetensors"


def refused(said: Said) -> str:
    """The message of a refusal that has the right form."""
    assert said.code == 2, said
    assert said.out == ""
    assert said.err.startswith("Error: ")
    # (Prompts that part are shown token by token, in three lines more.)
    assert len(said.err.splitlines()) in ((5,) if "  corrupt  " in said.err else (1, 2))
    assert max(map(len, said.err.splitlines())) < 500
    return said.err


@pytest.fixture
def folder(tiny, tmp_path: Path) -> Path:
    """A whole model, to be damaged."""
    return Path(shutil.copytree(tiny("llama-gqa"), tmp_path / "broken"))


def edit_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def cut(path: Path, length: int) -> None:
    path.write_bytes(path.read_bytes()[:length])


def no_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def no_weights(folder: Path) -> None:
    (folder / WEIGHTS).unlink()


def only_pickle(folder: Path) -> None:
    torch.save(load_file(folder / WEIGHTS), folder / "pytorch_model.bin")
    (folder / WEIGHTS).unlink()


def pickle_beside_other_tensors(folder: Path) -> None:
    torch.save(load_file(folder / WEIGHTS), folder / "pytorch_model.bin")
    (folder / WEIGHTS).rename(folder / "adapter_model.safetensors")


def own_code(folder: Path) -> None:
    edit_config(folder, model_type="mine", auto_map={"AutoConfig": "mine.C", "AutoModelForCausalLM": "mine.M"})
    (folder / "mine.py").write_text(f"open({str(folder / 'ran')!r}, 'w')\n")


def edit_tokenizer(folder: Path, **changes: Any) -> None:
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def own_tokenizer_code(folder: Path) -> None:
    edit_tokenizer(folder, auto_map={"AutoTokenizer": [None, "mine.T"]}, tokenizer_class="T")
    (folder / "mine.py").write_text(f"open({str(folder / 'ran')!r}, 'w')\n")


def lost_tensor(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def lost_shard(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    build("llama-gqa").save_pretrained(folder, max_shard_size="20KB")
    (folder / "model-00002-of-00005.safetensors").unlink()


def no_tokenizer(folder: Path) -> None:
    for path in folder.glob("tokenizer*"):
        path.unlink()


DAMAGE: list[tuple[Callable[[Path], Any], str]] = [
    (no_config, "has no config.json"),
    (no_weights, "has no weights: expected *.safetensors"),
    (only_pickle, "has weights only as pickle (pytorch_model.bin), which can run code"),
    (pickle_beside_other_tensors, "no file named model.safetensors"),
    (own_code, "brings its own Python code (trust_remote_code), which Headscope does not run"),
    (own_tokenizer_code, "has no tokenizer that can be read"),
    (lambda f: edit_config(f, model_type="mine"), "an architecture that this version of transformers does not know"),
    (lambda f: edit_config(f, model_type="t5"), "is no causal language model"),
    (lambda f: edit_config(f, num_attention_heads=5), "not a multiple of the number of attention heads (5)"),
    (lambda f: edit_config(f, hidden_size="wide"), "'hidden_size' expected int, got str"),
    (lambda f: edit_config(f, num_hidden_layers=3), "missing or of another shape: 9, the first model.layers.2."),
    (lambda f: edit_config(f, intermediate_size=40), "the first model.layers.0.mlp.down_proj.weight of another shape"),
    (
        lambda f: (f / "config.json").write_text("{not json"),
        "the config of a model, found bad JSON",
    ),
    (
        lambda f: (f / "config.json").write_bytes(b"\xff\xfe"),
        "the config of a model, found bad JSON",
    ),
    (lambda f: (f / "config.json").write_text("[1]"), "config.json must be an object, found a list"),
    (lambda f: cut(f / WEIGHTS, 30_000), "damaged or cut short"),
    (lambda f: cut(f / WEIGHTS, 100), "damaged or cut short"),
    (lambda f: cut(f / WEIGHTS, 0), "damaged or cut short"),
    (lambda f: (f / WEIGHTS).write_text("a text, no weights"), "damaged or cut short"),
    (lost_tensor, "another shape: 1, the first model.layers.1.mlp.up_proj.weight"),
    (lost_shard, "model-00002-of-00005.safetensors"),
    (no_tokenizer, "has no tokenizer that can be read"),
    (lambda f: (f / "tokenizer.json").write_text("{"), "has no tokenizer that can be read"),
    (lambda f: edit_tokenizer(f, model_max_length={}), "has no tokenizer that can be read"),
]


@pytest.mark.parametrize(("damage", "message"), DAMAGE, ids=[message[:40] for _, message in DAMAGE])
def test_damaged_folders(capfd, folder: Path, damage: Callable[[Path], Any], message: str):
    damage(folder)
    told = refused(headscope(capfd, "check", folder, "--task", "ioi"))
    assert message in told
    assert str(folder) in told
    assert not (folder / "ran").exists(), "code of the model was run"


def test_as_a_process_of_its_own(tmp_path: Path):
    """The same through a real exit code; cheap, because it is told before torch is imported."""
    said = headscope_process("heads", "nano", "--task", "ioi,ooi", "--out", tmp_path / "run", "--json")
    assert "Unknown task 'ooi'" in refused(said)
    assert not (tmp_path / "run").exists()


def test_own_code_beside_a_known_architecture_is_not_run(folder: Path):
    """transformers has this architecture itself and does not need the code."""
    own_code(folder)
    edit_config(folder, model_type="llama")
    assert hs.load(folder).n_heads == 4
    assert not (folder / "ran").exists()


@pytest.mark.parametrize("name", ["no-such-model", "nobody/nothing"])
def test_unknown_models(capfd, name: str):
    told = refused(headscope(capfd, "check", name, "--task", "ioi"))
    assert f"There is no model {name}" in told
    assert "Known: smollm2-135m, smollm2-135m-sparse, nano, nano-sparse, a folder, a GGUF file" in told


@pytest.mark.parametrize("name", ["./nothing", "/no/such/folder", "no/such/folder", "nothing.gguf", "two words"])
def test_missing_paths(capfd, name: str):
    assert f"There is no folder or file {name}" in refused(headscope(capfd, "check", name, "--task", "ioi"))


@pytest.mark.parametrize("content", ["This is a text, no model.", "GG", ""])
def test_a_text_instead_of_gguf(capfd, tmp_path: Path, content: str):
    (tmp_path / "text.gguf").write_text(content)
    told = refused(headscope(capfd, "check", tmp_path / "text.gguf", "--task", "ioi"))
    assert "text.gguf cannot be read as a GGUF model" in told
    (tmp_path / "text.txt").write_text(content)
    told = refused(headscope(capfd, "check", tmp_path / "text.txt", "--task", "ioi"))
    assert "text.txt is a file, but not a .gguf file" in told


def test_a_gguf_file_cut_short(capfd, tmp_path: Path):
    path = write_gguf(tmp_path / "tiny.gguf", build("llama-gqa"))
    whole = path.read_bytes()
    # In the header, in the metadata, in the list of tensors, in the tensors, and just before the end.
    for length in (10, 200, 1000, 2500, 5000, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        told = refused(headscope(capfd, "check", path, "--task", "ioi"))
        assert "tiny.gguf cannot be read as a GGUF model" in told
        assert "cut short" in told


@pytest.mark.parametrize("lost", ["blk.1.ffn_up.weight", "output_norm.weight", "token_embd.weight"])
def test_a_gguf_file_without_a_tensor(capfd, tmp_path: Path, lost: str):
    path = write_gguf(tmp_path / "tiny.gguf", build("llama-gqa"), leave_out=[lost])
    told = refused(headscope(capfd, "check", path, "--task", "ioi"))
    assert f"The weights in {path} do not belong to its config: tensors missing or of another shape: 1" in told


def test_a_gguf_file_of_an_unknown_architecture(capfd, tmp_path: Path):
    path = write_gguf(tmp_path / "tiny.gguf", build("llama-gqa"))
    path.write_bytes(path.read_bytes().replace(b"llama", b"lxxma"))
    assert "architecture lxxma is not supported" in refused(headscope(capfd, "check", path, "--task", "ioi"))


# Recurrent, attention of its own kind (twice), and attention in some layers only.
OUT_OF_REACH: dict[str, dict[str, Any]] = {
    "mamba": {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 4},
    "mpt": {"d_model": 32, "n_layers": 2, "n_heads": 4},
    "xlnet": {"d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48},
    "lfm2": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
             "intermediate_size": 48, "layer_types": ["conv", "full_attention"]},
}  # fmt: skip


@pytest.mark.parametrize("kind", OUT_OF_REACH)
def test_architectures_out_of_reach(capfd, tmp_path: Path, kind: str):
    config = CONFIG_MAPPING[kind](**{"vocab_size": VOCAB, **OUT_OF_REACH[kind]})
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    word_tokenizer().save_pretrained(tmp_path)
    told = refused(headscope(capfd, "check", tmp_path, "--task", "ioi"))
    assert f"cannot reach the heads of {kind}" in told
    assert "Covered are architectures that dispatch through transformers' AttentionInterface" in told


@pytest.mark.parametrize("command", ["check", "heads"])
def test_unknown_tasks(capfd, command: str):
    told = refused(headscope(capfd, command, "no-such-model-either", "--task", "ioi,ooi"))
    assert f"Unknown task 'ooi'. Known: {', '.join(TASKS)}" in told
    assert "--task is empty" in refused(headscope(capfd, command, "nano", "--task", " , "))


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--method", "guessing", "Unknown method 'guessing'. Known: patching"),
        ("--method", "", "--method is empty"),
        ("--format", "gif", "Unknown format 'gif'. Known: png"),
        ("--format", ",", "--format is empty"),
        ("--ranking", "alphabet", "Unknown ranking 'alphabet'. Known: task, prompt"),
        ("--ranking", "", "--ranking is empty"),
        ("--fill", "sand", "Unknown fill 'sand'. Known: corrupt"),
    ],
)
def test_unknown_words_for_heads(capfd, tmp_path: Path, option: str, value: str, message: str):
    words = ["heads", "nano", "--task", "ioi", "--n", "4", "--out", tmp_path / "run", option, value]
    assert message in refused(headscope(capfd, *words))


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--method", "guessing", "Unknown method 'guessing' for edges. Known: eap"),
        ("--split", "kv", "Unknown split 'kv'. Known: none, qkv"),
        ("--choice", "best", "Unknown choice 'best'. Known: top, greedy"),
        ("--format", "gif", "Unknown format 'gif'. Known: png"),
    ],
)
def test_unknown_words_for_edges(capfd, tmp_path: Path, option: str, value: str, message: str):
    """Told before the model is looked for, and before anything is written."""
    words = ["edges", "no-such-model", "--task", "ioi", "--n", "4", "--out", tmp_path / "run", option, value]
    assert message in refused(headscope(capfd, *words))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["check", "nano", "--task", "ioi", "--n", "0"], "--n"),
        (["heads", "nano", "--task", "ioi", "--n", "-3"], "--n"),
        (["heads", "nano", "--task", "ioi", "--n", "many"], "--n"),
        (["heads", "nano", "--task", "ioi", "--top", "0"], "--top"),
        (["heads", "nano"], "--task"),
        (["heads", "--task", "ioi"], "models"),
        (["heads", "nano", "--task", "ioi", "--colour", "red"], "--colour"),
        (["haeds", "nano"], "haeds"),
        (["list", "everything"], "everything"),
    ],
)
def test_wrong_usage(capfd, words: list[str], message: str):
    """Typer's own words, in its own form."""
    said = headscope(capfd, *words)
    assert (said.code, said.out) == (2, "")
    assert message in said.err
    assert "Usage:" in said.err
    assert "Traceback" not in said.err


def test_no_prompts_are_refused_in_python_as_well(nano: hs.Model):
    for make in TASKS.values():
        with pytest.raises(hs.InputError, match="at least 1"):
            make(nano.tokenizer, n=0)


PAIR = {"clean": "the cat", "corrupt": "the dog", "answers": " a", "wrong": " b"}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{not json}", "own.jsonl, line 2: expected one JSON object, found bad JSON"),
        ('{"clean": "the cat"}', 'own.jsonl, line 2: "corrupt" is missing'),
        (json.dumps({**PAIR, "corrupt": "the dog and the dog"}), "own.jsonl, line 2: clean and corrupt must have"),
    ],
)
def test_malformed_tasks(capfd, tmp_path: Path, line: str, message: str):
    path = tmp_path / "own.jsonl"
    path.write_text(f"\n{line}\n")
    for command in ("check", "heads"):
        words = [command, "nano", "--task", path, *(["--out", tmp_path / "run"] if command == "heads" else [])]
        assert message in refused(headscope(capfd, *words))


def test_a_missing_task_file(capfd, tmp_path: Path):
    said = headscope(capfd, "check", "nano", "--task", tmp_path / "none.jsonl")
    assert "none.jsonl: cannot be read (No such file" in refused(said)


HEADS = ("heads", "nano", "--task", "ioi", "--n", "4", "--draws", "0", "--format", "png")


def test_out_is_a_file(capfd, tmp_path: Path):
    (tmp_path / "mine").write_text("mine")
    told = refused(headscope(capfd, *HEADS, "--out", tmp_path / "mine"))
    assert "mine is a file; --out needs a folder" in told
    assert (tmp_path / "mine").read_text() == "mine"


def test_out_is_a_foreign_folder(capfd, tmp_path: Path):
    (tmp_path / "mine").write_text("mine")
    assert "is not empty and holds no run" in refused(headscope(capfd, *HEADS, "--out", tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_out_cannot_be_written(capfd, tmp_path: Path):
    """The surroundings are at fault here, hence the other exit code."""
    (tmp_path / "file").write_text("")
    said = headscope(capfd, *HEADS, "--out", tmp_path / "file" / "run")
    assert (said.code, said.out) == (1, "")
    assert said.err.startswith("Error: Cannot write ")
    assert len(said.err.splitlines()) == 1


def test_out_holds_another_run(capfd, tmp_path: Path):
    out = tmp_path / "run"
    assert headscope(capfd, *HEADS, "--out", out).code == 0
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    told = refused(headscope(capfd, *HEADS, "--out", out, "--seed", "1"))
    assert "holds a run with other settings: seed 0 there, 1 now" in told
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_a_model_without_effect(capfd, tmp_path: Path):
    """All weights zero: there is nothing to explain."""
    zero = hs.load("nano")
    with torch.no_grad():
        for parameter in zero.hf.parameters():
            parameter.zero_()
    zero.hf.save_pretrained(tmp_path / "zero")
    zero.tokenizer.save_pretrained(tmp_path / "zero")
    words = ("heads", tmp_path / "zero", *HEADS[2:], "--out", tmp_path / "run")
    assert "there is no effect to explain" in refused(headscope(capfd, *words))
    said = headscope(capfd, "check", tmp_path / "zero", "--task", "ioi", "--n", "4")
    assert said.code == 0
    assert said.err.startswith("Note: zero does not do ioi: accuracy 0.00")
    assert len(said.err.splitlines()) == 1


def test_a_misspelt_model_does_not_spoil_the_folder(capfd, tmp_path: Path):
    out = tmp_path / "run"
    refused(headscope(capfd, "heads", "nanoo", *HEADS[2:], "--out", out))
    assert headscope(capfd, *HEADS, "--out", out).code == 0
