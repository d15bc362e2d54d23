"""What others wrote, read by a schema: JSON that can do no harm by its depth, its numbers or its encoding, and values
of the types, ranges and lengths that are expected. What is not so is told in a line: what was expected, what was found.

A schema is anything that pydantic takes for a type: a dataclass, a TypedDict, `list[str]`, `Annotated[int, Ge(0)]`.
"""

from __future__ import annotations

import re
from dataclasses import is_dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails, from_json

from headscope.errors import InputError

# What JSON calls a value, by its type in Python.
KINDS = {dict: "an object", list: "a list", tuple: "a list", str: "a text", bool: "true or false", type(None): "null"}
# What a schema asks for, by the error that pydantic gives where it finds something else.
EXPECTED = {
    "string_type": "a text", "list_type": "a list", "tuple_type": "a list", "dict_type": "an object",
    "dataclass_type": "an object", "dataclass_exact_type": "an object", "model_type": "an object",
    "int_type": "a whole number", "int_parsing": "a whole number", "int_from_float": "a whole number",
    "int_parsing_size": "a whole number of fewer digits", "float_type": "a number", "float_parsing": "a number",
    "bool_type": "true or false", "bool_parsing": "true or false", "finite_number": "a finite number",
    "string_unicode": "a text that UTF-8 can carry", "unexpected_keyword_argument": "left out",
}  # fmt: skip
LIMITS = {
    "ge": "at least", "gt": "above", "le": "at most", "lt": "below", "min_length": "not shorter than",
    "max_length": "not longer than",
}  # fmt: skip
# Of what was found, as much is said.
LONGEST_FOUND = 60
# What file systems take for a part of a path, and for a whole one, in bytes.
LONGEST_PART, LONGEST_PATH = 255, 4096


def kind(value: Any) -> str:
    """What JSON calls the value."""
    return KINDS.get(type(value), "a number")


def read_json(path: Path, schema: Any = Any, *, expected: str = "a JSON file") -> Any:
    """What a JSON file holds, by the schema. expected: what the file should be, for the message if it is not."""
    return parse(read_bytes(path), schema, where=str(path), expected=expected)


def read_bytes(path: Path) -> bytes:
    """The bytes of a regular file (others may never end), without the mark that some editors put before UTF-8."""
    try:
        if path.exists() and not path.is_file():
            raise InputError(f"{path}: cannot be read (it is no file).")
        return path.read_bytes().removeprefix(b"\xef\xbb\xbf")
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error}).") from error


def parse(data: bytes | str, schema: Any = Any, *, where: str, expected: str) -> Any:
    """JSON as the schema wants it; `where` names the file, or the line in it."""
    try:
        found = from_json(data)
    except ValueError as error:
        raise InputError(f"{where}: expected {expected}, found bad JSON ({error}).") from error
    return found if schema is Any else checked(found, schema, where=where)


def checked(value: Any, schema: Any, *, where: str, strict: bool = True) -> Any:
    """The value by the schema. strict: a "3" is no 3, as it should be in a file. (A dataclass says that of its fields:
    taken strictly, it would have to be there already.)"""
    try:
        return _adapter(schema).validate_python(value, strict=strict and not is_dataclass(schema))
    except ValidationError as error:
        raise InputError(f"{where}{_fault(error.errors(include_url=False)[0])}.") from None


def _fault(first: ErrorDetails) -> str:
    """What is wrong, in our words: `"answers" must be a list, found a number`."""
    place = ".".join(map(str, first["loc"]))
    if first["type"] == "missing":
        there = ", ".join(map(str, first["input"])) if isinstance(first["input"], dict) else ""
        return f': "{place}" is missing; found {there[:LONGEST_FOUND] or "no fields"}'
    if first["type"] == "string_too_short":
        return f': "{place}" must not be empty'
    named = f': "{place}" must be' if place else " must be"
    wrong_kind = first["type"].endswith(("_type", "value_error")) or type(first["input"]) in KINDS
    found = kind(first["input"]) if wrong_kind and not isinstance(first["input"], str) else _said(first["input"])
    return f"{named} {_expected(first)}, found {found}"


def _expected(first: ErrorDetails) -> str:
    about = first.get("ctx", {})
    for name, words in LIMITS.items():
        if name in about:
            return f"{words} {about[name]:g}" if isinstance(about[name], float) else f"{words} {about[name]}"
    if first["type"] == "literal_error":
        return f"one of {about['expected']}"
    return EXPECTED.get(first["type"]) or first["msg"].removeprefix("Value error, ").removeprefix("Input should be ")


def _said(value: Any) -> str:
    if isinstance(value, int) and value.bit_length() > 128:
        return "a number of very many digits"
    said = repr(value)
    return said if len(said) <= LONGEST_FOUND else f"{said[:LONGEST_FOUND]}..."


@cache
def _adapter(schema: Any) -> TypeAdapter[Any]:
    return TypeAdapter(schema)


def number(of: Any, *, min: float | None = None, max: float | None = None, above: float | None = None) -> Any:
    """The schema of a finite number in a range."""
    return Annotated[of, Field(ge=min, le=max, gt=above, allow_inf_nan=None if of is int else False)]


def _refuse_odd(text: str) -> str:
    try:
        longest = max(len(part.encode()) for part in re.split("[/,]", text))
    except UnicodeEncodeError:
        raise ValueError("a text that UTF-8 can carry") from None
    if "\0" in text:
        raise ValueError("a text without NUL")
    if len(text.encode()) > LONGEST_PATH or longest > LONGEST_PART:
        raise ValueError(f"of at most {LONGEST_PART} bytes between slashes or commas and {LONGEST_PATH} in all")
    return text


def _several(value: Any) -> list[str]:
    texts = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ValueError("a text or a list of texts")
    return list(dict.fromkeys(texts))


# A text that says something; a text or several, each once.
TEXT = Annotated[str, Field(min_length=1)]
TEXTS = Annotated[list[str], BeforeValidator(_several)]
# A text that may be a path, or become a part of one.
NAME = Annotated[str, AfterValidator(_refuse_odd)]
