"""Identities of the attention function, on tiny random models of many architectures."""

from __future__ import annotations

import copy
import threading

import pytest
import torch
from architectures import ALL, INTERFACE, VOCAB, output_projection, scale_head_by_hand
from transformers import AutoModelForCausalLM

import headscope as hs

B, T = 3, 9
NAMES = list(ALL)


@pytest.fixture(scope="module")
def models(tiny):
    """(the model through Headscope, a plain twin of it that Headscope has not touched), by name."""
    made = {}

    def pair(name: str):
        if name not in made:
            made[name] = hs.load(str(tiny(name))), AutoModelForCausalLM.from_pretrained(tiny(name)).eval()
        return made[name]

    return pair


def tokens(rows: int = B, length: int = T, seed: int = 0) -> torch.Tensor:
    return torch.randint(3, VOCAB, (rows, length), generator=torch.Generator().manual_seed(seed))


def padded(side: str):
    """Three prompts of different lengths in one batch, and each of them alone."""
    lengths = (T, T - 3, T - 4)
    alone = [tokens(1, length, seed=length) for length in lengths]
    ids = torch.zeros(len(lengths), T, dtype=torch.long)
    seen = torch.zeros_like(ids)
    for row, one in enumerate(alone):
        place = slice(T - one.shape[1], T) if side == "left" else slice(0, one.shape[1])
        ids[row, place], seen[row, place] = one[0], 1
    positions = (seen.cumsum(-1) - 1).clamp(min=0)
    return alone, {"input_ids": ids, "attention_mask": seen, "position_ids": positions}, seen.bool()


