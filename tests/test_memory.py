"""Models that the user has in memory, and tasks from prompts in memory."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from architectures import ALL, build
from conftest import word_tokenizer
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, QuantoConfig, TorchAoConfig

import headscope as hs

IDS = torch.randint(3, 96, (2, 9), generator=torch.Generator().manual_seed(0))
CLEAN, CORRUPT = ["w5 w6 w7 w8 w9", "w9 w6 w7 w8 w5"], ["w5 w4 w7 w3 w9", "w9 w4 w7 w3 w5"]


def word_pairs(**options: Any) -> hs.tasks.Task:
    columns = {"clean": CLEAN, "corrupt": CORRUPT, "answers": [[" w10"], [" w11", " w12"]], "wrong": [[" w30"], " w31"]}
    return hs.tasks.pairs(word_tokenizer(), **columns, **options)


@torch.no_grad()
def logits(hf: Any) -> torch.Tensor:
    return hf(IDS).logits


def state_of(hf: Any) -> tuple[Any, ...]:
    """All that loading a model could leave behind on it."""
    return (
        hf.config._attn_implementation,
        [module.training for module in hf.modules()],
        [len(module._forward_pre_hooks) + len(module._forward_hooks) for module in hf.modules()],
        sorted(key for module in hf.modules() for key in vars(module) if "headscope" in key),
        ["forward" in vars(module) for module in hf.modules()],
    )


@pytest.mark.parametrize("name", list(ALL))
def test_released_is_as_it_was(name: str):
    hf = build(name).train()
    hf.get_submodule(next(key for key, _ in hf.named_children())).eval()
    before, weights = state_of(hf), [id(p) for p in hf.parameters()]
    said = logits(hf.eval())
    hf.train().get_submodule(next(key for key, _ in hf.named_children())).eval()
    model = hs.load(hf, word_tokenizer())
    assert model.hf is hf
    assert [id(p) for p in hf.parameters()] == weights, "nothing is copied"
    assert not any(module.training for module in hf.modules())
    hs.methods.patching(model, word_pairs())
    assert hs.release(model) is hf
    assert state_of(hf) == before
    assert torch.equal(logits(hf.eval()), said)
    with pytest.raises(hs.InputError, match="was released"), hs.masked(model, [(0, 0)]):
        pass


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_the_attention_implementation_comes_back(attention: str):
    hf = build("llama-gqa")
    hf.set_attn_implementation(attention)
    said = logits(hf)
    # (Loading twice, as notebooks do, must not take our own for theirs; nor a copy of a loaded model.)
    model = hs.load(hf, word_tokenizer())
    twin = hs.load(copy.deepcopy(hf), word_tokenizer())
    model = hs.load(hf, word_tokenizer())
    for one in (model, twin):
        back = hs.release(one)
        assert back.config._attn_implementation == attention
        assert torch.equal(logits(back), said)


def test_what_is_refused_is_left_as_it_was():
    hf = build("llama-gqa")
    for layer in hf.model.layers:
        layer.self_attn.is_causal = False
    hf.config.num_hidden_layers = 3
    before = state_of(hf)
    with pytest.raises(hs.InputError, match="expected one call"):
        hs.load(hf, word_tokenizer())
    assert state_of(hf) == before


def test_scores_are_those_of_the_folder(tiny):
    folder = tiny("llama-gqa")
    theirs = hs.load(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), word_tokenizer())
    ours, task = hs.load(folder), word_pairs()
    assert theirs.name == ours.name
    assert theirs.fingerprint() == ours.fingerprint()
    for method in (hs.methods.patching, hs.methods.attribution, hs.methods.eap):
        assert np.array_equal(method(theirs, task).per_prompt, method(ours, task).per_prompt)


def with_lora(hf: Any) -> Any:
    from peft import LoraConfig, get_peft_model

    wrapped: Any = get_peft_model(hf, LoraConfig(r=4, target_modules=["q_proj", "v_proj", "o_proj"]))
    with torch.no_grad():
        for name, parameter in wrapped.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.3)
    return wrapped


def test_a_model_wrapped_by_peft():
    """Heads and edges are those of the same model with its adapter merged into the weights."""
    wrapped = with_lora(build("llama-gqa"))
    said = logits(wrapped.eval())
    assert (said - logits(build("llama-gqa"))).abs().max() > 0.1
    model, task = hs.load(wrapped, word_tokenizer()), word_pairs()
    merged = hs.load(copy.deepcopy(wrapped).merge_and_unload(), word_tokenizer())
    for method in (hs.methods.patching, hs.methods.attribution, hs.methods.eap, hs.methods.edge_patching):
        np.testing.assert_allclose(method(model, task).values, method(merged, task).values, atol=1e-5)
    hs.release(model)
    assert torch.equal(logits(wrapped), said)


def test_a_model_with_weights_on_disk(tiny, tmp_path: Path):
    """Dispatched by accelerate: one layer waits on disk and is fetched for each call."""
    folder = tiny("llama-gqa")
    places = {"model.embed_tokens": "disk", "model.layers.0": "cpu", "model.layers.1": "disk", "model.norm": "cpu",
              "model.rotary_emb": "cpu", "lm_head": "disk"}  # fmt: skip
    hf = AutoModelForCausalLM.from_pretrained(
        folder, device_map=places, offload_folder=tmp_path, dtype=torch.float32
    ).eval()
    assert any(parameter.is_meta for parameter in hf.parameters())
    model, plain, task = hs.load(hf, word_tokenizer()), hs.load(folder), word_pairs()
    for method in (hs.methods.patching, hs.methods.attribution, hs.methods.eap):
        np.testing.assert_allclose(method(model, task).values, method(plain, task).values, atol=1e-5)
    assert len(model.fingerprint()) == 64


class Int8(torch.nn.Module):
    """A projection whose weight is kept as bytes, as quantised models keep theirs."""

    bytes: torch.Tensor
    scale: torch.Tensor

    def __init__(self, plain: Any):
        super().__init__()
        scale = plain.weight.detach().abs().amax(1, keepdim=True) / 127
        self.register_buffer("bytes", (plain.weight.detach() / scale).round().to(torch.int8))
        self.register_buffer("scale", scale)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return value @ (self.bytes * self.scale).T


def test_a_quantised_model():
    hf, plain = build("llama-gqa"), build("llama-gqa")
    for name, module in list(hf.named_modules()):
        if isinstance(module, torch.nn.Linear) and name != "lm_head":
            small = Int8(module)
            hf.set_submodule(name, small)
            plain.get_submodule(name).weight.data = small.bytes * small.scale  # pyright: ignore[reportAttributeAccessIssue]
    said = logits(hf)
    assert (said - logits(build("llama-gqa"))).abs().max() > 1e-3
    model, full, task = hs.load(hf, word_tokenizer()), hs.load(plain, word_tokenizer()), word_pairs()
    for method in (hs.methods.patching, hs.methods.attribution, hs.methods.eap, hs.methods.edge_patching):
        np.testing.assert_allclose(method(model, task).values, method(full, task).values, atol=1e-5)
    assert len(model.fingerprint()) == 64
    assert torch.equal(logits(hs.release(model)), said)


@pytest.mark.parametrize("library", ["torchao", "bitsandbytes", "optimum.quanto"])
def test_a_model_of_a_quantiser(tiny, library: str):
    """Each keeps weights in its own way: a class of tensors, of layers, or layers that round what goes in as well."""
    pytest.importorskip(library, reason=f"{library} is not installed")
    if library == "torchao":
        from torchao.quantization import Int8WeightOnlyConfig  # pyright: ignore[reportMissingImports]

        config: Any = TorchAoConfig(Int8WeightOnlyConfig())
    else:
        config = BitsAndBytesConfig(load_in_8bit=True) if library == "bitsandbytes" else QuantoConfig(weights="int8")
    folder = tiny("llama-gqa")
    hf = AutoModelForCausalLM.from_pretrained(folder, quantization_config=config, dtype=torch.float32).eval()
    said, before = logits(hf), hf.config._attn_implementation
    plain, model, task = hs.load(folder), hs.load(hf, word_tokenizer()), word_pairs()
    for method in (hs.methods.patching, hs.methods.attribution, hs.methods.eap):
        scores, exact = method(model, task).values, method(plain, task).values
        assert 0 < np.abs(scores - exact).max() < 0.1 * np.abs(exact).max()
    assert len(model.fingerprint()) == 64
    assert torch.equal(logits(hs.release(model)), said)
    assert hf.config._attn_implementation == before


BFLOAT16 = """
import torch, sys
sys.path.insert(0, {tests!r})
from architectures import build
from conftest import word_tokenizer
from test_memory import word_pairs
import headscope as hs
for attention in ("sdpa", "eager"):
    hf = build("llama-gqa").to(torch.bfloat16)
    hf.set_attn_implementation(attention)
    ids = torch.arange(3, 12)[None]
    said = hf(ids).logits
    model = hs.load(hf, word_tokenizer())
    scores = hs.methods.patching(model, word_pairs())
    whole = hs.methods.patching(hs.load(build("llama-gqa"), word_tokenizer()), word_pairs())
    assert abs(scores.values - whole.values).max() < 0.1 * abs(whole.values).max(), (scores.values, whole.values)
    hs.methods.attribution(model, word_pairs())
    assert hs.release(model).dtype == torch.bfloat16
    assert torch.equal(hf(ids).logits, said)
