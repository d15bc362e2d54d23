"""A command made of a record of settings: its options, arguments and help are what the record's fields say. All look
alike: a header at once, progress, what was found."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from headscope.cli.console import err, print_header
from headscope.progress import display
from headscope.runs.settings import Option, Printed, options

S = TypeVar("S", bound=Printed)
# What is printed in the end, when there is no progress any more.
Ending = Callable[[], None]
OUT = "Run folder; by default one under runs/ for these settings."


def add_study(app: typer.Typer, record: type[S], run: Callable[[S, Path], Ending], *, out: str = OUT) -> None:
    """Put a study on the command line. `run` gets its settings and the folder, and its docstring is the help; it
    returns what prints the end. out: the help of --out; a command without a folder gives none."""

    def call(**typed: Any) -> None:
        folder = typed.pop("to", None)
        for one in renamed:
            if (given := typed.pop(_old_name(one))) is not None:
                err.print(f"{one.formerly} is now called {one.flag}; the old name goes with the next release.")
                typed[one.name] = given
        settings = record(**typed)
        folder = folder or settings.folder()
        # (Of several processes that train together, one speaks.)
        quiet = settings.quiet or os.environ.get("RANK", "0") != "0"
        if not quiet:
            print_header(settings, folder if out else None)
        with display(quiet=quiet):
            end = run(settings, folder)
        end()

    renamed = [one for one in options(record) if one.formerly]
    parameters = [_parameter(one) for one in options(record)]
    parameters += [
        _keyword(_old_name(one), Annotated[one.kind | None, typer.Option(one.formerly, hidden=True)], None)
        for one in renamed
    ]
    if out:
        parameters.append(_keyword("to", Annotated[Path | None, typer.Option("--out", "-o", help=out)], None))
    call.__doc__ = run.__doc__
    call.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportFunctionMemberAccess]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    app.command(record.command)(call)


def _parameter(one: Option) -> inspect.Parameter:
    unsaid = one.default is ... or one.default in (None, "", ()) or one.required
    about: dict[str, Any] = {"help": one.help, "show_default": not unsaid}
    if one.kind in (int, float) and not one.many:
        about |= {"min": one.min, "max": one.max}
    kind = list[str] if one.argument and one.many else str if one.many else one.kind
    default = inspect.Parameter.empty if one.default is ... or one.required else one.default
    if one.argument:
        return _keyword(one.name, Annotated[kind, typer.Argument(**about)], default)
    flags = [flag for flag in (one.flag, one.short) if flag]
    kind = kind | None if one.default is None else kind
    default = one.text(default) if one.many and isinstance(default, tuple) else default
    return _keyword(one.name, Annotated[kind, typer.Option(*flags, **about)], default)


def _old_name(one: Option) -> str:
    return f"old_{one.name}"


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)
