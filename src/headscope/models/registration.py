"""Lets plain transformers open sparse checkpoints after `import headscope`.

Such a checkpoint's config names the attention implementation "headscope", which transformers must know before it
builds the model. Importing transformers for that would make `import headscope` slow; so the name is registered when
transformers is imported, or at once where that has happened.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

# The module of transformers that holds the table of attention implementations.
TABLE = "transformers.modeling_utils"


def register_with_transformers() -> None:
    """Register now, or as soon as transformers is imported."""
    if TABLE in sys.modules:
        _register()
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def _register() -> None:
    # Importing it is enough; and where it is what imports transformers, it is on its way.
    importlib.import_module("headscope.models.attention")


class _Finder(importlib.abc.MetaPathFinder):
    """Finds nothing itself: when the table is imported, it lets the others find it and registers afterwards."""

    def find_spec(self, fullname: str, path: object, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname != TABLE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, own: importlib.abc.Loader):
        self.own = own

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.own.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.own.exec_module(module)
        _register()
