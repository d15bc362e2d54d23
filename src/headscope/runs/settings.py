"""What a study is asked for: one frozen record of options, each with its line of help. The command line's options, the
run's identity, its default folder, the printed command and the documents' tables all follow from the record.

    @dataclass(frozen=True, kw_only=True)
    class HeadSettings(Settings):
        command = "heads"
        models: tuple[str, ...] = argument("Built-in names, folders, GGUF files or hub ids.")
        n: int = option(100, "Prompt pairs per task.", short="-n", min=1)
        fill: Literal["corrupt", "mean"] = option("corrupt", "What replaces a head that is not kept.")
        threshold: float = option(0.9, "Explained effect at which curves are compared.", identity=False)

Nothing here imports typer, NumPy or torch.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from types import UnionType
from typing import Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

from headscope.errors import InputError
from headscope.runs.names import file_name, short_hash
from headscope.schema import NAME, checked, number


@dataclass(frozen=True)
class Option:
    """An option as its field says it."""

    help: str
    flag: str = ""  # "--n"; by default after the field; arguments have none
    short: str = ""
    formerly: str = ""  # the flag's name of before, which goes on working with a note
    argument: bool = False
    identity: bool = True  # whether the numbers depend on it; otherwise a resumed run may be given another
    terminal: bool = False  # changes what is printed, and nothing in the folder
    silent: bool = False  # not given, it leaves no trace in the identity: runs from before it was there go on
    files: Literal["", "files", "folders"] = ""  # may name such, whose content is then part of the identity
    empty: bool = False  # a list that may be empty
    required: bool = False  # on the command line, though it has a default
    min: float | None = None
    max: float | None = None
    above: float | None = None
    noun: str = ""  # what one value is called in messages; by default after the flag
    check: Callable[[Any], None] | None = None  # refuses a value
    # From the field itself:
    name: str = ""
    default: Any = ...  # none: it must be given
    kind: Any = str  # int, float, bool or str
    many: bool = False  # a tuple of these
    known: tuple[str, ...] = ()  # of a Literal

    @property
    def title(self) -> str:
        return self.name if self.argument else self.flag

    def text(self, value: Any) -> str:
        """A value as one types it."""
        return ",".join(map(str, value)) if self.many else str(value)

    def read(self, given: Any) -> Any:
        """The value as the record keeps it, by the field's type and range; several are a tuple, typed between commas
        or not."""
        if given is None and self.default is None:
            return None
        if not self.many:
            return self._one(given)
        words = [word.strip() for word in given.split(",") if word.strip()] if isinstance(given, str) else given or ()
        if not words and not self.empty:
            raise InputError(f"{self.title} is empty. Give one or more names, separated by commas.")
        try:
            return tuple(self._one(self.kind(word)) for word in words)
        except ValueError:
            example = "1,2" if self.default in (..., ()) else self.text(self.default)
            raise InputError(f"{self.flag}: expected numbers such as {example}, found {given!r}.") from None

    def _one(self, given: Any) -> Any:
        if self.known:
            if given not in self.known:
                raise InputError(f"Unknown {self.noun} {given!r}. Known: {', '.join(self.known)}.")
            return given
        plain = os.fspath(given) if isinstance(given, os.PathLike) else given
        value = checked(plain, self._schema, where=self.title, strict=False)
        if self.check is not None:
            self.check(value)
        return value

    @property
    def _schema(self) -> Any:
        if self.kind in (int, float):
            return number(self.kind, min=self.min, max=self.max, above=self.above)
        return NAME if self.kind is str else self.kind

    def words(self, value: Any) -> list[str]:
        """The value as words of a command; none for what need not be said."""
        if self.argument:
            return list(map(str, value)) if self.many else [str(value)]
        if value is None or value is False or (value == self.default and not (self.identity and value not in ((), ""))):
            return []
        return [self.flag] if value is True else [self.flag, self.text(value)]


def option(default: Any = ..., help: str = "", **about: Any) -> Any:
    """A field that is an option; without a default it must be given."""
    about = {"identity": not about.get("terminal"), **about}
    return dataclasses.field(default=MISSING if default is ... else default, metadata={"option": Option(help, **about)})


def seed(help: str, default: int = 0) -> Any:
    """The option --seed. Every generator takes the numbers of its range, and so do products with steps and layers."""
    return option(default, help, min=0, max=2**31 - 1)


def argument(help: str, default: Any = ..., **about: Any) -> Any:
    """A field that is an argument: it has no flag."""
    return option(default, help, argument=True, **about)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What all records of settings can do; their fields are made by `option` and `argument`."""

    command: ClassVar[str]

    def __post_init__(self) -> None:
        for one in options(type(self)):
            object.__setattr__(self, one.name, one.read(getattr(self, one.name)))

    def identity(self) -> dict[str, Any]:
        """What the numbers depend on: the settings themselves, and the content of the files that they name."""
        values = [(one, getattr(self, one.name)) for one in options(type(self)) if one.identity]
        kept = {one.name: _plain(value) for one, value in values if not (one.silent and value == one.default)}
        return kept | {f"sha256 of {name}": digest for name, digest in self._hashes()}

    def asked(self) -> dict[str, Any]:
        """What a run folder keeps of its settings."""
        known = options(type(self))
        return {
            "command": self.command,
            "settings": self.identity(),
            "shown": {one.name: _plain(getattr(self, one.name)) for one in known if not one.identity},
            "words": [word for one in known if not one.terminal for word in one.words(getattr(self, one.name))],
        }

    def folder(self) -> Path:
        """Where a run of these settings goes if nobody says: one folder for each identity."""
        given = [getattr(self, one.name) for one in options(type(self)) if one.argument]
        names = [Path(name).name for value in given for name in (value if isinstance(value, tuple) else [value])]
        return Path("runs") / f"{file_name(self.command, *names)}-{short_hash([version('headscope'), self.identity()])}"

    def _hashes(self) -> Iterator[tuple[str, str]]:
        """SHA-256 of every file (or of all files in a folder) behind an option, by the path as it was given."""
        for one in options(type(self)):
            value = getattr(self, one.name) if one.files else None
            for name in value if isinstance(value, tuple) else (value or "").split(","):
                path = Path(name.strip())
                if path.is_file():
                    yield str(path), _sha256([path])
                elif one.files == "folders" and name.strip() and path.is_dir():
                    yield str(path), _sha256(sorted(file for file in path.rglob("*") if file.is_file()))


