"""Nonsense by kinds, as strategies of hypothesis: words for the command line, task files, changes to whole files."""

from __future__ import annotations

import json
import random
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from headscope.runs.settings import options
from headscope.sparse.settings import Settings as SparsifySettings
from headscope.studies import settings as studies

sys.path.append(str(Path(__file__).parents[2] / "tests"))
from run_folders import ALL as RUNS  # pyright: ignore[reportMissingImports]

__all__ = ["RUNS", "adapters", "arguments", "drawn", "models", "paths", "runs", "tasks"]


def drawn(strategy: SearchStrategy[Any], seed: int, count: int) -> list[Any]:
    """So many values of a strategy, the same for the same seed."""
    found: list[Any] = []
    while len(found) < count:

        @seeded(seed + len(found))
        @settings(
            max_examples=count - len(found), database=None, deadline=None, phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),  # pyright: ignore[reportArgumentType]
        )  # fmt: skip
        @given(strategy)
        def keep(value: Any) -> None:
            found.append(value)

        keep()
    return found[:count]


# JSON as text, so that what Python would not write is there as well.
DEEP = [f"{'[' * 100_000}", f"{'[' * 300}{']' * 300}", '{"a":' * 500 + "1" + "}" * 500]
RAW = [
    "null", "true", "-1", "0", "3", "1e999", "-1e999", "NaN", "Infinity", "1" * 5000, "-" + "9" * 30, "0.5", '""',
    '"x"', '"\\ud800"', '"\\u0000"', '"../../../../escaped"', '"/etc/passwd"', '"' + "n" * 300 + '"', "[]", "{}",
    "[1]", '["a"]', "[[1, 2], [3]]", '{"a": 1}', '{"": {}}', "[null]", *DEEP,
]  # fmt: skip
raw = st.sampled_from(RAW) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
).map(json.dumps)
odd_text = (
    st.text(st.characters(exclude_characters="\0"), max_size=30)
    | st.sampled_from(["x" * 300, "x/" * 2000, "../x", "~", "~nobody/x", "/dev/null/x", "/proc/self/x", "a\udcffb", "",
                       ",", "%s", "{}", "[red]", "-", "--", "x:y=1", "patching:steps=nan", "é", "\n", "/sys/x"])
)  # fmt: skip
odd_number = st.integers().map(str) | st.floats().map(str) | st.sampled_from(
    ["nan", "inf", "-inf", "-1", "0", "1e400", "9" * 5000, "10" * 20, "0x10", "1_0", "١", "1,2", "½", "1e-400"]
)  # fmt: skip

# By command: what it needs, with a model that is not there, so that nothing long begins; and its options.
BASES: dict[str, list[str]] = {
    "check": ["./none", "--task", "ioi"], "heads": ["./none", "--task", "ioi"], "edges": ["./none", "--task", "ioi"],
    "roles": ["./none", "--task", "ioi"], "functions": ["./none"], "sparsify": ["./none", "--out", "sparse"],
    "sparsify-report": ["./none", "./none-sparse"], "sparsity-frontier": ["./none", "./none-sparse", "--task", "ioi"],
    "reproduce": ["--models", "./none", "--only", "000"], "merge": ["./none", "./none", "--out", "merged"],
    "figure": ["./none"], "report": ["./none"], "list": ["tasks"],
}  # fmt: skip
RECORDS = {record.command: record for record in vars(studies).values() if getattr(record, "command", "")}
RECORDS["sparsify"] = SparsifySettings
PLAIN = {"figure": ["--format", "--width", "--only", "--out"], "report": ["--title"], "merge": [], "list": ["--json"]}


@st.composite
def _arguments(draw: st.DrawFn) -> list[str]:
    command = draw(st.sampled_from(list(BASES)))
    record = RECORDS.get(command)
    flags = [one.flag for one in options(record) if one.flag] if record else PLAIN[command]
    words = list(BASES[command])
    if draw(st.integers(0, 3)) == 0 and words:
        words[draw(st.integers(0, len(words) - 1))] = draw(odd_text)
    for _ in range(draw(st.integers(0, 3))):
        flag = draw(st.sampled_from([*flags, "--what"]) if flags else st.just("--what"))
        words += [flag, draw(odd_number | odd_text)] if draw(st.integers(0, 9)) else [flag]
    return [command if draw(st.integers(0, 30)) else draw(odd_text), *words]


arguments = _arguments()

PAIR = {"clean": "When Mary and John", "corrupt": "When John and Mary", "answers": [" went"], "wrong": [" came"]}
ROWS: list[dict[str, Any]] = [
    PAIR, {**PAIR, "metric": "log-prob"}, {"prompt": "When Mary", "target": " went", "foils": [" came"]},
    {"sentence_good": "The cats sleep.", "sentence_bad": "The cats sleeps."},
    {"question": "What?", "choices": {"label": ["A", "B"], "text": ["a", "b"]}, "answerKey": "A"},
    {"question": "What?", "answer": "<<1+1=2>>2\n#### 2"}, {"input": "Is it?", "target_scores": {"yes": 1, "no": 0}},
    {"input": "Is it?", "target": ["yes"]},
]  # fmt: skip
QUESTIONS = [{"question": "q", "answer": "a", "generated": [
    {"subquestion": "What?", "answer": "this", "cognitive_skill": "Retrieval"}]}]  # fmt: skip


