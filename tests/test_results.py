"""Records are saved and read exactly, files are whole or absent, and a run folder resumes only what was asked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors import safe_open
from safetensors.numpy import save_file

import headscope
from headscope.errors import InputError, SetupError
from headscope.records import Circuit, Curve, EdgeScores, Graph, Record, Scores, Table
from headscope.records.checksums import sha256
from headscope.records.files import whole_file, write_bytes, write_json
from headscope.runs.manifest import Manifest
from headscope.runs.run import Run, read_manifest

RANDOM = np.random.default_rng(0)
SCORES = Scores(
    "a model", "ioi", "patching",
    values=np.array([[0.1, -2.5, 3e38], [-3e38, 1e-45, -0.0]], np.float32),
    per_prompt=RANDOM.normal(size=(5, 2, 3)).astype(np.float32)[:, :, ::-1],
    settings={"n": 5, "seed": None, "direction": "noising", "nested": {"list": [1, 2.5, "ü"]}, "third": 1 / 3},
)  # fmt: skip
CIRCUIT = Circuit("a model", "ioi", keep=np.array([[True, False, True], [False, False, True]]))
CURVE = Curve(
    "a model", "ioi", "patching", k=np.array([0, 1, 6]), explained=np.array([0.0, 0.7, 1.0]),
    low=np.array([0.0, 0.6, 1.0]), high=np.array([0.0, 0.8, 1.0]), metrics=RANDOM.normal(size=(3, 4)),
    clean=RANDOM.normal(size=4), corrupt=RANDOM.normal(size=4), settings={"total": 6, "n": 4},
)  # fmt: skip
SHAPE = {"n_layers": 2, "n_heads": 1, "split": "none", "parallel": False}
RECORDS = [SCORES, CIRCUIT, CURVE]


def same(first: Record, second: Record) -> None:
    """Equal to the last bit, in type and shape as well."""
    assert type(first) is type(second)
    for field in fields(first):
        a, b = getattr(first, field.name), getattr(second, field.name)
        if isinstance(a, np.ndarray):
            assert (a.dtype, a.shape) == (b.dtype, b.shape)
            assert np.ascontiguousarray(a).tobytes() == np.ascontiguousarray(b).tobytes()
        else:
            assert a == b


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_a_record_comes_back_as_it_was(tmp_path: Path, record: Record):
    path = record.save(tmp_path / "new" / "record.safetensors")
    same(type(record).load(path), record)
    assert [file.name for file in path.parent.iterdir()] == ["record.safetensors"]


@settings(max_examples=30, deadline=None)
@given(
    values=hnp.arrays(
        np.float32,
        hnp.array_shapes(min_dims=2, max_dims=2, max_side=4),
        elements=st.floats(width=32, allow_nan=False, allow_infinity=False),
    ),
    n=st.integers(0, 3),
    text=st.text(st.characters(exclude_categories=["Cs"])),
    number=st.floats(allow_nan=False) | st.integers() | st.none() | st.booleans(),
)
def test_any_scores_come_back(tmp_path_factory: pytest.TempPathFactory, values, n: int, text: str, number: Any):
    scores = Scores(
        text, "t", "m", values, np.stack([values] * n) if n else values[None][:0], {"s": number, text: text}
    )
    path = tmp_path_factory.mktemp("any") / "scores.safetensors"
    same(Scores.load(scores.save(path)), scores)


ODD = {
    "NaN": ({"values": np.full((2, 3), np.nan)}, "values must hold finite numbers, found nan"),
    "infinity": ({"per_prompt": np.full((5, 2, 3), -np.inf)}, "per_prompt must hold finite numbers, found -inf"),
    "other sizes": (
        {"values": np.zeros((2, 4))},
        "per_prompt must have H = 4, as other arrays of it",
    ),
    "a dimension less": ({"values": np.zeros(6)}, r"must have L = 6, as other arrays of it"),
    "a number for a name": ({"model": 3}, "model must be a text, found a number"),
    "a list for an object": ({"settings": [1]}, "settings must be an object, found a list"),
}


@pytest.mark.parametrize(("change", "message"), ODD.values(), ids=ODD)
def test_odd_scores_are_neither_saved_nor_read(tmp_path: Path, change: dict[str, Any], message: str):
    odd = replace(SCORES, **change)
    with pytest.raises(InputError, match=message):
        odd.save(tmp_path / "odd")
    rest = {f.name: getattr(odd, f.name) for f in fields(odd)}
    arrays = {name: np.ascontiguousarray(rest.pop(name)) for name in ("values", "per_prompt")}
    header = json.dumps({"record": "Scores", "fields": rest})
    save_file(arrays, tmp_path / "odd", metadata={"headscope": header})
    with pytest.raises(InputError, match=message):
        Scores.load(tmp_path / "odd")


def test_edge_scores_are_of_their_graph():
    scores = EdgeScores("m", "t", "eap", np.zeros(7, np.float32), np.zeros((0, 7), np.float32), SHAPE)
    with pytest.raises(InputError, match="values must be of 15 edges, found 7"):
        scores.refuse_odd("it")
    with pytest.raises(InputError, match='"n_layers" must be at most 1000'):
        replace(scores, shape={**SHAPE, "n_layers": 10**9}).refuse_odd("it")


def test_a_curve_without_an_effect_says_so_in_its_file(tmp_path: Path):
    path = replace(CURVE, explained=np.full(3, np.nan)).save(tmp_path / "curve")
    with safe_open(path, framework="numpy") as file:
        said = json.loads(file.metadata()["headscope"])["missing"]
    assert said == {"explained": "clean and base metric are the same: there is no effect to explain"}
    assert np.isnan(Curve.load(path).explained).all()


def test_saving_again_replaces_the_file(tmp_path: Path):
    path = CIRCUIT.save(tmp_path / "record")
    SCORES.save(path)
    same(Scores.load(path), SCORES)


def test_a_reader_keeps_the_file_it_opened(tmp_path: Path):
    """The new file takes the old one's name in one step; the old one is never written to."""
    path = CIRCUIT.save(tmp_path / "record")
    old = path.read_bytes()
    with path.open("rb") as reader:
        SCORES.save(path)
        assert reader.read() == old


