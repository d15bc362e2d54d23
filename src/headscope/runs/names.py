"""Names as file names: the only place where what somebody called a model, a task or a method becomes part of a path."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence

# Room for an ending and a temporary file's addition within the 255 bytes that file systems give.
LONGEST = 160


def file_name(*parts: str) -> str:
    """Parts as one readable file name, joined by hyphens. It holds no separator and begins with no dot, so it cannot
    lead out of a folder; a name that is too long is cut and gets a short hash of the whole."""
    name = re.sub(r"[^\w.=+-]+", "-", "-".join(part for part in parts if part)).strip("-.") or "unnamed"
    if len(name.encode()) <= LONGEST:
        return name
    return told_apart(name.encode()[:LONGEST].decode(errors="ignore"), parts)


def file_names(many: Iterable[Sequence[str]]) -> dict[tuple[str, ...], str]:
    """A file name for each of several keys; those that would share one (a-b, c and a, b-c) get a short hash each."""
    keys = [tuple(key) for key in many]
    plain = {key: file_name(*key) for key in keys}
    names = list(plain.values())
    return {key: name if names.count(name) == 1 else told_apart(name, key) for key, name in plain.items()}


def told_apart(name: str, key: object) -> str:
    return f"{name}-{short_hash(key)}"


def short_hash(value: object) -> str:
    """Eight digits that stand for a value that JSON can carry."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:8]
