"""What a newcomer meets in the first hour, on a model of their own: what is said, and what is loaded."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer.main
from architectures import build
from command import OFFLINE, headscope, process
from conftest import word_tokenizer
from gguf_files import write_gguf
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

import headscope as hs
from headscope.cli import app
from headscope.models.builtin import builtin_folder
from headscope.progress import Bar, Lines, bar, clock, done
from headscope.records import Curve, Roles, spread
from headscope.runs.settings import Loaded
from headscope.studies import settings as studies


def logits_of(model: hs.Model) -> torch.Tensor:
    with torch.no_grad():
        return model.hf(**model.batch([[5, 6, 7, 8, 9]])).logits


@pytest.fixture
def lora(tmp_path: Path) -> tuple[Path, torch.Tensor]:
    """A plain LoRA folder, as peft writes it, of nano; and what the model in it computes."""
    from peft import LoraConfig, get_peft_model

    base: Any = AutoModelForCausalLM.from_pretrained(builtin_folder("nano"))
    model = get_peft_model(base, LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False))
    model.save_pretrained(str(tmp_path / "lora"))
    with torch.no_grad():
        return tmp_path / "lora", model(input_ids=torch.tensor([[5, 6, 7, 8, 9]])).logits


def test_a_plain_lora_folder_loads_with_its_base(lora, nano: hs.Model):
    folder, expected = lora
    model = hs.load(folder)
    torch.testing.assert_close(logits_of(model), expected, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(logits_of(model), logits_of(nano), atol=1e-2)
    assert (model.source["kind"], model.n_heads) == ("adapter", 4)
    torch.testing.assert_close(logits_of(hs.load(folder, base="nano")), expected, atol=1e-4, rtol=1e-4)


def test_a_gguf_file_is_converted_once_and_the_copy_is_verified(tmp_path: Path, monkeypatch, capfd):
    monkeypatch.setenv("HEADSCOPE_CACHE", str(tmp_path / "cache"))
    path = write_gguf(tmp_path / "own.gguf", build("llama-gqa"), add_bos=True, quantised=True)
    first = logits_of(hs.load(path))
    (folder,) = [one for one in (tmp_path / "cache" / "gguf").iterdir() if one.is_dir()]
    size = sum(file.stat().st_size for file in folder.iterdir()) / 1e6
    assert f"own.gguf is kept in {folder}, converted ({size:,.0f} MB)" in capfd.readouterr().err
    before = {file.name: file.stat().st_mtime_ns for file in folder.iterdir()}
    # Known by its bytes, whatever it is called.
    other = Path(shutil.copy(path, tmp_path / "own.GGUF"))
    assert torch.equal(logits_of(hs.load(path)), first)
    assert {file.name: file.stat().st_mtime_ns for file in folder.iterdir()} == before
    assert capfd.readouterr().err == ""
    weights = next(folder.glob("model-*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-1] + bytes([weights.read_bytes()[-1] ^ 1]))
    assert torch.equal(logits_of(hs.load(path)), first)
    assert "is damaged; the copy of own.gguf is made again" in capfd.readouterr().err
    assert other.exists()


@pytest.mark.parametrize(
    "words", [["heads"], ["edges", "--points", "4"], ["roles", "--preset", "quick", "--seeds", "1"]]
)
def test_what_a_model_does_not_do_is_said_everywhere(words, tiny, tmp_path: Path, capfd, nano: hs.Model):
    task = hs.tasks.ioi(nano.tokenizer, n=4, seed=0)
    text, lines = nano.tokenizer.decode, []
    for i in range(4):
        pair = {"clean": task.clean[i], "corrupt": task.corrupt[i]}
        # Right and wrong changed places.
        lines.append(json.dumps({**pair, "answers": text(task.wrong[i]), "wrong": text(task.answers[i])}))
    (tmp_path / "turned.jsonl").write_text("\n".join(lines) + "\n")
    command, *more = words
    small = ["--held-out", "2"] if command == "roles" else []
    said = headscope(
        capfd, command, "nano", "--task", tmp_path / "turned.jsonl", "--n", "2", *more, *small, "--format", "png",
        "--out", tmp_path / "run",
    )  # fmt: skip
    assert said.code == 0, said.err
    assert "Note: nano does not do turned: accuracy 0.00" in said.err
    assert "nano does not do turned" in re.search(r"Found: (.*)", said.out)[1]  # pyright: ignore[reportOptionalSubscript]


def test_functions_says_that_nothing_is_right_and_what_was_cut(capfd, tmp_path: Path):
    said = headscope(
        capfd, "functions", "nano", "--n", "3", "--shots", "0", "--train", "2", "--ablated", "1", "--k", "1",
        "--draws", "1", "--max-new-tokens", "1", "--alpha", "", "--ranking", "attribution", "--function", "retrieval",
        "--comet", "none", "--format", "png", "--out", tmp_path / "run",
    )  # fmt: skip
    assert said.code == 0, said.err
    assert "Note: nano does not do retrieval: 0 of 3 answers are right" in said.err
    assert re.search(r"Note: retrieval: [1-3] of 3 answers were cut at the token limit", said.err)


def test_a_bos_token_that_prompts_do_not_carry_is_named(tiny, tmp_path: Path):
    folder = Path(shutil.copytree(tiny("llama-gqa"), tmp_path / "bos"))
    model = hs.load(folder)
    rows = [{"clean": "w5 w6 w7", "corrupt": "w5 w8 w7", "answers": [" w9"], "wrong": [" w10"]}]
    with torch.no_grad():
        right, wrong = logits_of_prompt(model, [5, 6, 7])[[9, 10]].tolist()
    if right > wrong:
        rows[0] |= {"answers": [" w10"], "wrong": [" w9"]}
    (tmp_path / "t.jsonl").write_text(json.dumps(rows[0]) + "\n")
    from headscope.tasks import make_task

    task = make_task(str(tmp_path / "t.jsonl"), model.tokenizer, n=1, seed=0)
    assert hs.check(model, task).note == ""
    model.tokenizer.bos_token = "w3"
    assert "its tokenizer has a BOS token, w3, which the prompts do not begin with" in hs.check(model, task).note
    model.tokenizer.bos_token = "w5"
    assert hs.check(model, task).note == ""


def logits_of_prompt(model: hs.Model, ids: list[int]) -> torch.Tensor:
    return model.hf(**model.batch([ids])).logits[0, -1]


def test_a_log_has_a_line_for_each_unit_and_one_a_minute(capfd):
    lines = Lines(every=60.0)
    from headscope import progress

    token = progress._SHOWN.set(lines)
    try:
        with bar("heads", 4, unit="units") as whole, bar("Patching", 10, unit="prompts") as part:
            part.advance(5)
            lines.tick()
            assert capfd.readouterr().err == "", "it is not time yet"
            lines._last -= 61
            lines.tick()
            said = capfd.readouterr().err
            assert re.fullmatch(
                r"\[\d+:\d\d\] heads: 0 of 4 units \(0%\); Patching: 5 of 10 prompts \(50%\), about 0:00 left\n", said
            )
            whole.advance()
            done("scores nano ioi", 1.25)
            assert re.match(
                r"\[\d+:\d\d\] scores nano ioi: 1\.[23] s; heads: 1 of 4 units \(25%\)", capfd.readouterr().err
            )
    finally:
        progress._SHOWN.reset(token)
    assert [clock(59), clock(61), clock(3725)] == ["0:59", "1:01", "1:02:05"]


@pytest.mark.slow
@pytest.mark.parametrize("columns", [80, 120])
def test_on_a_terminal_nothing_is_cut(columns: int, tmp_path: Path):
    """Header, tables and end fit; the time left of a bar is there whatever the bar is called."""
    words = process("heads", "nano", "--task", "ioi", "--n", "4", "--format", "png", "--out", tmp_path / "run")
    text = on_terminal(words, columns)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).replace("\r", "")
    assert "headscope heads" in plain.splitlines()[0]
    assert "\u2026" not in plain.partition("Explained effect against")[2], "a column is cut"
    assert all(name in plain for name in ("Found:", "Files:", "Page:"))
    tables = [line for line in plain.splitlines() if line[:1] in "\u250c\u2502\u2514\u250f\u2503"]
    assert tables
    assert max(map(len, tables)) <= columns


def on_terminal(words: list[str], columns: int) -> str:
    """What a process writes to a terminal of so many columns."""
    import fcntl
    import struct
    import termios

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    environment = {**OFFLINE, "TERM": "xterm-256color", "COLUMNS": str(columns)}
    with subprocess.Popen(words, stdout=theirs, stderr=theirs, stdin=theirs, env=environment) as running:
        os.close(theirs)
        parts = []
        while True:
            try:
                parts.append(os.read(ours, 4096))
            except OSError:
                break
            if not parts[-1]:
                break
    os.close(ours)
    assert running.returncode == 0
    return b"".join(parts).decode(errors="replace")


def test_the_header_says_what_was_asked_and_quiet_says_nothing(capfd, tmp_path: Path):
    words = ("check", "nano", "--task", "ioi", "--n", "4", "--json")
    said = headscope(capfd, *words)
    assert re.search(r"headscope check\n.*Model nano\n.*Task ioi\n.*Settings n 4, seed 0\n", said.log)
    assert re.search(r"\] nano on ioi: \d+\.\d s", said.log)
    quiet = headscope(capfd, *words, "--quiet")
    assert (quiet.code, quiet.log, quiet.out) == (0, "", said.out)


def test_the_header_comes_before_torch():
    """`-X importtime` writes a line for each import; the header stands among them."""
    command = process("check", "nano", "--task", "ioi", "--n", "2")
    command[1:1] = ["-X", "importtime"]
    said = subprocess.run(command, capture_output=True, text=True, env=OFFLINE).stderr.splitlines()
    header = next(place for place, line in enumerate(said) if "headscope check" in line)
    torch_at = next(place for place, line in enumerate(said) if re.search(r"\| +torch\b", line))
    assert header < torch_at


def test_every_command_that_loads_a_model_says_where_and_how(capfd):
    group: Any = typer.main.get_command(app)
    loading = {"check", "heads", "edges", "roles", "functions", "sparsify", "sparsify-report", "sparsity-frontier"}
    for name in loading | {"merge", "reproduce", "atlas"}:
        flags = {flag for parameter in group.commands[name].params for flag in parameter.opts}
        assert {"--device", "--dtype", "--revision", "--quiet"} <= flags, name
    said = headscope(capfd, "check", "nano", "--task", "ioi", "--n", "4", "--dtype", "float64", "--json")
    plain = headscope(capfd, "check", "nano", "--task", "ioi", "--n", "4", "--json")
    one, other = (json.loads(found.out)["metric"] for found in (said, plain))
    assert one != other
    assert one == pytest.approx(other, rel=1e-4)
    assert "Device meta holds no numbers" in headscope(capfd, "check", "nano", "--task", "ioi", "--device", "meta").err


def test_how_a_model_is_loaded_is_identity_only_where_it_is_said():
    one = studies.HeadSettings(models=("m",), tasks=("ioi",))
    assert isinstance(one, Loaded)
    assert not {"device", "dtype", "revision"} & one.identity().keys()
    assert replace(one, dtype="float64").identity()["dtype"] == "float64"
    assert replace(one, dtype="float64").folder() != one.folder()


def test_points_are_those_of_the_random_reference_too(capfd, tmp_path: Path):
    words = ("heads", "nano", "--task", "ioi", "--n", "4", "--draws", "1", "--format", "png", "--json")
    said = headscope(capfd, *words, "--points", "5", "--out", tmp_path / "run")
    assert said.code == 0, said.err
    assert len(Curve.load(tmp_path / "run" / "band-nano-ioi.safetensors").k) == 5
    (row,) = json.loads(said.out)["against_random"]
    curve, chance = (Curve.load(next((tmp_path / "run").glob(f"{name}-*.safetensors"))) for name in ("curve", "band"))
    assert row["value"] == pytest.approx(hs.multiplier(chance, curve).value)
    assert json.loads(said.out)["found"][2].startswith("A ranking at random needs ")


def test_edges_are_set_against_random_too_and_random_is_called_random(capfd, tmp_path: Path):
    words = ("edges", "nano", "--task", "ioi", "--n", "2", "--points", "4", "--format", "png", "--json")
    found = json.loads(headscope(capfd, *words, "--out", tmp_path / "band").out)
    assert [row["first"] for row in found["against_random"]] == ["nano, random"]
    found = json.loads(headscope(capfd, *words, "--method", "random", "--out", tmp_path / "own").out)
    assert [scores["method"] for scores in found["scores"]] == ["random"]


@pytest.mark.parametrize(
    ("kind", "options", "cause"),
    [
        (
            "lfm2",
            {"num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"], "num_key_value_heads": 2},
            r"layers 0, 2 have no attention \(Lfm2ShortConv\)",
        ),
        ("xlm", {"n_layers": 2, "n_heads": 2, "emb_dim": 32, "causal": True}, "does not dispatch|not a causal|cannot"),
    ],
)
def test_a_refusal_names_the_layers(kind: str, options: dict[str, Any], cause: str, tmp_path: Path):
    sizes = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4}
    config = CONFIG_MAPPING[kind](**{**({} if kind == "xlm" else sizes), "pad_token_id": 0, **options})
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    word_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(hs.InputError, match=cause):
        hs.load(tmp_path)


def test_the_pickle_that_is_named_is_the_weights(tiny, tmp_path: Path):
    folder = Path(shutil.copytree(tiny("llama-gqa"), tmp_path / "pickled"))
    for file in folder.glob("*.safetensors"):
        file.unlink()
    (folder / "optimizer.bin").write_bytes(bytes(10))
    (folder / "pytorch_model.bin").write_bytes(bytes(1000))
    (folder / "training_args.bin").write_bytes(bytes(20))
    with pytest.raises(hs.InputError, match=r"only as pickle \(pytorch_model\.bin\)"):
        hs.load(folder)


def test_heads_that_are_no_plain_heads_are_told_apart(tmp_path: Path, capfd):
    bitnet: Any = CONFIG_MAPPING["bitnet"]
    config = bitnet(
        vocab_size=96, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, pad_token_id=0,
    )  # fmt: skip
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "bitnet")
    word_tokenizer().save_pretrained(tmp_path / "bitnet")
    model = hs.load(tmp_path / "bitnet")
    assert "goes through a norm over all heads" in model.note
    assert model.describe()["note"] == model.note
    row = {"clean": "w5 w6 w7", "corrupt": "w5 w8 w7", "answers": [" w9"], "wrong": [" w10"]}
    (tmp_path / "t.jsonl").write_text(json.dumps(row) + "\n")
    said = headscope(capfd, "check", tmp_path / "bitnet", "--task", tmp_path / "t.jsonl")
    assert "Note: bitnet: z goes through a norm" in said.err


def test_heads_without_a_role_have_a_row_and_one_seed_has_no_others(capfd, tmp_path: Path):
    gates = np.array([[[0.9, 0.6, 0.1, 0.45]]])
    # facilitation G-: 0.45 and lower; irrelevance G+ (1 - G-); interference 1 - G+
    roles = Roles("m", "t", np.full((1, 1, 4), 0.6), gates * 0 + np.array([0.9, 0.3, 0.1, 0.4]), {})
    assert spread(roles)["none"]["share"] == 0.5
    said = headscope(
        capfd, "roles", "nano", "--task", "ioi", "--preset", "quick", "--seeds", "1", "--n", "4", "--held-out", "4",
        "--compare", "0", "--format", "png", "--out", tmp_path / "run",
    )  # fmt: skip
    assert said.code == 0, said.err
    assert "In all seeds" not in said.out
    assert re.search(r"none\s+│", said.out)


def test_a_bar_does_nothing_while_nobody_watches():
    line = Bar("x", 2)
    line.advance()
    line.say("half")
    assert (line.completed, line.words) == (1, "x: half")
    line.close()
