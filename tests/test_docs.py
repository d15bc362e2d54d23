"""What the README and the documentation show runs, on the tiny model instead of the real one, and their links lead
somewhere.

Commands are taken from indented lines and from running text, in the order of the pages, and those that are the same on
the tiny model run once, all in one folder: some read what an earlier one wrote.
"""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import torch
import typer.main
import yaml

import headscope as hs
import headscope.cli

ROOT = Path(__file__).parents[1]
NAV: list[dict[str, str]] = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
PAGES = [f"docs/{page}" for entry in NAV for page in entry.values()]
TEXTS = {name: (ROOT / name).read_text() for name in ("README.md", *PAGES) if (ROOT / name).exists()}

# Commands that no test can run, and why.
CANNOT = {
    "headscope comet setup": "makes an environment of 1.4 GB; tests/test_comet.py uses it where it is there",
    "headscope heads openai-community/gpt2 --task ioi": "fetches a model from the hub",
    "headscope check smollm2-135m --task functions --n 50": (
        "four solved questions are too long for the tiny model; tests/test_function_study.py checks with the real one"
    ),
    "accelerate launch --cpu --num_processes 2 -m headscope sparsify gpt2 --out sparse --text corpus.txt": (
        "fetches a model from the hub; tests/test_sparse.py runs two processes on the tiny one"
    ),
}
# What stands for what in a document.
NAMES = {
    r"--text wikitext2_train\S+": "--text self",
    r"--start smollm2-135m-sparse|--start first/adapter": "--start sparse/adapter",
    r"adapters/stories15M-sparse": "sparse/adapter",
    r"(?<![\w/])stories15M-sparse": "stories-sparse",
    r"smollm2-135m-sparse": "sparse",
    r"smollm2-135m|(path/to/)?stories15M|path/to/model|model\.gguf|\bBASE\b": "nano",
    r"\bADAPTER\b": "sparse/adapter",
    r"\bFOLDER\b": "merged",
}
# What makes each command quick; these take the place of what the document says.
SMALL = {
    "check": "--n 4",
    "heads": "--n 4 --format png",
    "edges": "--n 4 --points 5 --format png",
    "functions": "--n 4 --shots 1 --train 4 --k 2 --draws 1 --max-new-tokens 2 --comet none --embedder none",
    "roles": "--n 4 --held-out 2 --compare 2 --seeds 1 --format png",
    "sparsify": "--steps 2 --sequences 32 --held-out 8 --length 12 --batch 4 --lora-rank 4",
    "sparsify-report": "--n 4 --sequences 8 --length 12",
    "sparsity-frontier": "--n 4 --sequences 8 --length 12 --format png",
    "reproduce": "--preset quick --models nano,sparse --only 004 --comet none --format png",
    "view": "--port 0",
}
APP: Any = typer.main.get_command(headscope.cli.app)


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def spans(text: str) -> list[str]:
    """What stands in running text as code, each on one line."""
    prose = re.sub(r"^```.*?^```|^    .*?$", "", text, flags=re.DOTALL | re.MULTILINE)
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose)]


def shown(text: str, program: str) -> Iterator[str]:
    """The commands of a program, without their comments."""
    lines = re.findall(r"^    (.+?)(?:\s+#.*)?$", text, re.MULTILINE)
    yield from (one for one in [*lines, *spans(text)] if one.split()[0] == program)


def on_nano(command: str) -> str:
    """A command as the test runs it."""
    for pattern, name in NAMES.items():
        command = re.sub(pattern, name, command)
    command = command.replace("nano nano ", "nano ")  # Two models are one here.
    _, *words = shlex.split(command)
    small = SMALL.get(words[0], "").split()
    for option in small[::2]:
        if option in words:
            del words[words.index(option) : words.index(option) + 2]
    return shlex.join([*words, *small])


def commands() -> list[str]:
    """Whole commands; one that is merely named (`headscope heads`) is none."""
    bare = {f"headscope {name}" for name in APP.commands}
    # (Where a command needs nothing more, a line of its own is a command, and a name in running text is a name.)
    found = [one for text in TEXTS.values() for one in shown(text, "headscope")]
    lines = {line for text in TEXTS.values() for line in re.findall(r"^    (headscope .*?)(?:\s+#.*)?$", text, re.M)}
    return [one for one in found if one not in CANNOT and (one not in bare or one in lines)]


