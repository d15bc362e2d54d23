"""The atlas of a model: what each of its heads looks like, and what runs so far say of it.

1. Score every head for known patterns, on random tokens said twice.
2. Keep the attention of every head on one short row of such tokens, to look at.
3. Read the run folders that are there, and make one page with a card per head.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from headscope.errors import InputError
from headscope.methods.patterns import REPEATED, patterns, repeated_tokens
from headscope.models import load
from headscope.records import Attention
from headscope.records.files import write_bytes
from headscope.report.atlas import atlas_page
from headscope.studies.attention import patterns as attention_patterns
from headscope.studies.settings import AtlasSettings
from headscope.tasks import TASKS, make_task

# Tokens of the row that is shown, before it is said again; prompts that give scores need as little.
LENGTH = 16


def study_atlas(settings: AtlasSettings, *, out: Path) -> dict[str, Any]:
    """Write the page of a model to the file `out`; what it says in a few numbers comes back."""
    if out.is_dir():
        raise InputError(f"{out} is a folder; --out needs the name of a file, such as {out / 'atlas.html'}.")
    seed, loaded = settings.seed, load(settings.model, **settings.loading)
    scores = patterns(loaded, seed=seed)
    ids = repeated_tokens(loaded, 1, LENGTH, seed)
    tokens = [[str(loaded.tokenizer.decode([token])) for token in row] for row in ids]
    attention = Attention(
        loaded.name, REPEATED, tokens, attention_patterns(loaded, ids).astype(np.float16), {"seed": seed}
    )

    def ask(task: str, n: int, task_seed: int) -> tuple[list[str], str]:
        try:
            made = make_task(task, loaded.tokenizer, n=n, seed=task_seed)
        except InputError:
            return [], ""
        return made.clean, made.digest

    paired = [name for name in TASKS if name in ("ioi", "greater-than", "docstring", "ioi-long")]
    page, told = atlas_page(scores, attention, Path(settings.runs), ask, paired)
    write_bytes(out, page.encode())
    strong = {name: [head for head, value in scores.top(name, 5) if value >= 0.4] for name in scores.names[:5]}
    return {**told, "patterns": strong, "page": str(out)}