def accepts_positions(name: str) -> bool:
    return name != "bloom"


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_nothing_armed_is_the_models_own_attention_bit_for_bit(models, name):
    model, plain = models(name)
    seen = torch.ones(B, T, dtype=torch.long)
    seen[0, :3] = 0
    for inputs in ({"input_ids": tokens()}, {"input_ids": tokens(), "attention_mask": seen}):
        assert torch.equal(model.hf(**inputs).logits, plain(**inputs).logits)
    made = [m.generate(tokens(), max_new_tokens=5, do_sample=False, pad_token_id=0) for m in (model.hf, plain)]
    assert torch.equal(made[0], made[1])


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_open_gates_change_nothing(models, name):
    model, plain = models(name)
    ones = torch.ones(model.n_layers, model.n_heads, requires_grad=True)  # gradients keep layers from being passed by
    with hs.gated(model, ones):
        logits = model.hf(tokens()).logits
    torch.testing.assert_close(logits, plain(tokens()).logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_a_closed_gate_is_a_zeroed_output_projection(models, name):
    model, plain = models(name)
    base = plain(tokens()).logits
    for layer in range(model.n_layers):
        for head in range(model.n_heads):
            by_hand = copy.deepcopy(plain)
            scale_head_by_hand(by_hand, name, layer, head, model.n_heads, 0.0)
            mask = torch.ones(model.n_layers, model.n_heads)
            mask[layer, head] = 0
            with hs.gated(model, mask):
                logits = model.hf(tokens()).logits
            expected = by_hand(tokens()).logits
            torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)
            assert (expected - base).abs().max() > 1e-3, "the head must matter for the test to mean anything"


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_all_heads_and_the_embedding_patched_is_the_other_run(models, name):
    model, plain = models(name)
    clean, corrupt = tokens(seed=1), tokens(seed=2)
    with hs.record(model) as z:
        model.hf(corrupt)
    nothing = torch.zeros(model.n_layers, model.n_heads)
    swap = model.hf.get_input_embeddings().register_forward_hook(lambda module, args, out: module.forward(corrupt))
    try:
        with hs.patched(model, nothing, fill=z):
            logits = model.hf(clean).logits
    finally:
        swap.remove()
    torch.testing.assert_close(logits, plain(corrupt).logits, atol=1e-5, rtol=1e-5)
    with hs.patched(model, nothing, fill=z):
        assert (model.hf(clean).logits - plain(corrupt).logits).abs().max() > 1e-3


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_recorded_z_enters_the_output_projection(models, name):
    model, plain = models(name)
    entered = {}
    hooks = [
        output_projection(plain, name, layer).register_forward_pre_hook(
            lambda module, args, layer=layer: entered.__setitem__(layer, args[0].clone())
        )
        for layer in range(model.n_layers)
    ]
    plain(tokens())
    for hook in hooks:
        hook.remove()
    with hs.record(model) as z:
        model.hf(tokens())
    assert len(z) == model.n_layers
    for layer in range(model.n_layers):
        assert z[layer].shape[:3] == (B, T, model.n_heads)
        torch.testing.assert_close(z[layer].flatten(2), entered[layer], atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_a_mask_per_row_is_a_run_per_mask(models, name):
    model, _ = models(name)
    masks = torch.rand(B, model.n_layers, model.n_heads)
    with hs.record(model) as z:
        model.hf(tokens(seed=5))
    with hs.patched(model, masks, fill=z):
        together = model.hf(tokens()).logits
    for row in range(B):
        one = [z[layer][row : row + 1] for layer in range(model.n_layers)]
        with hs.patched(model, masks[row], fill=one):
            alone = model.hf(tokens()[row : row + 1]).logits
        torch.testing.assert_close(together[row], alone[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_padding_changes_nothing_under_a_mask(models, name, side):
    model, _ = models(name)
    alone, inputs, seen = padded(side)
    if not accepts_positions(name):
        del inputs["position_ids"]
    mask = torch.rand(model.n_layers, model.n_heads)
    with hs.gated(model, mask), hs.record(model) as z:
        together = model.hf(**inputs).logits
    for row, one in enumerate(alone):
        with hs.gated(model, mask), hs.record(model) as z_one:
            expected = model.hf(one).logits[0]
        torch.testing.assert_close(together[row][seen[row]], expected, atol=1e-5, rtol=1e-5)
        for layer in range(model.n_layers):
            torch.testing.assert_close(z[layer][row][seen[row]], z_one[layer][0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_a_cache_changes_nothing_under_a_patch(models, name):
    model, _ = models(name)
    with hs.record(model) as z:
        model.hf(tokens(seed=3))
    keep = torch.rand(B, model.n_layers, model.n_heads)
    with hs.patched(model, keep, fill=z):
        whole = model.hf(tokens(), use_cache=False).logits
        with hs.record(model) as seen:
            first = model.hf(tokens()[:, :5], use_cache=True)
            rest = [first.logits]
            cache = first.past_key_values
            for at in range(5, T):
                step = model.hf(tokens()[:, at : at + 1], past_key_values=cache, use_cache=True)
                cache = step.past_key_values
                rest.append(step.logits)
    torch.testing.assert_close(torch.cat(rest, 1), whole, atol=1e-5, rtol=1e-5)
    assert seen[0].shape[1] == T


@pytest.mark.parametrize("name", ["llama-gqa", "gpt2", "gpt_neo", "gemma3"])
@torch.no_grad()
def test_prompt_and_decode_steps_apart(models, name):
    """Acting on decode steps only is, without a cache, a mask per position that opens at the end of the prompt."""
    model, _ = models(name)
    gate = torch.rand(model.n_layers, model.n_heads)
    ones = torch.ones_like(gate)
    whole = {}
    for steps in ("prompt", "decode"):
        inside = torch.arange(T) < 5 if steps == "prompt" else torch.arange(T) >= 5
        per_position = torch.where(inside[None, :, None, None], gate, ones)
        with hs.gated(model, per_position):
            whole[steps] = model.hf(tokens(), use_cache=False).logits
        with hs.gated(model, gate, steps=steps):
            first = model.hf(tokens()[:, :5], use_cache=True)
            second = model.hf(tokens()[:, 5:], past_key_values=first.past_key_values, use_cache=True)
        torch.testing.assert_close(torch.cat([first.logits, second.logits], 1), whole[steps], atol=1e-5, rtol=1e-5)
    assert (whole["prompt"] - whole["decode"]).abs().max() > 1e-3


@pytest.mark.parametrize("name", list(INTERFACE))
@torch.no_grad()
def test_patterns_and_qkv_rebuild_z(models, name):
    model, _ = models(name)
    _, inputs, seen = padded("left")
    with hs.record(model) as plain:
        model.hf(**inputs)
    with hs.record(model, patterns=True, qkv=True) as full:
        model.hf(**inputs)
    for layer in range(model.n_layers):
        pattern_BHTS = full.pattern(layer)
        q, k, v = full.qkv(layer)
        v = v.repeat_interleave(model.n_heads // v.shape[2], dim=2)
        rebuilt = torch.einsum("bhts,bshk->bthk", pattern_BHTS, v)
        torch.testing.assert_close(rebuilt, full[layer], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(full[layer][seen], plain[layer][seen], atol=1e-5, rtol=1e-5)
        assert q.shape == full[layer].shape
        assert k.shape[1] == T
        later = torch.ones(T, T, dtype=torch.bool).triu(1)
        assert (pattern_BHTS.transpose(1, 2)[seen].masked_select(later.expand(B, T, T)[seen][:, None]) == 0).all()
        rows = pattern_BHTS.sum(-1).transpose(1, 2)[seen]
        assert (rows <= 1 + 1e-5).all() if name == "gpt_oss" else torch.allclose(rows, torch.ones_like(rows), atol=1e-5)


@pytest.mark.parametrize("name", ["mistral", "gemma2", "gemma3"])
@torch.no_grad()
def test_patterns_join_over_decode_steps(models, name):
    model, _ = models(name)
    with hs.record(model, patterns=True) as whole:
        model.hf(tokens(), use_cache=False)
    with hs.record(model, patterns=True) as stepped:
        cache = model.hf(tokens()[:, :5], use_cache=True).past_key_values
        for at in range(5, T):
            cache = model.hf(tokens()[:, at : at + 1], past_key_values=cache, use_cache=True).past_key_values
    for layer in range(model.n_layers):
        torch.testing.assert_close(stepped.pattern(layer), whole.pattern(layer), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["llama-gqa", "gpt_neo"])
def test_the_gradient_of_a_gate_is_its_finite_difference(models, name):
    model, _ = models(name)
    hf = model.hf.double()
    try:
        gate = torch.rand(model.n_layers, model.n_heads, dtype=torch.float64, requires_grad=True)

        def loss(values: torch.Tensor) -> torch.Tensor:
            with hs.gated(model, values):
                return hf(tokens()).logits[:, -1, 7].sum()

        (gradient,) = torch.autograd.grad(loss(gate), gate)
        # Norms and rotary embeddings compute in float32 whatever the weights, hence the wide step.
        for layer, head in [(0, 0), (1, 3)]:
            step = torch.zeros_like(gate)
            step[layer, head] = 1e-2
            with torch.no_grad():
                slope = (loss(gate + step) - loss(gate - step)) / 2e-2
            torch.testing.assert_close(gradient[layer, head], slope, atol=1e-4, rtol=2e-3)
    finally:
        model.hf.float()


@torch.no_grad()
def test_an_exception_leaves_the_model_clean(models):
    model, plain = models("llama-gqa")
    mask = torch.zeros(model.n_layers, model.n_heads)
    with pytest.raises(RuntimeError, match="on purpose"), hs.gated(model, mask):
        raise RuntimeError("on purpose")
    assert torch.equal(model.hf(tokens()).logits, plain(tokens()).logits)


@torch.no_grad()
def test_two_models_and_two_threads_do_not_meet(models):
    first, plain_first = models("llama-gqa")
    second, plain_second = models("gpt2")
    closed = torch.zeros(2, 4)
    seen = {}

    def elsewhere() -> None:
        with torch.no_grad():
            seen["logits"] = first.hf(tokens()).logits

    with hs.gated(first, closed):
        assert torch.equal(second.hf(tokens()).logits, plain_second(tokens()).logits)
        assert not torch.equal(first.hf(tokens()).logits, plain_first(tokens()).logits)
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
    assert torch.equal(seen["logits"], plain_first(tokens()).logits)


@pytest.mark.parametrize("name", ["llama-gqa", "gpt_neo"])
@torch.no_grad()
def test_a_copied_model_is_its_own(models, name):
    model, plain = models(name)
    other = copy.deepcopy(model.hf)
    with hs.gated(model, torch.zeros(model.n_layers, model.n_heads)):
        assert torch.equal(other(tokens()).logits, plain(tokens()).logits)


@torch.no_grad()
def test_blocks_nest_from_the_outside_in(models):
    model, _ = models("llama-gqa")
    half = torch.full((model.n_layers, model.n_heads), 0.5)
    with hs.record(model) as outside, hs.gated(model, half), hs.record(model) as inside:
        model.hf(tokens())
    torch.testing.assert_close(inside[0], outside[0] * 0.5)


@torch.no_grad()
def test_masked_scales_the_named_heads(models):
    model, plain = models("qwen3")
    by_hand = copy.deepcopy(plain)
    scale_head_by_hand(by_hand, "qwen3", 1, 2, model.n_heads, 1e-3)
    with hs.masked(model, [(1, 2)], factor=1e-3):
        torch.testing.assert_close(model.hf(tokens()).logits, by_hand(tokens()).logits, atol=1e-5, rtol=1e-5)


def test_wrong_shapes_are_told(models):
    model, _ = models("llama-gqa")
    with pytest.raises(hs.InputError, match=r"found shape \(3, 3\)"), hs.gated(model, torch.ones(3, 3)):
        pass
    with pytest.raises(hs.InputError, match=r"no head L7\.H0"), hs.masked(model, [(7, 0)]):
        pass
    with pytest.raises(hs.InputError, match="2 rows, but the batch has 3"), hs.gated(model, torch.zeros(2, 2, 4)):
        model.hf(tokens())
    with hs.record(model) as short:
        model.hf(tokens(length=4))
    with (
        pytest.raises(hs.InputError, match="covers 4 positions, but the model runs at 9"),
        hs.patched(model, torch.zeros(2, 4), fill=short),
    ):
        model.hf(tokens())


def test_patterns_are_refused_where_they_cannot_be_seen(models):
    model, _ = models("gptj")
    with pytest.raises(hs.InputError, match="out of reach on gptj"), hs.record(model, patterns=True):
        pass
