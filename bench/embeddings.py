"""Cosines of sentence embeddings beside those of sentence-transformers, on 100 pairs of the built-in questions.

    python bench/embeddings.py PYTHON

PYTHON: the interpreter of an environment that has sentence-transformers (pip install torch==2.13.0, then
sentence-transformers). Without one it says so and compares nothing.
"""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np

from headscope.functions.builtin import builtin_questions
from headscope.functions.embedding import embedder
from headscope.models.builtin import builtin_folder

NAME, PAIRS = "all-MiniLM-L6-v2", 100
PEER = """
import json, sys
from sentence_transformers import SentenceTransformer
folder, texts = json.load(sys.stdin)
embedded = SentenceTransformer(folder, device="cpu").encode(texts, normalize_embeddings=True)
print(json.dumps(embedded.astype(float).tolist()))
"""


def main() -> None:
    if len(sys.argv) < 2:
        print("Skipped: no interpreter with sentence-transformers was given (see the first lines of this file).")
        return
    texts = [q.prompt for by_function in builtin_questions().questions.values() for q in by_function]
    texts = [texts[at] for at in np.random.default_rng(0).permutation(len(texts))[: 2 * PAIRS]]
    asked = json.dumps([str(builtin_folder(NAME)), texts])
    peer = subprocess.run([sys.argv[1], "-c", PEER], input=asked, capture_output=True, text=True, check=True)
    cosines = []
    for embedded_ND in (embedder(NAME)(texts), np.array(json.loads(peer.stdout.splitlines()[-1]))):
        cosines.append((embedded_ND[:PAIRS] * embedded_ND[PAIRS:]).sum(1))
    print(f"{PAIRS} pairs, cosines from {cosines[0].min():.3f} to {cosines[0].max():.3f}; largest difference "
          f"{np.abs(cosines[0] - cosines[1]).max():.1e}")  # fmt: skip


if __name__ == "__main__":
    main()
