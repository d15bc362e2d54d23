"""Imports go down only, and heavy libraries are not imported before they are needed."""

from __future__ import annotations

import ast
import inspect
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headscope

ROOT = Path(headscope.__file__).parent

# From the roof to the cellar. A module imports from floors below its own, never from its own or above.
FLOORS = [
    {"cli"},
    {"studies"},
    {"report"},
    {"functions", "sparse"},
    {"methods", "sweeps", "roles"},
    {"running"},
    {"models", "tasks"},
    {"runs"},
    {"records"},
    {"schema"},
    {"errors", "progress", "stopping"},
]
FLOOR = {part: number for number, floor in enumerate(FLOORS) for part in floor}
# Stricter than their floor.
ONLY = {"report": {"runs", "records", "schema", "errors"}}

MODULES = sorted(path for path in ROOT.rglob("*.py") if path not in (ROOT / "__init__.py", ROOT / "__main__.py"))


def part_of(module: str) -> str:
    """headscope.models.gguf belongs to models; the package itself is ''."""
    return [*module.split("."), ""][1]


def imports(source: str, module: str) -> Iterator[str]:
    """The parts of headscope that a module imports, lazily or not; what only type checkers see does not count."""
    tree = ast.parse(source)
    for node in list(ast.walk(tree)):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            package = module.split(".")[: -node.level] if node.level else []
            origin = ".".join([*package, *([node.module] if node.module else [])])
            names = [f"headscope.{alias.name}" for alias in node.names] if origin == "headscope" else [origin]
        else:
            continue
        yield from (part_of(name) for name in names if name.split(".")[0] == "headscope")


def wrong(part: str, imported: str) -> bool:
    if imported == part:
        return False
    if imported == "":
        return part != "cli"
    if part in ONLY:
        return imported not in ONLY[part]
    return FLOOR[imported] <= FLOOR[part]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_down(path: Path):
    module = ".".join(["headscope", *path.relative_to(ROOT).with_suffix("").parts])
    part = part_of(module)
    assert part in FLOOR, f"{part} has no floor yet: say in FLOORS where it belongs"
    found = set(imports(path.read_text(), module))
    assert not found - FLOOR.keys() - {""}, "imported, but on no floor"
    assert not [f"{part} -> {other}" for other in sorted(found) if wrong(part, other)]


@pytest.mark.parametrize(
    ("part", "line", "goes_up"),
    [
        ("running", "from headscope.sweeps import sweep", True),
        ("running", "def f():\n    from headscope import sweeps", True),
        ("sweeps", "from headscope.methods.patching import patching", True),
        ("models", "import headscope.tasks.ioi", True),
        ("models", "from ..studies import heads", True),
        ("tasks", "import headscope as hs", True),
        ("report", "from headscope.records import head_name\nfrom headscope.models.attention import attend", True),
        ("records", "from headscope.models.attention import attend", True),
        ("studies", "from headscope.report.figures.panels import head_map", False),
        ("models", "from .gguf import read_gguf\nimport torch", False),
        ("running", "if TYPE_CHECKING:\n    from headscope.sweeps import sweep", False),
        ("models", "from headscope.errors import InputError", False),
    ],
)
def test_the_rule_itself(part: str, line: str, goes_up: bool):
    assert any(wrong(part, other) for other in imports(line, f"headscope.{part}.x")) == goes_up


def test_one_door_is_found_by_name_from_below():
    """A record asks the report to show it. That is no import (records need no report), and the only such place; what is
    fetched by name elsewhere lies in the module's own part."""
    found = {}
    for path in MODULES:
        part = path.relative_to(ROOT).with_suffix("").parts[0]
        text = path.read_text()
        named = re.findall(r"[\"']headscope\.(\w+)(?:\.\w+)*[\"']", text) if "import_module" in text else []
        if named := set(named) - {part}:
            found[path.relative_to(ROOT).as_posix()] = named
    assert found == {"records/showing.py": {"report"}}


def test_no_study_is_the_library_of_another():
    """What they share has modules of its own; only `reproduce` calls them all."""
    studies = {"heads", "edges", "roles", "functions", "sparsity"}
    for study in studies:
        tree = ast.parse((ROOT / "studies" / f"{study}.py").read_text())
        named = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert not named & {f"headscope.studies.{other}" for other in studies - {study}}


def modules_after(script: str) -> set[str]:
    """The top-level modules that a fresh interpreter has imported after a script."""
    ending = (
        "\nimport json, sys\nprint(json.dumps(sorted({name.split('.')[0] for name in sys.modules})), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script + ending], capture_output=True, text=True, check=True)
    return set(json.loads(done.stderr.splitlines()[-1]))


HEAVY = {"torch", "transformers", "matplotlib", "tokenizers", "accelerate", "gguf"}


def test_importing_headscope_imports_little():
    found = modules_after("import headscope\nheadscope.tasks.TASKS\nheadscope.InputError\ndir(headscope)")
    assert "headscope" in found
    assert not found & (HEAVY | {"numpy", "typer", "rich"})


def test_help_and_lists_import_little():
    script = """
import sys
from headscope.cli import main
for words in (["--help"], ["heads", "--help"], ["list", "models"], ["list", "tasks"], ["list", "tasks", "--json"]):
    sys.argv = ["headscope", *words]
    try:
        main()
    except SystemExit as end:
        assert not end.code, words
"""
    found = modules_after(script)
    assert "typer" in found
    assert not found & (HEAVY | {"numpy"})


def test_records_and_outputs_import_little():
    found = modules_after("import headscope.records, headscope.report.redraw, headscope.report.page.html")
    assert "numpy" in found
    assert not found & HEAVY


def public() -> Iterator[tuple[str, Any]]:
    """Every function at the door, and every method of what stands there."""
    for name in headscope.__all__:
        thing = getattr(headscope, name)
        if inspect.ismodule(thing):
            yield from (
                (f"{name}.{one}", getattr(thing, one)) for one in thing.__all__ if callable(getattr(thing, one))
            )
        elif inspect.isclass(thing):
            own = ((f"{name}.{one}", what) for one, what in vars(thing).items() if not one.startswith("_"))
            yield from ((one, what) for one, what in own if inspect.isfunction(what))
        else:
            yield name, thing


def test_what_is_public_says_what_it_takes_and_gives():
    undone = []
    for name, call in public():
        if inspect.isfunction(call):
            said, asked = inspect.getdoc(call) or "", inspect.signature(call)
            if set(asked.parameters) <= {"self"}:
                undone += [name] if not said else []
            elif "Args:" not in said or (asked.return_annotation != "None" and "Returns:" not in said):
                undone.append(name)
    assert undone == [], "what takes arguments has Args: and Returns:, the rest a sentence"


def test_every_name_at_the_door_is_there():
    for name in headscope.__all__:
        assert getattr(headscope, name) is not None
    assert set(headscope.__all__) <= set(dir(headscope))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        headscope.nothing  # noqa: B018
