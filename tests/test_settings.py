"""An option lives in one place: everything that knows a study's options follows from its record of settings."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

import pytest
import typer
import typer.main

from headscope.cli.options import add_study
from headscope.errors import InputError
from headscope.report.command import command_line
from headscope.runs.run import open_run, read_manifest
from headscope.runs.settings import Printed, Settings, argument, option, options, table
from headscope.sparse.settings import Settings as SparsifySettings
from headscope.studies import settings as studies

DOCS = Path(__file__).parents[1] / "docs"
RECORDS = [SparsifySettings, *(one for one in vars(studies).values() if hasattr(one, "command"))]


@dataclass(frozen=True, kw_only=True)
class Small(Printed):
    command = "small"
    models: tuple[str, ...] = argument("What to look at.")
    n: int = option(3, "How many.", short="-n", min=1)


@dataclass(frozen=True, kw_only=True)
class Larger(Small):
    """The same study with one more option: this line is all that it takes."""

    colours: tuple[Literal["red", "blue"], ...] = option(("red",), "In which colours.", flag="--colour")


def run_small(settings: Any, folder: Path) -> Any:
    """A small study of its own."""
    with open_run(folder, settings) as run:
        run.unit(("numbers",), lambda: [settings.n, *getattr(settings, "colours", ())])
    return lambda: None


def called(record: type[Settings], *words: str) -> Any:
    app = typer.Typer()
    app.callback()(lambda: None)
    add_study(app, cast(Any, record), run_small)
    command: Any = typer.main.get_command(app)
    return command(["small", *words], standalone_mode=False)


def test_an_option_is_added_in_one_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """In the command line, the run's identity, its default folder, the printed command and the documents' table."""
    monkeypatch.chdir(tmp_path)
    before, after = Small(models=("m",)), Larger(models=("m",), colours=("blue", "red"))
    called(Larger, "m", "--colour", "blue,red")
    folder = after.folder()
    assert [path.name for path in Path("runs").iterdir()] == [folder.name]
    manifest = read_manifest(folder)
    assert manifest["settings"] == {"models": ["m"], "n": 3, "colours": ["blue", "red"]}
    assert command_line(manifest, folder) == f"headscope small m --colour blue,red --n 3 --out {folder}"
    assert "| `--colour` | `red` | In which colours. |" in table(Larger)
    called(Larger, *shlex.split(command_line(manifest, folder))[2:])
    with pytest.raises(InputError, match=r"colours \['blue', 'red'\] there, \['red'\] now"):
        called(Larger, "m", "--out", str(folder))
    with pytest.raises(InputError, match=r"Unknown colour 'green'\. Known: red, blue\."):
        called(Larger, "m", "--colour", "green")
    assert "colours" not in before.identity()
    assert "--colour" not in table(Small)
    assert len({before.folder(), after.folder(), replace(after, colours=("red",)).folder()}) == 3


def test_presentation_is_no_part_of_the_identity():
    one = studies.HeadSettings(models=("m",), tasks=("ioi",))
    other = replace(one, threshold=0.8, formats=("pdf",), top=3, as_json=True)
    assert (one.identity(), one.folder()) == (other.identity(), other.folder())
    assert other.asked()["shown"] == {"threshold": 0.8, "formats": ["pdf"], "top": 3, "as_json": True, "quiet": False}
    assert set(other.asked()["words"]) - set(one.asked()["words"]) == {"--threshold", "0.8", "--format", "pdf"}


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_every_option_has_a_line_of_help_and_a_name_of_its_own(record: type[Settings]):
    found = options(record)
    assert all(one.help.endswith(".") for one in found)
    flags = [flag for one in found for flag in (one.flag, one.short) if flag]
    assert len(flags) == len(set(flags))


def test_files_behind_options_are_part_of_the_identity(tmp_path: Path):
    """By their whole paths: two of one name in two folders are two, and every option that names files counts."""
    for side in ("left", "right"):
        (tmp_path / side).mkdir()
        (tmp_path / side / "task.jsonl").write_text(side)
    left, right = (str(tmp_path / side / "task.jsonl") for side in ("left", "right"))
    both = studies.HeadSettings(models=("m",), tasks=(left, right)).identity()
    assert both[f"sha256 of {left}"] != both[f"sha256 of {right}"]

    def asked(changed: str) -> list[Settings]:
        Path(left).write_text(changed)
        return [
            studies.RoleSettings(models=("m",), tasks=("ioi",), forget=left),
            studies.FunctionSettings(model="m", data=left),
            studies.SparsitySettings(dense="a", sparse="b", text=f"self,{tmp_path / 'left'}"),
            SparsifySettings(model="m", text=left),
            SparsifySettings(model="m", start=str(tmp_path / "left")),
        ]

    for before, after in zip([one.identity() for one in asked("a")], asked("b"), strict=True):
        assert before != after.identity(), after.command


def test_several_values_may_be_typed():
    typed: dict[str, Any] = {"models": "a, b", "tasks": ["ioi"]}
    assert studies.HeadSettings(**typed) == studies.HeadSettings(models=("a", "b"), tasks=("ioi",))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"n": 0}, "--n must be at least 1, found 0"),
        ({"n": 10**9}, "--n must be at most 100000, found 1000000000"),
        ({"n": "many"}, "--n must be a whole number, found 'many'"),
        ({"seed": -1}, "--seed must be at least 0, found -1"),
        ({"seed": 10**20}, "--seed must be at most 2147483647, found 100000000000000000000"),
        ({"threshold": float("nan")}, "--threshold must be a finite number, found nan"),
        ({"threshold": float("inf")}, "--threshold must be a finite number, found inf"),
        ({"threshold": -1}, "--threshold must be above 0, found -1"),
        ({"models": ("m" * 300,)}, "models must be of at most 255 bytes between slashes or commas"),
        ({"models": ("m/" * 2500,)}, "models must be of at most 255 bytes .* and 4096 in all"),
        ({"models": ("m\udcff",)}, "models must be a text that UTF-8 can carry"),
        ({"models": ("m\0",)}, "models must be a text without NUL"),
        ({"tasks": ()}, "--task is empty"),
        ({"tasks": ("ooi",)}, "Unknown task 'ooi'. Known: ioi"),
        ({"fill": "sand"}, "Unknown fill 'sand'. Known: corrupt, mean, zero"),
        ({"rankings": ("tsak",)}, "Unknown ranking 'tsak'. Known: task, prompt."),
    ],
)
def test_a_record_refuses_what_it_cannot_be(wrong: dict[str, Any], message: str):
    with pytest.raises(InputError, match=message):
        studies.HeadSettings(**{"models": ("m",), "tasks": ("ioi",), **wrong})


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"margin": float("inf")}, "--margin must be a finite number, found inf"),
        ({"rate": float("nan")}, "--rate must be a finite number, found nan"),
        ({"lora_rank": 10**9}, "--lora-rank must be at most 4096"),
        ({"seed": -1}, "--seed must be at least 0"),
    ],
)
def test_numbers_of_a_training_have_ranges(wrong: dict[str, Any], message: str):
    with pytest.raises(InputError, match=message):
        SparsifySettings(model="m", **wrong)


def test_every_whole_number_has_a_range_and_every_other_is_finite():
    """So that an option that is added without one is noticed."""
    for record in RECORDS:
        for one in options(record):
            if one.kind is int:
                assert one.min is not None, (record.command, one.flag)
                assert one.max is not None, (record.command, one.flag)
            if one.kind is float:
                with pytest.raises(InputError, match=r"must be a finite number, found .?nan"):
                    one.read(("nan",) if one.many else "nan")


def test_the_tables_in_the_documents_are_those_of_the_records():
    """Made by `python tools/option_tables.py`."""
    by_command = {record.command: record for record in RECORDS}
    shown = {}
    for page in DOCS.glob("*.md"):
        for part in page.read_text().split("<!-- options: ")[1:]:
            command, _, rest = part.partition(" -->\n")
            shown[command] = rest.partition("\n<!-- end -->")[0]
    assert set(shown) >= {"heads", "edges", "roles", "functions", "sparsify", "sparsify-report"}
    for command, text in shown.items():
        assert text == table(by_command[command]), f"{command}: run python tools/option_tables.py"