def _sha256(files: list[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.name} {file.stat().st_size}\0".encode() if len(files) > 1 else b"")
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class Printed(Settings):
    """Settings of a command that prints tables."""

    as_json: bool = option(False, "Print one JSON document instead of tables.", flag="--json", terminal=True)
    quiet: bool = option(False, "Neither header nor progress.", short="-q", terminal=True)


@dataclass(frozen=True, kw_only=True)
class Loaded(Printed):
    """Settings of a command that loads models."""

    device: str | None = option(
        None, "Where models run: cpu, cuda, cuda:1, mps; a GPU if there is one, unless given.", silent=True
    )
    dtype: Literal["float32", "float16", "bfloat16", "float64"] | None = option(
        None, "Numbers they run in: float32 on the CPU, the checkpoint's own elsewhere, unless given.", silent=True
    )
    revision: str | None = option(None, "Branch, tag or commit of models from the hub.", silent=True)

    @property
    def loading(self) -> dict[str, Any]:
        """What `load` is told besides a name."""
        return {"device": self.device, "dtype": self.dtype, "revision": self.revision}


@dataclass(frozen=True, kw_only=True)
class Drawn(Loaded):
    """Settings of a command that draws figures too."""

    formats: tuple[Literal["png", "svg", "pdf"], ...] = option(
        ("png", "svg", "pdf"), "Figure formats: png, svg, pdf.", flag="--format", identity=False
    )


@cache
def options(record: type[Settings]) -> tuple[Option, ...]:
    """The options of a record: arguments and what must be given, then its own, then those of what it builds on."""
    hints, fields = get_type_hints(record), {f.name: f for f in dataclasses.fields(record)}
    owned = [name for owner in record.__mro__ for name in vars(owner).get("__annotations__", {}) if name in fields]
    made = [_option(fields[name], hints[name]) for name in dict.fromkeys(owned)]
    return tuple(sorted(made, key=lambda one: (not one.argument, one.default is not ...)))


def _option(field: dataclasses.Field, hint: Any) -> Option:
    about: Option = field.metadata["option"]
    many = get_origin(hint) is tuple
    inner = get_args(hint)[0] if many else hint
    if get_origin(inner) in (UnionType, Union):
        inner = next(kind for kind in get_args(inner) if kind is not type(None))
    known = tuple(map(str, get_args(inner))) if get_origin(inner) is Literal else ()
    flag = "" if about.argument else about.flag or f"--{field.name.replace('_', '-')}"
    default = ... if field.default is MISSING else field.default
    return dataclasses.replace(
        about, name=field.name, default=default, kind=str if known else inner, many=many, known=known, flag=flag,
        noun=about.noun or flag.strip("-") or field.name, empty=about.empty or default == (),
    )  # fmt: skip


def table(record: type[Settings]) -> str:
    """The options of a record as a table in Markdown."""
    rows = ["| option | default | what it is |", "|---|---|---|"]
    for one in options(record):
        called = (
            f"`{one.name.upper()}`" if one.argument else f"`{one.flag}`" + (f", `{one.short}`" if one.short else "")
        )
        unsaid = any(one.default is nothing for nothing in (..., None, False)) or one.default in ("", ())
        rows.append(f"| {called} | {'' if unsaid else f'`{one.text(one.default)}`'} | {one.help} |")
    return "\n".join(rows)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
