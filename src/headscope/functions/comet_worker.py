"""Runs in COMET's own environment, not in Headscope's: loads a checkpoint once, then scores what comes in.

A request is a line of JSON on standard input, {"samples": [{"src", "mt", "ref"}, ...]}; a reply is a line on standard
output, {"scores": [...]} or {"error": "..."}; the first reply, {"ready": ...}, comes when the checkpoint is loaded.
With --fetch the checkpoint is only brought here. Scores are those of the package's `comet-score`, which runs in half
precision and remembers sentences; so does this.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any


def main() -> None:
    # What libraries print goes to standard error: only replies may reach the pipe.
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def reply(value: dict[str, Any]) -> None:
        replies.write(json.dumps(value) + "\n")
        replies.flush()

    warnings.filterwarnings("ignore")
    try:
        path = find(sys.argv[1])
        if "--fetch" in sys.argv:
            reply({"ready": path})
            return
        model = load(path)
    except Exception as error:
        reply({"error": f"{type(error).__name__}: {error}"})
        return
    reply({"ready": path})
    for line in sys.stdin:
        request = json.loads(line)
        predicted = model.predict(
            samples=request["samples"], batch_size=16, gpus=0, accelerator="cpu", progress_bar=False, num_workers=None
        )
        reply({"scores": [float(score) for score in predicted["scores"]]})


def find(name: str) -> str:
    """The checkpoint file: a path to it, a folder that holds it, or a model of the hub."""
    path = Path(name).expanduser()
    if path.is_file():
        return str(path)
    if path.is_dir():
        files = sorted(path.rglob("*.ckpt"))
        if not files:
            raise FileNotFoundError(f"there is no .ckpt file in {name}")
        return str(files[0])
    from comet import download_model  # pyright: ignore[reportMissingImports, reportAttributeAccessIssue]

    return str(download_model(name))


def load(path: str) -> Any:
    import logging

    import torch
    from comet import load_from_checkpoint  # pyright: ignore[reportMissingImports, reportAttributeAccessIssue]
    from pytorch_lightning import seed_everything  # pyright: ignore[reportMissingImports]

    for name in logging.root.manager.loggerDict:
        logging.getLogger(name).setLevel(logging.ERROR)
    torch.set_float32_matmul_precision("high")
    seed_everything(1)
    model = load_from_checkpoint(path)
    model.eval()
    model.half()
    model.set_embedding_cache()
    return model


if __name__ == "__main__":
    main()