def test_two_saves_give_the_same_bytes(tmp_path: Path):
    assert SCORES.save(tmp_path / "a").read_bytes() == SCORES.save(tmp_path / "b").read_bytes()


def test_the_wrong_kind_of_record_is_told(tmp_path: Path):
    path = SCORES.save(tmp_path / "scores.safetensors")
    with pytest.raises(InputError, match=r"scores\.safetensors holds Scores; expected Circuit"):
        Circuit.load(path)


def test_damaged_records_are_told(tmp_path: Path):
    whole = SCORES.save(tmp_path / "whole").read_bytes()
    path = tmp_path / "damaged"
    for length in (0, 5, 8, 40, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(InputError, match=r"damaged cannot be read: .* Expected a file written by Headscope"):
            Scores.load(path)
    path.write_bytes(whole + b"more")
    with pytest.raises(InputError, match="cannot be read"):
        Scores.load(path)
    with pytest.raises(InputError, match="cannot be read"):
        Scores.load(tmp_path / "none")
    with pytest.raises(InputError, match="cannot be read"):
        Scores.load(tmp_path)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (None, "holds no record of Headscope; expected Scores"),
        ("[1, 2]", "holds no record of Headscope"),
        ("{}", "holds no record of Headscope"),
        ("{not json", "cannot be read"),
        ('{"record": "Scores"}', "not a Scores of this version of Headscope: 'fields'"),
        ('{"record": "Scores", "fields": {"model": "m"}}', "not a Scores of this version .* missing"),
        ('{"record": "Scores", "fields": {"new": 1}}', "not a Scores of this version .* 'new'"),
        ('{"record": "Scores", "fields": 7}', "not a Scores of this version"),
    ],
)
def test_other_safetensors_are_told(tmp_path: Path, header: str | None, message: str):
    """Weights of a model, say, or a record of a later version."""
    save_file({"values": np.zeros((2, 2))}, tmp_path / "f", metadata=None if header is None else {"headscope": header})
    with pytest.raises(InputError, match=message):
        Scores.load(tmp_path / "f")