@pytest.mark.parametrize("name", [name for name, text in TEXTS.items() if blocks(text, "python")])
def test_python_blocks(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = "\n".join(blocks(TEXTS[name], "python"))
    for pattern, text in NAMES.items():
        code = re.sub(pattern, text, code)
    for theirs, ours in (("n=100", "n=4"), ("n=50", "n=4"), ("[(23, 3), (20, 0)]", "[(2, 1)]"), ('"cuda"', '"cpu"')):
        code = code.replace(theirs, ours)
    exec(compile(code, name, "exec"), {"mask": torch.ones(4, 4), "keep": torch.zeros(4, 4)})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the commands find: the files that the documents show, the run of `make demo`, and nothing else."""
    folder = tmp_path_factory.mktemp("docs")
    pair, targets, questions = (json.loads(block) for block in blocks(TEXTS["docs/custom-models-and-tasks.md"], "json"))
    blimp = {"sentence_good": "The cats sleep here.", "sentence_bad": "The cats sleeps here."}
    gsm8k = {"question": "Tom has 2 hats and buys 1. How many has he?", "answer": "2 + 1 = <<2+1=3>>3 hats.\n#### 3"}
    rows = {"my-task": [pair], "my-targets": [targets] * 8, "blimp": [blimp] * 8, "gsm8k": [gsm8k] * 8}
    for name, lines in rows.items():
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    text = json.dumps(questions)
    colours = "red blue green white black brown grey pink gold".split()
    many = [item for colour in colours for item in json.loads(text.replace("red", colour))]
    (folder / "cogqa.json").write_text(json.dumps(many))
    demo = re.findall(r"^\t\$\(BIN\)/(headscope reproduce .+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert len(demo) == 2
    run(on_nano(demo[-1]), folder)
    return folder


def run(command: str, folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("HEADSCOPE_CACHE", str(folder / "cache"))
        patch.setattr(sys, "argv", ["headscope", *shlex.split(command)])
        with pytest.raises(SystemExit) as stopped:
            headscope.cli.main()
    assert stopped.value.code == 0


COMMANDS = list(dict.fromkeys(on_nano(command) for command in commands()))


@pytest.mark.parametrize("command", [command for command in COMMANDS if not command.startswith("view")])
def test_commands(command, folder, capsys):
    run(command, folder)
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize("command", [command for command in COMMANDS if command.startswith("view")])
def test_commands_that_serve(command, folder):
    """Until they are told to end."""
    words = [sys.executable, "-u", "-m", "headscope", *shlex.split(command)]
    with subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, text=True) as serving:
        assert serving.stdout
        try:
            address = re.search(r"http://127\.0\.0\.1:\d+/", serving.stdout.readline())
            assert address
            assert urlopen(address[0], timeout=30).status == 200
            serving.send_signal(signal.SIGTERM)
            assert serving.wait(30) == 0
        finally:
            serving.kill()


def test_there_are_commands():
    studies = {"list", "check", "heads", "edges", "functions", "roles", "sparsify", "report", "view", "figure"}
    assert studies <= {command.split()[0] for command in COMMANDS}


def test_commands_that_cannot_run_are_still_shown():
    known = {one for text in TEXTS.values() for program in ("headscope", "accelerate") for one in shown(text, program)}
    assert set(CANNOT) <= known
    assert {one for one in known if one.startswith("accelerate ") and len(one.split()) > 2} <= set(CANNOT)


@pytest.mark.parametrize("name", TEXTS)
def test_what_is_named_exists(name):
    """Scripts, make targets, extras, Python names and options."""
    text = TEXTS[name]
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for target in (word for one in shown(text, "make") for word in one.split()[1:]):
        assert target in targets
    for path in re.findall(r"python ((?:bench|examples|tools)/[\w/]+\.py)", text):
        assert (ROOT / path).is_file(), path
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(re.findall(r"pip install '?(?:\.|headscope)\[(\w+)\]", text)) <= set(extras)
    for dotted in re.findall(r"\bhs((?:\.\w+)+)", text):
        found = hs
        for part in dotted.split(".")[1:]:
            found = getattr(found, part)
    ours = re.sub(r"^.*(accelerate launch|ssh -L|git |pip ).*$", "", text, flags=re.MULTILINE)
    assert set(re.findall(r"(?<![\w-])(--[a-z][\w-]+)", ours)) <= options(APP) | {"--help"}


def options(command: Any) -> set[str]:
    own = {option for parameter in command.params for option in parameter.opts}
    return own.union(*(options(child) for child in getattr(command, "commands", {}).values()))


def test_messages_in_the_table_of_errors_are_messages():
    table = TEXTS["docs/custom-models-and-tasks.md"].partition("## What the errors mean")[2]
    messages = re.findall(r"^\| `(.+?)` \|", table, re.MULTILINE)
    assert len(messages) > 5
    code = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    # A message may be cut into pieces, over lines.
    joined = re.sub(r'"\s*\n\s*f?"', "", code)
    assert [message for message in messages if message not in joined] == []


def test_benchmarks_are_those_of_their_pages():
    """A ratio stands on two pages; both say the same."""
    others = "".join(text for name, text in TEXTS.items() if name != "docs/benchmarks.md")
    rows = [row.split("|") for row in TEXTS["docs/benchmarks.md"].splitlines() if row.startswith("| ")]
    measured = [number for *cells, _, _ in rows for cell in cells for number in re.findall(r"\d+\.\d+", cell)]
    assert len(measured) > 10
    assert [number for number in measured if number not in others] == []
    scripts = {path.stem for path in (ROOT / "bench").glob("*.py")} - {"shapes", "transformer_lens_peer"}
    assert scripts == set(re.findall(r"^## .*`python bench/(\w+)\.py", TEXTS["docs/benchmarks.md"], re.MULTILINE))


@pytest.mark.parametrize("name", [*TEXTS, "CONTRIBUTING.md"])
def test_links_lead_somewhere(name):
    text = re.sub(r"^```.*?^```|`[^`\n]*`", "", (ROOT / name).read_text(), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = target.partition("#")
        assert not re.match(r"\w+:", target), f"{target}: a link to elsewhere may break unseen"
        there = (ROOT / name).parent / path if path else ROOT / name
        assert there.is_file(), target
        if anchor:
            assert anchor in anchors(there.read_text()), target
    if name.startswith("docs/"):
        assert ".." not in text.replace("...", ""), "the site holds docs/ alone"


def anchors(text: str) -> set[str]:
    """The names that headings get on the site and on GitHub, for headings of plain words."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE), re.MULTILINE)
    return {re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}


def test_the_navigation_names_every_page():
    """A page that is not in mkdocs.yml is on no menu. Notebooks become pages (tools/notebook_pages.py)."""
    pages = [path.name for path in (ROOT / "docs").glob("*.md")]
    notebooks = [f"notebook-{path.stem}.md" for path in (ROOT / "examples").glob("*.ipynb")]
    assert sorted(PAGES) == sorted(f"docs/{name}" for name in [*pages, *notebooks])
