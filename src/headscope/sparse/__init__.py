"""Post-training that makes attention sparse: the objective, the text, the loop, and its checkpoints."""

from headscope.sparse.settings import Settings
from headscope.sparse.training import sparsify

__all__ = ["Settings", "sparsify"]
