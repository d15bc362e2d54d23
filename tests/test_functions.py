"""Functional heads: the questions, generation under masks against its slow twin, scores of answers, finding heads."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from architectures import VOCAB, build, scale_head_by_hand
from conftest import word_tokenizer
from torch import Tensor
from transformers import BertConfig, BertModel

import headscope as hs
from headscope.functions.answers import plain, same_number, score_answers
from headscope.functions.builtin import builtin_items, builtin_questions
from headscope.functions.causal import ablation, attribution, encode_prefix, encode_questions, surprisal_task
from headscope.functions.cogqa import questions_of, read_cogqa
from headscope.functions.embedding import embedder
from headscope.functions.generation import Answer, Interventions, generate
from headscope.functions.masking import choose, clipped, default_ks, masks
from headscope.functions.probe import elbow, probe
from headscope.functions.questions import FUNCTIONS, Question, split
from headscope.functions.states import answer_states, highest_surprisal
from headscope.functions.steering import steering_vectors
from headscope.records import Scores
from headscope.running.interventions import patched
from headscope.running.session import Engine, Session
from headscope.running.targets import Targets


def test_the_built_in_questions():
    found = builtin_questions()
    assert (found.skipped, found.stray) == ([], {})
    assert set(found.questions) == {"retrieval", "knowledge-recall", "math-calculation", "inference"}
    for name, questions in found.questions.items():
        assert len(set(questions)) >= 150
        parts = split(questions, name, n=50, shots=4)
        assert (len(parts.test), len(parts.shots)) == (50, 4)
        assert len(parts.train) >= 90
        together = [*parts.shots, *parts.train, *parts.test]
        assert len(set(together)) == len(together), "a question is in two parts"
        assert len({question.answer for question in parts.shots}) == 4
        assert parts == split(questions, name, n=50, shots=4)
        assert parts != split(questions, name, n=50, shots=4, seed=1)
    assert builtin_items() == builtin_items()


def test_answers_of_the_built_in_questions_are_right():
    questions = builtin_questions().questions
    for question in questions["math-calculation"]:
        a, sign, b = question.text.removeprefix("What is ").removesuffix("?").split()
        assert int(question.answer) == (int(a) + int(b) if sign == "+" else int(a) * int(b))
    for name in ("retrieval", "inference"):
        assert all(question.answer in question.context for question in questions[name])


COGQA = [
    {
        "question": "Tom has 3 apples and buys 4. How many has he?",
        "answer": 7,
        "generated": [
            {"subquestion": "How many apples has Tom?", "answer": 3, "cognitive_skill": "Retrieval"},
            {"subquestion": "What should he plan?", "answer": "nothing", "cognitive_skill": "Planning"},
            {"subquestion": "What is 3 + 4?", "answer": 7.0, "cognitive_skill": "math calculation"},
            {"subquestion": "Is that odd?", "answer": True, "cognitive_skill": "Logical Reasoning"},
        ],
    },
    "not an item",
    {"question": "no parts", "answer": "x", "generated": []},
    {"question": "bad parts", "generated": [{"subquestion": "What?", "cognitive_skill": "Inference"}, 5]},
]


def test_cogqa_as_published(tmp_path: Path):
    path = tmp_path / "cogqa.json"
    path.write_text(json.dumps(COGQA))
    found = read_cogqa(path)
    assert {name: len(questions) for name, questions in found.questions.items()} == {
        "retrieval": 1, "math-calculation": 1, "logical-reasoning": 1,
    }  # fmt: skip
    (question,) = found.questions["math-calculation"]
    assert question.answer == "7"
    assert question.prompt == (
        "Tom has 3 apples and buys 4. How many has he?\nHow many apples has Tom? 3\nWhat should he plan? nothing\n"
        "Question: What is 3 + 4?\nAnswer:"
    )
    assert found.stray == {"Planning": 1}
    assert [line.split(":")[0] for line in found.skipped] == [
        "item 2", "item 3", "item 4, sub-question 1", "item 4, sub-question 2",
    ]  # fmt: skip
    assert "answer must be a text or a number, found nothing" in found.skipped[2]


def test_all_eight_functions_have_labels():
    items = [
        {"question": "q", "answer": "a", "generated": [{"subquestion": "q", "answer": "a", "cognitive_skill": label}]}
        for label in FUNCTIONS.values()
    ]
    assert list(questions_of(items, "all").questions) == list(FUNCTIONS)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[", "bad JSON"),
        ('{"question": "q"}', "found an object with 'question'"),
        ("[]", "no items"),
        ('[{"question": "q", "generated": [{"subquestion": "s", "answer": 1, "cognitive_skill": "Magic"}]}]', "Magic"),
    ],
)
def test_files_without_questions(tmp_path: Path, text: str, told: str):
    path = tmp_path / "questions.json"
    path.write_text(text)
    with pytest.raises(hs.InputError, match=told):
        read_cogqa(path)


def test_too_few_questions_are_told():
    with pytest.raises(hs.InputError, match=r"Inference has 3 different questions; .* need 9"):
        split([Question("inference", str(i), "a") for i in range(3)], "inference", n=3)


PROMPTS = [[5, 6, 7], [8, 9], [11, 12, 13, 14, 15, 16], [3, 4, 5, 6]]
PREFIX = [21, 22, 23, 24, 25]
SETS = [[(0, 1), (1, 2)], [(0, 0), (0, 3), (1, 1)], []]


def slowly(hf, ids: list[int], steps: int) -> list[int]:
    """Token by token, without a cache, one prompt at a time."""
    new: list[int] = []
    while len(new) < steps:
        token = int(hf(input_ids=torch.tensor([ids + new]), use_cache=False).logits[0, -1].argmax())
        if token == 2:
            break
        new.append(token)
    return new


@pytest.mark.parametrize("name", ["llama-gqa", "gpt2", "mistral", "gpt_bigcode", "bloom"])
@pytest.mark.parametrize("factor", [0.0, 1e-3])
@torch.no_grad()
def test_masked_generation_is_that_of_a_model_scaled_by_hand(tiny, name: str, factor: float):
    """GQA, MHA, a sliding window, one key for all heads, heads reached by a hook."""
    model = hs.load(tiny(name))
    shape = (model.n_layers, model.n_heads)
    acting = Interventions(masks(shape, SETS, factor=factor))
    found = generate(model, PROMPTS, prefix=PREFIX, acting=acting, max_new_tokens=6, stop=(), rows=5)
    for heads, answers in zip(SETS, found, strict=True):
        hf = build(name)
        for layer, head in heads:
            scale_head_by_hand(hf, name, layer, head, model.n_heads, factor)
        for prompt, answer in zip(PROMPTS, answers, strict=True):
            assert answer.ids == slowly(hf, PREFIX + prompt, 6)
    assert found[0] != found[2], "the masked heads must matter"


@torch.no_grad()
def test_masks_on_decode_steps_only(tiny):
    model = hs.load(tiny("llama-gqa"))
    mask_CLH = masks((2, 4), SETS, factor=0.0)
    found = generate(
        model, PROMPTS, prefix=PREFIX, acting=Interventions(mask_CLH, steps="decode"), max_new_tokens=6, stop=()
    )
    for mask_LH, answers in zip(mask_CLH, found, strict=True):
        for prompt, answer in zip(PROMPTS, answers, strict=True):
            ids = PREFIX + prompt
            keep_TLH = torch.ones(64, 2, 4)
            keep_TLH[len(ids) :] = mask_LH
            with patched(model, keep_TLH[None]):
                assert answer.ids == slowly(model.hf, ids, 6)
    assert [a.ids[:1] for a in found[0]] == [a.ids[:1] for a in found[2]], "the prompt's own pass is left alone"


@torch.no_grad()
def test_stop_strings_and_surprisal(tiny):
    model = hs.load(tiny("llama-gqa"))
    ((free,),) = generate(model, [PROMPTS[0]], max_new_tokens=6, stop=())
    stop = str(model.tokenizer.decode([free.ids[2]]))
    ((stopped,),) = generate(model, [PROMPTS[0]], max_new_tokens=6, stop=(stop,))
    assert stopped.text == free.text.split(stop)[0].strip()
    log_probs_TV = model.hf(input_ids=torch.tensor([PROMPTS[0] + free.ids])).logits[0].log_softmax(-1)
    expected = [-float(log_probs_TV[len(PROMPTS[0]) - 1 + t, token]) for t, token in enumerate(free.ids)]
    assert free.surprisal == pytest.approx(expected, abs=1e-4)


def test_what_cannot_be_generated_is_refused(tiny):
    model = hs.load(tiny("llama-gqa"))
    with pytest.raises(hs.InputError, match="takes at most 64"):
        generate(model, [[3] * 60], max_new_tokens=16)
    with pytest.raises(hs.InputError, match="Unknown steps"):
        generate(model, [[3]], acting=Interventions(steps="prompt"))  # pyright: ignore[reportArgumentType]
    with pytest.raises(hs.InputError, match="at least one token"):
        generate(model, [[]])


def test_scores_of_answers():
    given = ["The Kitchen.", "12 apples", "", "New York", "red"]
    gold = ["kitchen", "12", "blue", "New York City", "green"]
    unmasked = ["attic", "12", "", "York", "red"]
    scores = score_answers(given, gold, unmasked)
    assert scores["exact"].tolist() == [1, 0, 0, 0, 0]
    assert scores["numeric"].tolist() == [0, 1, 0, 0, 0]
    assert scores["match"].tolist() == [1, 1, 0, 0, 0]
    # ROUGE-1: one word of two right of one; of three words two are there, and nothing else.
    assert scores["rouge"] == pytest.approx([2 / 3, 2 / 3, 0, 0.8, 0])
    assert scores["bleu"][[2, 4]].tolist() == [1, 1], "the same as without masking, right or wrong"
    assert scores["accuracy"].tolist() == [1, 1, 1, 1, 1]
    assert score_answers(["red"], ["green"], ["blue"])["accuracy"].tolist() == [0]
    same = np.ones((1, 2)) / 2**0.5
    assert score_answers(["red"], ["green"], ["blue"], embed=lambda _: same)["accuracy"].tolist() == [1]
    # Cosine with the right answer, similarity with the unmasked one.
    table = {"red": [1.0, 0.0], "green": [0.8, 0.6], "blue": [0.0, 1.0]}
    both = score_answers(["red"], ["green"], ["blue"], embed=lambda texts: np.array([table[text] for text in texts]))
    assert (both["cosine"].tolist(), both["similarity"].tolist()) == ([0.8], [0.0])
    assert scores["chrf"][0] < 1 == score_answers(["ice"], ["ice"], ["x"])["chrf"][0]


@pytest.mark.parametrize(("heads", "ks"), [(1024, [1, 2, 16, 32, 64, 128]), (270, [1, 2, 4, 8, 17, 34]), (16, [1, 2])])
def test_how_many_heads_are_masked_follows_the_models_size(heads: int, ks: list[int]):
    assert default_ks(heads) == ks


@torch.no_grad()
def test_sentence_embeddings(tmp_path: Path):
    hf = BertModel(
        BertConfig(vocab_size=VOCAB, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    ).eval()
    hf.save_pretrained(tmp_path)
    word_tokenizer().save_pretrained(tmp_path)
    texts = ["w5 w6 w7", "w8", "w5 w6 w7"]
    found = embedder(str(tmp_path))(texts)
    mean_D = hf(input_ids=torch.tensor([[5, 6, 7]])).last_hidden_state[0].mean(0)
    np.testing.assert_allclose(found[0], mean_D / mean_D.norm(), atol=1e-5)
    np.testing.assert_array_equal(found[0], found[2])
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text('{"pooling_mode_cls_token": true}')
    first_D = hf(input_ids=torch.tensor([[8]])).last_hidden_state[0, 0]
    np.testing.assert_allclose(embedder(str(tmp_path))(texts)[1], first_D / first_D.norm(), atol=1e-5)


def test_numbers_and_plain_texts():
    assert same_number("so it is 1,200.0 in all", "1200")
    assert same_number("-3", "-3.0")
    assert not same_number("3", "4")
    assert not same_number("none", "nan")
    assert plain(" A  red hat! ") == "red hat"
    assert plain("a") == "a"


def test_topk_and_randomk():
    values = np.arange(20, dtype=np.float32).reshape(4, 5) - 10
    scores = Scores("m", "t", "probe", values, values[None])
    choice = choose(scores, 6, draws=5, seed=0)
    assert choice.top == scores.ranked()[:6]
    assert len({tuple(drawn) for drawn in choice.random}) > 1
    for drawn in choice.random:
        assert len(set(drawn)) == 6
        assert not set(drawn) & set(choice.top)
    assert choice == choose(scores, 6, draws=5, seed=0)
    assert clipped((16, 32, 64, 128), 270) == [16, 32, 64, 128]
    assert clipped((4, 16, 32), 16) == [4, 8]


def test_the_probe_finds_the_heads_that_tell():
    """Head (1, 2) says which function it is, and nothing else does."""
    torch.manual_seed(0)
    z: dict[str, Tensor] = {}
    for place, name in enumerate(("retrieval", "inference", "math-calculation")):
        z[name] = 0.3 * torch.randn(40, 2, 4, 8)
        z[name][:, 1, 2, place] += 4.0
    found = probe("m", z, seed=0)
    assert found.accuracy > 0.9
    for name, scores in found.scores.items():
        assert scores.ranked()[0] == (1, 2)
        assert (scores.task, scores.method, scores.per_prompt.shape) == (name, "probe", (10, 2, 4))
    again = probe("m", z, seed=0)
    np.testing.assert_array_equal(again.scores["inference"].values, found.scores["inference"].values)


def test_elbow():
    assert elbow(np.array([[10.0, 9.5, 9.0], [0.2, 0.1, 0.0]])) == 4
    assert elbow(np.ones((2, 2))) == 4


@torch.no_grad()
def test_states_are_those_of_generation(nano):
    parts = split(builtin_questions().questions["math-calculation"], "math-calculation", n=5, shots=1)
    prompts = encode_questions(nano, [question.prompt for question in parts.test])
    prefix = encode_prefix(nano, parts.prefix)
    (answers,) = generate(nano, prompts, prefix=prefix, max_new_tokens=4, stop=())
    z_NLHK = answer_states(nano, prompts, answers, prefix=prefix, tokens=2)
    for i, answer in enumerate(answers):
        with hs.record(nano) as z:
            nano.hf(input_ids=torch.tensor([prefix + prompts[i] + answer.ids]))
        first = len(prefix) + len(prompts[i]) - 1
        at = [first + token for token in highest_surprisal(answer, 2)]
        for layer in range(nano.n_layers):
            torch.testing.assert_close(z_NLHK[i, layer], z[layer][0, at].mean(0), atol=1e-4, rtol=1e-3)
    assert highest_surprisal(Answer("", [1, 2, 3], [0.1, 3.0, 2.0]), 2) == [1, 2]
    assert highest_surprisal(Answer("", []), 2) == [0]


@torch.no_grad()
def test_ablation_behind_the_examples(nano):
    """The fast session against plain runs with a mask per position; attribution approximates the same."""
    parts = split(builtin_questions().questions["inference"], "inference", n=2, shots=1)
    prefix = encode_prefix(nano, parts.prefix)
    task = surprisal_task(nano, parts.test, prefix=prefix, name="inference")
    assert all(ids[: len(prefix)] == prefix for ids in task.clean_ids)
    scores = ablation(nano, task, start=len(prefix))
    for layer, head in ((0, 1), (2, 3), (3, 0)):
        for i, ids in enumerate(task.clean_ids):
            keep_TLH = torch.ones(len(ids), 4, 4)
            keep_TLH[len(prefix) :, layer, head] = 0.0
            inputs = torch.tensor([ids])
            plain_V = nano.hf(input_ids=inputs).logits[0, -1].log_softmax(-1)
            with patched(nano, keep_TLH[None]):
                without_V = nano.hf(input_ids=inputs).logits[0, -1].log_softmax(-1)
            token = task.answers[i][0]
            expected = float(plain_V[token] - without_V[token])
            assert scores.per_prompt[i, layer, head] == pytest.approx(expected, abs=1e-3)
    plainly = Engine(nano)
    plainly.reason = "asked to run plainly"
    tokens = Targets.of(task, [0], nano.device)
    keep = 1 - torch.eye(16).view(16, 4, 4)
    slow = Session(nano, task.clean_ids[:1], tokens, start=len(prefix), engine=plainly)
    np.testing.assert_allclose((slow.metric_B - slow.metrics(keep))[:, 0].view(4, 4), scores.per_prompt[0], atol=1e-3)
    first_order = attribution(nano, task, start=len(prefix))
    assert first_order.values.shape == (4, 4)
    assert np.corrcoef(first_order.values.ravel(), scores.values.ravel())[0, 1] > 0.3


def test_pushes_go_from_wrong_to_right(nano):
    torch.manual_seed(0)
    z_NLHK = torch.randn(20, 4, 4, nano.reach.head_widths[0])
    right = np.array([1] * 10 + [0] * 10)
    z_NLHK[:10, 1, 1, 0] += 6
    shifts = steering_vectors(nano, z_NLHK, right, [(1, 1)], [1.0, -2.0])
    assert shifts is not None
    towards = shifts[1][0, 1]
    assert int(towards.abs().argmax()) == 0
    assert towards[0] > 0
    torch.testing.assert_close(shifts[1][1, 1], -2 * towards)
    assert not shifts[0].any()
    assert not shifts[1][:, [0, 2, 3]].any()
    assert steering_vectors(nano, z_NLHK, np.ones(20), [(1, 1)], [1.0]) is None


@torch.no_grad()
def test_shifted_generation(nano):
    """Adding what the masked heads would have lacked gives them back: a shift is what is added to z."""
    ids = [[5, 6, 7, 8]]
    shifts = [torch.zeros(2, 4, width) for width in nano.reach.head_widths]
    shifts[2][1, 0] = 50.0
    plain_run, steered = generate(nano, ids, acting=Interventions(shifts=shifts), max_new_tokens=5, stop=())
    ((expected,),) = generate(nano, ids, max_new_tokens=5, stop=())
    assert plain_run[0].ids == expected.ids
    assert steered[0].surprisal != pytest.approx(expected.surprisal, abs=1e-3)
