"""Run folders as one HTML file that opens from disk: markup, style, code and data in it, nothing fetched.

1. Find the run folders: those given, or all inside a folder that is none itself.
2. Collect each as a dict; where the page would grow too large, collect again with less room for the large things.
3. Put style, code and data into the template. A policy in the page allows exactly this code and style, by their hashes,
   and no request at all, so that a name with HTML in it stays a name.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headscope.errors import InputError
from headscope.report.figures.titles import TITLES
from headscope.report.page.collect import SECTIONS, Room, collect
from headscope.report.reading import Reading, plain
from headscope.schema import checked, read_json

ASSETS = Path(__file__).parent / "assets"
# In the order in which they build on each other.
SCRIPTS = (
    "elements.js", "tables.js", "curves.js", "headmap.js", "attention.js", "circuit.js", "steps.js", "overview.js",
    "heads.js", "edges.js", "roles.js", "functions.js", "sparsity.js", "index.js", "main.js",
)  # fmt: skip
LARGEST = 8_000_000


def build_page(paths: list[Path], *, title: str = "", within: Path | None = None, **about: Any) -> str:
    """The page of these runs, or of all runs in these folders. within: files that lie elsewhere are not read, not even
    through links. about: more for the page to know."""
    folders, extra = find_runs(paths)
    room = Room()
    while True:
        runs = [collect(folder, room, within) for folder in folders]
        page = assemble({"title": title or title_of(runs), "titles": TITLES, "runs": runs, "extra": extra, **about})
        if len(page.encode()) < LARGEST:
            return page
        if room.attention < 1000:
            raise InputError(
                f"A page of these {len(runs)} runs would be {len(page.encode()) / 1e6:.1f} MB; at most "
                f"{LARGEST / 1e6:.0f} MB fit. Give fewer runs."
            )
        room = room.half()


def find_runs(paths: list[Path]) -> tuple[list[Path], dict[str, Any] | None]:
    """Run folders, and what a reproduction says of published numbers where a folder holds one."""
    folders: list[Path] = []
    extra = None
    for path in paths:
        if not path.is_dir():
            raise InputError(f"{path} is {'a file' if path.exists() else 'not there'}; expected a run folder.")
        if (path / "reproduce.json").is_file():
            extra, found = _reproduction(path)
        elif (path / "manifest.json").exists():
            found = [path]
        else:
            found = sorted((child for child in path.iterdir() if (child / "manifest.json").is_file()), key=place_of)
        if not found:
            raise InputError(f"{path} holds no run: expected manifest.json in it, or in folders inside it.")
        folders += [folder for folder in found if folder not in folders]
    return folders, extra


def place_of(folder: Path) -> tuple[int, str]:
    """Studies in the order in which they build on each other, then by name."""
    command = Reading(folder).manifest["command"]
    return (list(SECTIONS).index(command) if command in SECTIONS else len(SECTIONS)), folder.name


@dataclass
class Reproduction:
    """What `reproduce.json` holds."""

    figures: list[dict[str, Any]] = field(default_factory=list)
    numbers: list[dict[str, Any]] = field(default_factory=list)
    seconds: Any = None


def _reproduction(path: Path) -> tuple[dict[str, Any], list[Path]]:
    where = path / "reproduce.json"
    found: Reproduction = checked(plain(read_json(where, expected="a reproduction")), Reproduction, where=str(where))
    figures, numbers = found.figures, found.numbers
    named = list(dict.fromkeys(str(figure["run"]) for figure in figures if figure.get("run")))
    root = path.resolve()
    runs = [path / name for name in named if (path / name).resolve().is_relative_to(root) and (path / name).is_dir()]
    # The page knows runs by their place in it.
    place = {name: number for number, name in enumerate(name for name in named if path / name in runs)}
    figures = [
        {**figure, "place": place.get(str(figure.get("run"))), "picture": _picture(path, str(figure.get("image")))}
        for figure in figures
    ]
    return {"figures": figures, "numbers": numbers, "seconds": found.seconds}, runs


def _picture(folder: Path, image: str) -> str | None:
    """A picture of the reproduction as a page holds it; none where it is not there, or lies elsewhere."""
    file = (folder / image).resolve()
    if not file.is_relative_to(folder.resolve()) or file.suffix != ".png" or not file.is_file():
        return None
    return f"data:image/png;base64,{base64.b64encode(file.read_bytes()).decode()}"


def title_of(runs: list[dict[str, Any]]) -> str:
    models = dict.fromkeys(name for run in runs for name in run["manifest"]["models"])
    kinds = dict.fromkeys(run["command"] for run in runs if run["command"])
    return ": ".join(part for part in (", ".join(Path(name).name for name in models), ", ".join(kinds)) if part)


def assemble(data: dict[str, Any], scripts: tuple[str, ...] = SCRIPTS) -> str:
    """Template, style, code and data as one text. Where the data say whom to ask whether runs have changed ("live"),
    the page asks."""
    live = bool(data.get("live"))
    code = _code(scripts, live)
    parts = {
        "title": html.escape(str(data["title"]) or "Headscope"), "policy": _policy(code, live), "style": _style(),
        "code": code, "data": script_json(data),
    }  # fmt: skip
    # The template is cut once, so that nothing in the data is taken for a place in it.
    pieces = (ASSETS / "page.html").read_text(encoding="utf-8").split("@@")
    return "".join(parts[piece] if number % 2 else piece for number, piece in enumerate(pieces))


def policy(*, live: bool) -> str:
    """What a browser may do with the page: run this code, use this style, and, if it is live, ask its own server."""
    return _policy(_code(SCRIPTS, live), live)


def _policy(code: str, live: bool) -> str:
    allowed = {
        "default-src": "none", "style-src": _digest(_style()), "script-src": _digest(code), "base-uri": "none",
        "form-action": "none", "connect-src": "self" if live else "none",
    }  # fmt: skip
    return "; ".join(f"{what} '{who}'" for what, who in allowed.items()) + "; img-src data:"


def _style() -> str:
    return (ASSETS / "page.css").read_text(encoding="utf-8")


def _code(scripts: tuple[str, ...], live: bool) -> str:
    names = [*scripts, "live.js"] if live else scripts
    code = "".join((ASSETS / name).read_text(encoding="utf-8") for name in names)
    return f'"use strict";\n(() => {{\n{code}}})();\n'


def script_json(value: Any) -> str:
    """JSON that can stand in a script element: nothing in it ends the element or is markup."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