def test_heads_are_ranked_by_absolute_or_signed_score():
    values = np.array([[0.5, -2.0], [1.0, 0.0]], np.float32)
    scores = Scores("m", "t", "x", values, values[None])
    assert scores.ranked() == [(0, 1), (1, 0), (0, 0), (1, 1)]
    assert scores.ranked(signed=True) == [(1, 0), (0, 0), (1, 1), (0, 1)]
    assert scores.top(2) == [("L0.H1", -2.0), ("L1.H0", 1.0)]


def test_a_circuit_names_its_heads():
    assert CIRCUIT.names == ["L0.H0", "L0.H2", "L1.H2"]
    assert len(CIRCUIT) == 3


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_records_are_equal_if_they_hold_the_same(tmp_path: Path, record: Record):
    again = type(record).load(record.save(tmp_path / "record"))
    assert again == record
    assert again is not record
    for field in fields(record):
        value = getattr(record, field.name)
        if isinstance(value, np.ndarray):
            other = ~value if value.dtype == bool else value + 1
            assert replace(record, **{field.name: other}) != record
            assert replace(record, **{field.name: value[:1]}) != record
    assert replace(record, model="another") != record
    assert replace(record, settings={"nested": [float("nan")]}) == replace(record, settings={"nested": [float("nan")]})
    assert replace(record, settings={"nested": [1.0]}) != replace(record, settings={"nested": [2.0]})
    assert record != "a record"
    assert record not in [other for other in RECORDS if other is not record]


def test_every_kind_of_record_compares_like_that():
    kinds = [Record]
    for kind in kinds:
        kinds += [one for one in kind.__subclasses__() if one.__module__.startswith("headscope")]
    assert len(kinds) > 8
    assert {kind.__eq__ for kind in kinds} == {Record.__eq__}


def test_scores_give_circuits():
    scores = replace(SCORES, values=np.array([[0.1, -2.5, 0.3], [2.0, 1e-45, -0.0]], np.float32))
    best = scores.circuit(2)
    assert (best.what, best.names, len(best)) == ("heads", ["L0.H1", "L1.H0"], 2)
    assert best.names == sorted(name for name, _ in scores.top(2))
    assert scores.circuit(2, signed=True).names == ["L0.H2", "L1.H0"]
    assert len(scores.circuit(0)) == 0
    graph = Graph(2, 1)
    edges = EdgeScores("m", "t", "eap", np.arange(len(graph), dtype=np.float32), np.empty((0, len(graph))), SHAPE, {})
    for connected in (False, True):
        found = edges.circuit(4, connected=connected)
        assert (found.what, set(found.names) <= {name for name, _ in edges.top(4)}) == ("edges", True)
        assert found.keep.tolist() == [name in found.names for name in graph.edges]
    assert len(edges.circuit(4, connected=True)) < 4
    for circuit in (best, edges.circuit(5)):
        assert Circuit.from_json(circuit.to_json()) == circuit
    for wrong in ("", "[]", "{}", best.to_json().replace("L0.H1", "L7.H1"), best.to_json().replace("L0.H1", "first")):
        with pytest.raises(InputError, match=r"no circuit|does not name a head"):
            Circuit.from_json(wrong)


def test_one_way_to_write_a_table(tmp_path: Path):
    table = Table.of("name share n", [("a, b", 1 / 3, 2), ('"', np.float64(2e-9), None)], floats=".6g")
    assert table.save(tmp_path / "t.csv").read_bytes() == b'name,share,n\n"a, b",0.333333,2\n"""",2e-09,\n'
    whole = Table.of_dicts([{"a": 1}, {"a": 1 / 3, "b": True}])
    assert whole.csv() == f"a,b\n1,\n{1 / 3!r},True\n".encode()
    assert Table.of_dicts(whole.dicts()) == whole
    assert Table.of_dicts([]).csv() == b"\n"


def test_nothing_else_writes_csv():
    """One writer, so one line ending."""
    users = [path.name for path in Path(headscope.__file__).parent.rglob("*.py") if "import csv" in path.read_text()]
    assert users == ["table.py"]


