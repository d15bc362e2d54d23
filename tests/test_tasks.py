"""Every task on every tokenizer, with lengths, answers and differences derived again from the texts alone."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from headscope.errors import InputError
from headscope.tasks import TASKS, Task, greater_than, ioi, ioi_long, make_task
from headscope.tasks.items import Item, build

SHARED = Path(__file__).parents[2] / "shared"
LOCAL = {
    "gpt2": "tokenizers/gpt2",
    "llama3": "tokenizers/llama3",
    "olmo": "tokenizers/olmo-dolma-v1_5",
    "olmo2": "tokenizers/olmo2-dolma2",
    "stories15M": "models/stories15M",
}
YEAR_SPLIT = {
    "gpt2": "17|32",
    "llama3": "173|2",
    "olmo": "17|32",
    "olmo2": "173|2",
    "stories15M": "1|7|3|2",
    "smollm2": "1|7|3|2",
}
# The others have targets: see test_target_tasks.
PAIRED = ("ioi", "ioi-long", "greater-than", "docstring")
CHANGED = {"ioi": 1, "ioi-long": 1, "docstring": 5}
CHANGED_YEAR = {"17|32": 1, "173|2": 1, "1|7|3|2": 2}


@pytest.fixture(scope="session", params=[*LOCAL, "smollm2"])
def tokenizer(request: pytest.FixtureRequest):
    if request.param == "smollm2":
        found = request.getfixturevalue("smollm2_tokenizer")
    else:
        folder = SHARED / LOCAL[request.param]
        if not folder.exists():
            pytest.skip(f"no shared folder with {LOCAL[request.param]} beside the repository")
        file = folder / "tokenizer.json"
        bare = not (folder / "tokenizer_config.json").exists()
        found = PreTrainedTokenizerFast(tokenizer_file=str(file)) if bare else AutoTokenizer.from_pretrained(folder)
    found.tested_as = request.param
    return found


def split_words(*words: str) -> PreTrainedTokenizerFast:
    """A tokenizer that knows the given words and splits everything else into characters."""
    vocabulary = {token: i for i, token in enumerate(["<eos>", *map(chr, range(32, 127)), "\n", *words])}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="<eos>"))
    known = "|".join(sorted(map(re.escape, words), key=len, reverse=True)) or "\0"
    core.pre_tokenizer = pre_tokenizers.Split(Regex(rf"{known}|[\s\S]"), "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<eos>")


@pytest.mark.parametrize("name", PAIRED)
def test_pairs_fit_the_tokenizer(tokenizer, name: str):
    task = TASKS[name](tokenizer, n=500, seed=3)
    assert len(task) == len(set(task.clean)) == 500
    changed = CHANGED[name] if name in CHANGED else CHANGED_YEAR[YEAR_SPLIT[tokenizer.tested_as]]
    for clean, corrupt, clean_ids, corrupt_ids in zip(
        task.clean, task.corrupt, task.clean_ids, task.corrupt_ids, strict=True
    ):
        assert tokenizer(clean)["input_ids"] == clean_ids
        assert tokenizer(corrupt)["input_ids"] == corrupt_ids
        assert len(clean_ids) == len(corrupt_ids)
        assert sum(a != b for a, b in zip(clean_ids, corrupt_ids, strict=True)) == changed


@pytest.mark.parametrize("name", PAIRED)
def test_answers_are_single_tokens_after_the_whole_prompt(tokenizer, name: str):
    """Appending the answer's own text must give the prompt's ids and that one token, for every answer."""
    task = TASKS[name](tokenizer, n=500, seed=3)
    for i in range(0, 500, 10):
        assert task.answers[i]
        assert task.wrong[i]
        assert not set(task.answers[i]) & set(task.wrong[i])
        for token in task.answers[i] + task.wrong[i]:
            text = tokenizer.convert_ids_to_tokens(token).lstrip("Ġ▁")
            if name != "greater-than":
                text = " " + text
            assert tokenizer(task.clean[i] + text)["input_ids"] == [*task.clean_ids[i], token]


def test_ioi_asks_for_the_name_that_is_not_repeated(tokenizer):
    for task, longer in ((ioi(tokenizer, n=60), False), (ioi_long(tokenizer, n=60), True)):
        orders = {"ABBA": 0, "BABA": 0}
        for i, clean in enumerate(task.clean):
            found = re.search(
                r"(\w+) and (\w+) (?:\w+ ).* (\w+) (?:gave|wanted to give|handed|brought) a \w+ to$", clean
            )
            assert found
            first, second, subject = found.groups()
            indirect = second if subject == first else first
            orders["ABBA" if subject == second else "BABA"] += 1
            assert subject in (first, second)
            assert tokenizer(f"{clean} {indirect}")["input_ids"][-1:] == task.answers[i]
            assert tokenizer(f"{clean} {subject}")["input_ids"][-1:] == task.wrong[i]
            third = task.corrupt[i].removeprefix(clean[: found.start(3)]).split()[0]
            assert third not in (first, second)
            assert (len(task.clean_ids[i]) > 55) == longer
        assert orders["ABBA"] == orders["BABA"] == 30


def test_greater_than_follows_the_tokenizers_split(tokenizer):
    task = greater_than(tokenizer, n=200, seed=1)
    split = YEAR_SPLIT[tokenizer.tested_as]
    for i, clean in enumerate(task.clean):
        start, shown = re.findall(r"year (\d+)", clean)
        corrupt_start, corrupt_shown = re.findall(r"year (\d+)", task.corrupt[i])
        assert shown == corrupt_shown == start[: 3 if split == "173|2" else 2]
        assert corrupt_start == (start[:3] + "1" if split == "173|2" else start[:2] + "01")
        own = {"17|32": start[2:], "173|2": start[3], "1|7|3|2": start[2]}[split]
        texts = [[tokenizer.convert_ids_to_tokens(token) for token in side[i]] for side in (task.answers, task.wrong)]
        assert all(len(text) == len(own) and text > own for text in texts[0])
        assert all(len(text) == len(own) and text <= own for text in texts[1])
        assert (own in texts[1]) == (split != "1|7|3|2")
        if split != "17|32":
            assert len(texts[0]) + len(texts[1]) == (9 if split == "1|7|3|2" else 10)


def test_docstring_asks_for_the_next_argument(tokenizer):
    task = TASKS["docstring"](tokenizer, n=60)
    for i, clean in enumerate(task.clean):
        signature = re.search(r"\(self, (.*)\):", clean)
        other = re.search(r"\(self, (.*)\):", task.corrupt[i])
        assert signature
        assert other
        names = signature[1].split(", ")
        listed = re.findall(r":param (\w+):", clean)
        assert names[: len(listed)] == listed == re.findall(r":param (\w+):", task.corrupt[i])
        assert tokenizer(f"{clean} {names[len(listed)]}")["input_ids"][-1:] == task.answers[i]
        assert len(task.wrong[i]) == len(names) - 1
        assert not set(names) & set(other[1].split(", "))


@settings(max_examples=2, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**40))
def test_the_seed_decides(tokenizer, seed: int):
    for make in (TASKS[name] for name in PAIRED):
        task = make(tokenizer, n=20, seed=seed)
        assert task == make(tokenizer, n=20, seed=seed)
        assert set(task.clean) != set(make(tokenizer, n=20, seed=seed + 1).clean)
        assert make(tokenizer, n=40, seed=seed).take(slice(20)) == task


def test_take():
    task = ioi(split_words(*(f" {name}" for name in ("Tom", "Ben", "Sam", "Mary"))), n=10)
    chosen = task.take([7, 2])
    assert chosen.clean == [task.clean[7], task.clean[2]]
    assert chosen.answers == [task.answers[7], task.answers[2]]
    assert len(task.take(slice(0, 10, 3))) == 4
    assert "ioi" in chosen.description


def test_make_task_by_name_and_by_path(tmp_path: Path):
    tokenizer = split_words(" Tom", " Ben", " Sam")
    assert make_task("ioi", tokenizer, n=4, seed=2) == ioi(tokenizer, n=4, seed=2)
    file = tmp_path / "own.jsonl"
    file.write_text('{"clean": "ab", "corrupt": "ac", "answers": "d", "wrong": "e"}\n' * 3)
    own = make_task(str(file), tokenizer, n=2)
    assert (own.name, len(own), own.seed) == ("own", 2, None)
    with pytest.raises(InputError, match=r"'ioy'.*ioi, ioi-long, greater-than, docstring[\s\S]*JSONL"):
        make_task("ioy", tokenizer)


def test_too_few_names_say_so():
    with pytest.raises(InputError, match=r"Task ioi needs 3 .* found 2 of \d+ in the tokenizer"):
        ioi(split_words(" Tom", " Ben"), n=5)


def test_too_few_prompts_say_why():
    def draw(rng, slot) -> Item:
        number = rng.randrange(3)
        return Item(f"{number}a", f"{number}b", ("x",), ("y",), changed=1)

    assert isinstance(build("few", "logit-diff", draw, split_words(), n=3, seed=0), Task)
    with pytest.raises(InputError, match=r"Task few found 3 of 4 prompts .* the same prompt came up again"):
        build("few", "logit-diff", draw, split_words(), n=4, seed=0)


@pytest.mark.parametrize(
    ("pair", "reason"),
    [
        (Item("ab", "acc", ("x",), ("y",), 1), "differ in length"),
        (Item("abc", "axy", ("x",), ("y",), 1), "a changed word is not one token"),
        (Item("ab", "ac", ("xy",), ("y",), 1), "an answer is not one token"),
        (Item("ab", "ac", ("x",), ("yz",), 1), "an answer is not one token"),
        (Item("ab", "ac", ("th",), ("y",), 1), "an answer is not one token"),
        (Item("ab", "ac", ("x",), ("y", "x"), 1), "a right and a wrong target are the same"),
    ],
)
def test_unusable_pairs_are_turned_down(pair: Item, reason: str):
    """The tokenizer knows "bth": after "ab" the answer "th" would change the prompt's own last token."""
    with pytest.raises(InputError, match=reason):
        build("bad", "logit-diff", lambda rng, slot: pair, split_words("bth"), n=1, seed=0)


def test_years_in_one_token_are_refused():
    with pytest.raises(InputError, match=r"splits 1100 as 1100"):
        greater_than(split_words(*(f" {year}" for year in range(1100, 2000))))


def test_a_tokenizer_that_closes_every_text_is_refused():
    tokenizer = split_words(" Tom", " Ben", " Sam")
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="$A <eos>", special_tokens=[("<eos>", 0)]
    )
    with pytest.raises(InputError, match="'<eos>' at the end"):
        ioi(tokenizer)


@pytest.mark.parametrize("name", TASKS)
def test_no_prompts_is_an_input_error(name: str):
    tokenizer = split_words(" Tom", " Ben", " Sam", *(f" {word}" for word in "size path mode color limit".split()))
    with pytest.raises(InputError):
        TASKS[name](tokenizer, n=0)


def test_import_needs_neither_torch_nor_transformers():
    code = "import sys, headscope.tasks; print([m for m in ('torch', 'transformers') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
