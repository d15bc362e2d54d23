"""The user's own JSONL: what it may look like, and what is said about each way of getting it wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast

from headscope.errors import InputError
from headscope.tasks import jsonl

GOOD = {"clean": "the cat", "corrupt": "the dog", "answers": [" sat", " ran"], "wrong": " sang"}


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    """One token per word (with the space before it) and per sign; unknown words fall into bytes."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words = "the cat\nthe dog\nthe cat sat ran sang\n" * 3
    trainer = BpeTrainer(vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    core.train_from_iterator([words], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=core)


def write(folder: Path, *rows: Any) -> Path:
    file = folder / "own.jsonl"
    file.write_text(
        "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows), encoding="utf-8"
    )
    return file


def without(*fields: str) -> dict[str, Any]:
    return {field: value for field, value in GOOD.items() if field not in fields}


def test_a_good_file(tmp_path: Path, tokenizer):
    second = {"clean": "the dog", "corrupt": "the cat", "answer": " ran", "wrong": [" sat"]}
    task = jsonl(write(tmp_path, GOOD, "", second), tokenizer)
    assert (task.name, task.metric, task.seed, len(task)) == ("own", "logit-diff", None, 2)
    assert task.clean == ["the cat", "the dog"]
    for i, (answers, wrong) in enumerate([([" sat", " ran"], [" sang"]), ([" ran"], [" sat"])]):
        ids = tokenizer(task.clean[i])["input_ids"]
        assert task.clean_ids[i] == ids
        assert task.corrupt_ids[i] == tokenizer(task.corrupt[i])["input_ids"]
        for text, token in zip(answers + wrong, task.answers[i] + task.wrong[i], strict=True):
            assert tokenizer(task.clean[i] + text)["input_ids"] == [*ids, token]


def test_n_takes_the_first_lines(tmp_path: Path, tokenizer):
    file = write(tmp_path, GOOD, GOOD, GOOD)
    assert [len(jsonl(file, tokenizer, n=n)) for n in (1, 2, 9, None)] == [1, 2, 3, 3]
    with pytest.raises(InputError, match="n = 0"):
        jsonl(file, tokenizer, n=0)


@pytest.mark.parametrize("metric", ["logit-diff", "prob-diff", "log-prob"])
def test_the_metric_may_be_given(tmp_path: Path, tokenizer, metric: str):
    assert jsonl(write(tmp_path, GOOD | {"metric": metric}, GOOD), tokenizer).metric == metric


@pytest.mark.parametrize("row", [without("wrong"), GOOD | {"wrong": []}, without("wrong") | {"metric": "log-prob"}])
def test_without_wrong_answers_it_is_log_prob(tmp_path: Path, tokenizer, row: dict[str, Any]):
    task = jsonl(write(tmp_path, row), tokenizer)
    assert (task.metric, task.wrong) == ("log-prob", [[]])


def test_a_byte_order_mark_and_windows_line_ends_are_fine(tmp_path: Path, tokenizer):
    file = tmp_path / "own.jsonl"
    file.write_bytes(b"\xef\xbb\xbf" + json.dumps(GOOD).encode() + b"\r\n\r\n")
    assert len(jsonl(file, tokenizer)) == 1


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{not json}", "expected one JSON object, found bad JSON"),
        ("[" * 100_000, "expected one JSON object, found bad JSON"),
        ("[1, 2]", "expected a JSON object, found a list"),
        ("null", "expected a JSON object, found null"),
        ("3", "expected a JSON object, found a number"),
        (without("clean"), '"clean" is missing; found corrupt, answers, wrong'),
        (without("corrupt"), '"corrupt" is missing'),
        ("{}", '"clean" is missing; found no fields'),
        (without("answers"), '"answers" is missing or empty'),
        (GOOD | {"answers": []}, '"answers" is missing or empty'),
        (without("wrong") | {"metric": "logit-diff"}, '"wrong" is missing or empty, which the metric logit-diff needs'),
        (GOOD | {"clean": 5}, '"clean" must be a text, found a number'),
        (GOOD | {"corrupt": None}, '"corrupt" must be a text, found null'),
        (GOOD | {"clean": ""}, '"clean" must not be empty'),
        (GOOD | {"answers": 7}, '"answers" must be a text or a list of texts, found a number'),
        (GOOD | {"answers": [" sat", 7]}, '"answers" must be a text or a list of texts, found a list'),
        (GOOD | {"wrong": {"a": 1}}, '"wrong" must be a text or a list of texts, found an object'),
        (GOOD | {"corrupt": "the cat"}, "clean and corrupt must differ"),
        (GOOD | {"corrupt": "the dog dog"}, "the same number of tokens, found 2 and 3"),
        (GOOD | {"answers": " sat ran"}, r"' sat ran' must add exactly one token .* \['Ġsat', 'Ġran'\]"),
        (GOOD | {"wrong": ""}, "'' must add exactly one token"),
        (GOOD | {"wrong": [" sat"]}, r"must not share a token, found \['Ġsat'\] in both"),
        (GOOD | {"metric": "f1"}, "metric must be one of logit-diff, prob-diff, log-prob, .*found 'f1'"),
        (GOOD | {"metric": ["log-prob"]}, "metric must be one of"),
        (GOOD | {"metric": "prob-diff"}, "the same metric, found prob-diff after logit-diff on line 1"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, tokenizer, row: Any, message: str):
    first = GOOD | {"metric": "logit-diff"}
    with pytest.raises(InputError, match=rf"own\.jsonl, line 3: .*{message}"):
        jsonl(write(tmp_path, first, "", row), tokenizer)


def test_an_answer_that_merges_with_the_prompt_is_refused(tmp_path: Path, tokenizer):
    row = {"clean": "the c", "corrupt": "the d", "answers": "at", "wrong": "z"}
    with pytest.raises(InputError, match=r"line 1: 'at' must add exactly one token .* \['Ġcat'\]"):
        jsonl(write(tmp_path, row), tokenizer)


@pytest.mark.parametrize("content", ["", "\n \n"])
def test_an_empty_file(tmp_path: Path, tokenizer, content: str):
    with pytest.raises(InputError, match=r"own\.jsonl: .* found an empty file"):
        jsonl(write(tmp_path, content), tokenizer)


def test_a_missing_file(tmp_path: Path, tokenizer):
    with pytest.raises(InputError, match=r"none\.jsonl: cannot be read \(No such file"):
        jsonl(tmp_path / "none.jsonl", tokenizer)


def test_a_folder(tmp_path: Path, tokenizer):
    with pytest.raises(InputError, match="cannot be read"):
        jsonl(tmp_path, tokenizer)


def test_not_utf8(tmp_path: Path, tokenizer):
    file = tmp_path / "own.jsonl"
    file.write_bytes(b'{"clean": "caf\xe9"}')
    with pytest.raises(InputError, match=r"own\.jsonl: expected UTF-8 text, found byte 14"):
        jsonl(file, tokenizer)
