"""Loading models: names, built-in models, GGUF, and the checks that a loaded model passes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headscope.models.builtin import BUILTIN, builtin_folder, cache_folder

if TYPE_CHECKING:
    from headscope.models.loading import load, release
    from headscope.models.model import Model

__all__ = ["BUILTIN", "Model", "builtin_folder", "cache_folder", "load", "release"]


def __getattr__(name: str) -> Any:
    # Loading needs torch; the table of built-in models, which the command line lists, does not.
    if name in ("load", "release"):
        from headscope.models import loading

        return getattr(loading, name)
    if name == "Model":
        from headscope.models.model import Model

        return Model
    raise AttributeError(name)