def test_writing_under_a_file_leaves_nothing(tmp_path: Path):
    file = tmp_path / "file"
    file.write_text("mine")
    for place in (file / "x.json", file / "deeper" / "x.json", Path("/proc/nowhere/x.json")):
        with pytest.raises(SetupError, match=r"Cannot write .*Choose another place"):
            write_json(place, {})
    assert file.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [file]


def test_writing_over_a_folder_leaves_nothing(tmp_path: Path):
    (tmp_path / "x.json").mkdir()
    with pytest.raises(SetupError, match=r"Cannot write .*no file that could be replaced"):
        write_json(tmp_path / "x.json", {})
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]


@pytest.mark.parametrize("problem", [RuntimeError("on purpose"), KeyboardInterrupt()])
def test_an_exception_leaves_the_old_file_and_no_other(tmp_path: Path, problem: BaseException):
    path = write_bytes(tmp_path / "x.txt", b"old")

    def write_half() -> None:
        with whole_file(path) as temporary:
            temporary.write_bytes(b"half")
            raise problem

    with pytest.raises(type(problem)):
        write_half()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_temporary_file_is_not_taken_for_a_whole_one(tmp_path: Path):
    """What a kill would leave behind matches no pattern that looks for records."""
    path = tmp_path / "x.safetensors"
    with whole_file(path) as temporary:
        assert list(tmp_path.iterdir()) == [temporary]
        assert not list(tmp_path.glob("*.safetensors"))
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_leaves_the_old_record_and_no_other_file(tmp_path: Path):
    """In a process of its own, where a limit on file sizes stands for the full disk."""
    path = CIRCUIT.save(tmp_path / "record")
    script = """
import resource, sys
import numpy as np
from headscope.errors import SetupError
from headscope.records import Circuit
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
try:
    Circuit("m", "t", np.ones((200, 200), bool)).save(sys.argv[1])
except SetupError as error:
    print(error)
    sys.exit(error.exit_code)
"""
    done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout == f"Cannot write {path}: File too large. Nothing was left half-written.\n"
    same(Circuit.load(path), CIRCUIT)
    assert list(tmp_path.iterdir()) == [path]


ASKED: dict[str, Any] = {"models": ["a", "b"], "n": 8, "seed": 0}
FACTS = {"sha256": "ab" * 32, "layers": 2}


def started(folder: Path) -> Run:
    """A run with one finished unit."""
    run = Run.open(folder, command="heads", settings=ASKED)
    run.note_model("a", FACTS)
    SCORES.save(run.path("scores.safetensors"))
    run.add("scores.safetensors", seconds=1.23456)
    return run


def test_a_manifest_says_everything(tmp_path: Path):
    run = started(tmp_path / "run")
    run.finish()
    manifest = read_manifest(run.folder)
    assert manifest == run.manifest.as_dict()
    assert manifest["command"] == "heads"
    assert manifest["settings"] == ASKED
    assert manifest["models"] == {"a": FACTS}
    assert manifest["timings"] == {"scores.safetensors": 1.235}
    assert manifest["files"] == ["scores.safetensors"]
    assert manifest["versions"].keys() == {"headscope", "torch", "transformers", "numpy"}
    assert manifest["versions"]["numpy"] == np.__version__
    assert manifest["started"] <= manifest["finished"]
    assert sorted(path.name for path in run.folder.iterdir()) == [
        ".manifest.json",
        "manifest.json",
        "scores.safetensors",
    ]


def test_the_same_settings_resume(tmp_path: Path):
    first = started(tmp_path)
    # Tuples come back as lists; that is no difference.
    again = Run.open(tmp_path, command="heads", settings={**ASKED, "models": ("a", "b")})
    assert again.manifest == first.manifest
    assert again.is_whole("scores.safetensors")
    again.note_model("a", FACTS)
    again.add("scores.safetensors")
    assert again.manifest.files == ["scores.safetensors"]
    same(Scores.load(again.path("scores.safetensors")), SCORES)