print("the same")
"""


@pytest.mark.slow
def test_a_model_in_bfloat16():
    """In a process of its own, because oneDNN reads once which instructions it may use."""
    env = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}
    script = BFLOAT16.format(tests=str(Path(__file__).parent))
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, env=env)
    assert done.stdout.strip() == "the same", done.stderr[-2000:]


def test_models_that_cannot_be_taken(tiny, nano):
    cases: list[tuple[Any, Any, str]] = [
        (build("llama-gqa"), None, "needs its tokenizer"),
        (build("llama-gqa").model, word_tokenizer(), "expected|Expected a name, or a causal language model"),
        (torch.nn.Linear(2, 2), word_tokenizer(), "found Linear"),
        (nano, nano.tokenizer, "found Model"),
        (str(tiny("llama-gqa")), word_tokenizer(), "brings its own tokenizer"),
    ]
    for given, tokenizer, said in cases:
        with pytest.raises(hs.InputError, match=said):
            hs.load(given, tokenizer)
    with pytest.raises(hs.InputError, match="stays as it is"):
        hs.load(build("llama-gqa"), word_tokenizer(), dtype="float64")
    with pytest.raises(hs.InputError, match="release takes what"):
        hs.release(nano.hf)  # pyright: ignore[reportArgumentType]


def test_pairs_from_anything():
    import datasets
    import pandas

    task = word_pairs()
    assert task.clean_ids == [[5, 6, 7, 8, 9], [9, 6, 7, 8, 5]]
    assert (task.answers, task.wrong, task.metric) == ([[10], [11, 12]], [[30], [31]], "logit-diff")
    rows = [
        {"clean": a, "corrupt": b, "answers": c, "wrong": d, "year": e}
        for a, b, c, d, e in zip(
            CLEAN, CORRUPT, [[" w10"], [" w11", " w12"]], [[" w30"], [" w31"]], [7, 8], strict=True
        )
    ]
    for given in (rows, pandas.DataFrame(rows), datasets.Dataset.from_list(rows)):
        made = hs.tasks.pairs(word_tokenizer(), given)
        assert made.digest == task.digest
        assert made.fields == [{"year": 7}, {"year": 8}]
        assert made.take([1]).fields == [{"year": 8}]


@pytest.mark.parametrize(
    "columns",
    [
        {"clean": CLEAN[0], "corrupt": CORRUPT[0], "answers": " w10", "wrong": " w30"},
        {"clean": CLEAN[0], "corrupt": CORRUPT[0], "answers": [" w10"], "wrong": [" w30"]},
        {"clean": CLEAN[0], "corrupt": [CORRUPT[0]], "answers": [[" w10"]], "wrong": [[" w30"]]},
        {"clean": CLEAN[:1], "corrupt": CORRUPT[:1], "answers": [" w10"], "wrong": [" w30"]},
    ],
)
def test_a_single_prompt_is_enough(columns: dict[str, Any]):
    task = hs.tasks.pairs(word_tokenizer(), **columns)
    assert task.digest == word_pairs().take([0]).digest


def test_a_prompt_without_a_corrupt_twin(nano):
    task = hs.tasks.pairs(
        nano.tokenizer, clean="Tom and Lily went to the park, and Tom gave a ball to", answers=" Lily"
    )
    assert (task.metric, task.corrupt_ids) == ("log-prob", [])
    assert hs.methods.ablation(nano, task, fill="zero").values.shape == (nano.n_layers, nano.n_heads)
    with pytest.raises(hs.InputError, match="no corrupt prompts"):
        hs.methods.patching(nano, task)


def test_misaligned_pairs_are_shown(nano):
    clean, corrupt = (
        "Tom and Lily went to the park, and Tom gave",
        "Tom and Hippopotamus went to the park, and Tom gave",
    )
    with pytest.raises(hs.InputError) as caught:
        hs.tasks.pairs(nano.tokenizer, clean=clean, corrupt=corrupt, answers=" a", wrong=" the")
    first, above, below, caret, last = str(caught.value).splitlines()
    assert "same number of tokens" in first
    assert last == "Reword one of them."
    assert above.startswith("  clean    T|om| and| Lily|")
    at = caret.index("^")
    assert above[:at].removeprefix("  clean  ") == below[:at].removeprefix("  corrupt")
    assert above[at:].startswith(" Lily|")
    assert below[at:].startswith(" H")


def test_a_long_pair_is_shown_where_it_parts():
    clean = " ".join(f"w{i}" for i in range(30, 80))
    with pytest.raises(hs.InputError) as caught:
        hs.tasks.pairs(
            word_tokenizer(), clean=clean, corrupt=clean.replace("w40", "w40 w40"), answers=" w1", wrong=" w2"
        )
    above, _, caret = str(caught.value).splitlines()[1:4]
    assert above.startswith("  clean    ... |w35|w36")
    assert above.endswith("| ...")
    assert above[caret.index("^") :].startswith("w41|")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, '"clean" is missing'),
        ({"clean": []}, "found none"),
        ({"clean": CLEAN, "answers": [" w1"]}, '"answers" needs an entry for each of 2 prompts, found 1'),
        ({"clean": CLEAN, "answers": " w1"}, "Several prompts need a list for each column, found the text ' w1'"),
        ({"clean": [CLEAN[0], 3], "answers": [" w1"] * 2}, 'row 2: "clean" must be a text, found int'),
        ({"clean": CLEAN, "corrupt": CLEAN, "answers": [" w1"] * 2}, "found the same text twice"),
        ({"clean": CLEAN, "corrupt": [CORRUPT[0], None], "answers": [" w1"] * 2}, 'row 2: "corrupt" is missing'),
        ({"clean": CLEAN}, '"answers" is missing or empty'),
        ({"clean": CLEAN, "answers": [[3], [4]]}, '"answers" must be a text or a list of texts'),
        ({"clean": CLEAN, "answers": [" w1"] * 2, "metric": "logit-diff"}, '"wrong" is missing'),
        ({"clean": CLEAN, "answers": [" w1"] * 2, "metric": "best"}, "Unknown metric 'best'"),
        ({"clean": CLEAN, "answers": [" w1 w3"] * 2}, "must add exactly one token"),
        ({"clean": CLEAN, "answers": [" w1"] * 2, "wrong": [" w1"] * 2}, "must not share a token"),
        ({"rows": [{"clean": "w1"}], "clean": CLEAN}, "Give rows, or clean by name"),
        ({"rows": ["w1"]}, "Rows are dicts"),
        ({"rows": 3}, "Rows are dicts"),
    ],
)
def test_pairs_that_cannot_be_used(given: dict[str, Any], said: str):
    with pytest.raises(hs.InputError, match=said):
        hs.tasks.pairs(word_tokenizer(), **given)