def spoilt(value: Any, text: str, place: int) -> str:
    """The value as JSON, with the text in the place of one of its parts."""
    marked = json.dumps(_marked(json.loads(json.dumps(value)), random.Random(place)))
    return marked.replace('"@HERE"', text)


def _marked(value: Any, draw: random.Random) -> Any:
    inside = list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
    if not inside or draw.random() < 0.15:
        return "@HERE"
    at = draw.choice(inside)
    if isinstance(value, dict) and draw.random() < 0.15:
        return {key: one for key, one in value.items() if key != at}
    value[at] = _marked(value[at], draw)
    return value


@st.composite
def _tasks(draw: st.DrawFn) -> tuple[str, bytes]:
    name = draw(st.sampled_from(["own.jsonl", "own.json", "questions.json"]))
    if draw(st.integers(0, 5)) == 0:
        return name, draw(st.binary(max_size=60)) if draw(st.booleans()) else draw(raw).encode(errors="surrogatepass")
    if name == "own.jsonl":
        rows = draw(st.lists(st.sampled_from(ROWS), min_size=1, max_size=3))
        lines = [spoilt(row, draw(raw), draw(st.integers(0, 999))) for row in rows]
        return name, "\n".join(lines).encode(errors="surrogatepass")
    whole = {"name": "t", "examples": ROWS[-2:]} if name == "own.json" else QUESTIONS
    return name, spoilt(whole, draw(raw), draw(st.integers(0, 999))).encode(errors="surrogatepass")


tasks = _tasks()


@dataclass(frozen=True)
class Change:
    """What is done to the bytes of a whole file: cut, flip, or a part of its JSON (or its header's) made nonsense."""

    how: str
    text: str
    place: int

    def __call__(self, data: bytes) -> bytes:
        at = self.place % max(1, len(data))
        if self.how == "cut":
            return data[:at]
        if self.how == "flip":
            return data[:at] + bytes([data[at] ^ (1 << self.place % 8)]) + data[at + 1 :] if data else b"\xff"
        if self.how == "replace":
            return self.text.encode(errors="surrogatepass")
        try:
            return spoilt(json.loads(data), self.text, self.place).encode(errors="surrogatepass")
        except ValueError:
            return self._in_header(data)

    def _in_header(self, data: bytes) -> bytes:
        """Of safetensors: in the JSON before the numbers, or in what a record keeps as JSON inside that."""
        size = int.from_bytes(data[:8], "little")
        try:
            header = json.loads(data[8 : 8 + size])
        except ValueError:
            return data[: self.place % (len(data) + 1)]
        about = header.get("__metadata__", {})
        key = next(iter(about), "")
        if self.place % 4 and key == "headscope":
            about[key] = spoilt(json.loads(about[key]), self.text, self.place)
            text = json.dumps(header)
        else:
            text = spoilt(header, self.text, self.place)
        told = text.encode(errors="surrogatepass")
        return len(told).to_bytes(8, "little") + told + data[8 + size :]


changes = st.builds(
    Change, st.sampled_from(["cut", "flip", "replace", "spoil", "spoil", "spoil", "spoil"]), raw, st.integers(0, 10**6)
)
models = st.tuples(
    st.sampled_from(["config.json", "config.json", "model.safetensors", "tokenizer_config.json", "tokenizer.json",
                     "generation_config.json"]),
    changes,
)  # fmt: skip
adapters = st.tuples(
    st.sampled_from(["adapter_config.json", "headscope_gate.json", "headscope_gate.json", "adapter_model.safetensors"]),
    changes,
)
runs = st.tuples(st.integers(0, len(RUNS) - 1), st.sampled_from(["manifest", *"abcdefghijk"]), changes)

_path = st.sampled_from(
    ["/", "/all", "/stamp", "/run/run", "/file/run/manifest.json", "/file/../secret", "/run/%2e%2e", "/file/%00",
     "/file/" + "x" * 5000, "/run/" + "a/" * 2000, "//", "/file/run/%ff%fe", "http://evil/", "*", "/run/run/../../.."]
) | st.text(st.characters(max_codepoint=255, exclude_characters="\r\n "), max_size=40).map("/".__add__)  # fmt: skip


@st.composite
def _requests(draw: st.DrawFn) -> bytes:
    if draw(st.integers(0, 6)) == 0:
        return draw(st.binary(min_size=1, max_size=80)) + b"\r\n\r\n"
    method = draw(st.sampled_from(["GET", "GET", "GET", "HEAD", "POST", "OPTIONS", "FETCH", "get"]))
    host = draw(st.sampled_from(["127.0.0.1:@PORT", "127.0.0.1:@PORT", "localhost:@PORT", "evil.example", ""]))
    version = draw(st.sampled_from(["HTTP/1.1", "HTTP/1.0", "HTTP/9.9", "HTTP/x"]))
    more = draw(st.sampled_from(["", "Content-Length: -1\r\n", "X: " + "y" * 70_000 + "\r\n", "bad header\r\n"]))
    line = f"{method} {draw(_path)} {version}\r\nHost: {host}\r\nConnection: close\r\n{more}\r\n"
    return line.encode("latin-1", errors="replace")


paths = _requests()