def test_a_file_counts_only_when_it_is_noted(tmp_path: Path):
    run = started(tmp_path)
    # A kill between writing the file and noting it: the unit is done again.
    CIRCUIT.save(run.path("unnoted.safetensors"))
    again = Run.open(tmp_path, command="heads", settings=ASKED)
    assert not again.is_whole("unnoted.safetensors")
    # What is about to take a name is known before it does, and what was there is known until then.
    run.expect("scores.safetensors", sha256(run.path("unnoted.safetensors")))
    again = Run.open(tmp_path, command="heads", settings=ASKED)
    assert again.is_whole("scores.safetensors")
    run.path("unnoted.safetensors").replace(run.path("scores.safetensors"))
    assert again.is_whole("scores.safetensors")
    run.path("scores.safetensors").write_bytes(b"other")
    assert not again.is_whole("scores.safetensors")


@pytest.mark.parametrize(
    ("command", "asked", "message"),
    [
        ("heads", {**ASKED, "n": 9}, "other settings: n 8 there, 9 now"),
        ("heads", {**ASKED, "new": 1}, "other settings: new None there, 1 now"),
        ("heads", {"n": 8, "seed": 0}, r"other settings: models \['a', 'b'\] there, None now"),
        ("edges", ASKED, "other settings: command heads there, edges now"),
    ],
)
def test_other_settings_are_refused(tmp_path: Path, command: str, asked: dict[str, Any], message: str):
    run = started(tmp_path)
    with pytest.raises(InputError, match=message) as told:
        Run.open(tmp_path, command=command, settings=asked)
    assert "or another --out" in str(told.value)
    assert Manifest.read(tmp_path) == run.manifest


def test_a_run_in_which_nothing_was_finished_makes_way(tmp_path: Path):
    Run.open(tmp_path, command="heads", settings={**ASKED, "models": ["misspelt"]}).note_model("misspelt", FACTS)
    run = Run.open(tmp_path, command="heads", settings=ASKED)
    assert run.manifest.settings == ASKED
    assert run.manifest.models == {}
    assert Manifest.read(tmp_path) == run.manifest


def test_other_weights_are_refused(tmp_path: Path):
    run = started(tmp_path)
    with pytest.raises(InputError, match=r"other weights of a \(abababababab\.\.\., now cdcdcdcdcdcd"):
        Run.open(tmp_path, command="heads", settings=ASKED).note_model("a", {"sha256": "cd" * 32})
    assert Manifest.read(tmp_path) == run.manifest
    run.note_model("b", {"sha256": "cd" * 32})
    assert read_manifest(tmp_path)["models"].keys() == {"a", "b"}


def test_foreign_folders_are_refused(tmp_path: Path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match="not empty and holds no run"):
        Run.open(tmp_path, command="heads", settings=ASKED)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    with pytest.raises(InputError, match=r"mine\.txt is a file; --out needs a folder"):
        Run.open(tmp_path / "mine.txt", command="heads", settings=ASKED)
    with pytest.raises(SetupError, match="Cannot write"):
        Run.open(tmp_path / "mine.txt" / "run", command="heads", settings=ASKED)
    assert (tmp_path / "mine.txt").read_text() == "mine"


def test_an_empty_folder_will_do(tmp_path: Path):
    # What a killed process may leave, or a file manager.
    (tmp_path / ".manifest.json-abc.part").write_text("{")
    assert Run.open(tmp_path, command="heads", settings=ASKED).manifest.files == []


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "{}", '{"command": "heads", "settings": {}}', "\xff", "[" * 100_000, "1" * 5000]
)
def test_a_manifest_of_something_else_is_refused(tmp_path: Path, content: str):
    (tmp_path / "manifest.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(InputError, match=r"manifest\.json is not the manifest of a run: "):
        Run.open(tmp_path, command="heads", settings=ASKED)


def test_names_beyond_ascii(tmp_path: Path):
    asked = {"models": ["modèle", "模型"]}
    folder = tmp_path / "größe"
    Run.open(folder, command="heads", settings=asked).add("x")
    # In a process whose locale knows ASCII only.
    script = (
        "import sys; from headscope.runs.run import read_manifest; from pathlib import Path; "
        "print(ascii(read_manifest(Path(sys.argv[1]))['settings']['models']))"
    )
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run([sys.executable, "-c", script, str(folder)], capture_output=True, text=True, env=environment)
    assert done.stdout.strip() == ascii(asked["models"]), done.stderr
    assert json.loads((folder / "manifest.json").read_bytes())["settings"] == asked
