"""The studies as small as they get, on the model in the package, and what a run folder holds, to compare."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from functools import cache
from pathlib import Path

from faults.process import Ended, run, scratch
from headscope.records.checksums import SUMS

STUDIES = {
    "heads": "heads nano --task ioi --n 2 --method gradient --draws 0 --points 3",
    "edges": "edges nano --task ioi --n 2 --method eap --points 3",
    "roles": "roles nano --task ioi --seeds 1 --preset quick --n 4 --held-out 4 --compare 0",
    "functions": "functions nano --function retrieval --ranking attribution --k 2 --draws 1 --n 2 --train 2 "
    "--ablated 1 --shots 0 --max-new-tokens 1 --alpha 2 --comet none --embedder none",
    "sparsify": "sparsify nano --steps 4 --every 2 --sequences 8 --held-out 4 --length 8 --batch 4 --lora-rank 2 "
    "--warmup 1",
    "sparsify-report": "sparsify-report nano nano-sparse --task ioi --n 2 --sequences 4 --length 8",
}
# What a run notes of the time and of the machine, and the lock, which stays.
TIMED = ("manifest.json", ".manifest.json", SUMS, ".lock", "reproduce.json", "report.html")


def words(study: str, out: Path, *more: object) -> list[object]:
    return [*STUDIES[study].split(), "--format", "png", "--out", out, *more]


def use_cache(folder: Path) -> None:
    """Text and models of a trial are kept in a folder of its own."""
    os.environ["HEADSCOPE_CACHE"] = str(folder)


@cache
def whole(study: str, *more: object) -> tuple[Path, Ended]:
    """The folder of an uninterrupted run of a study, made once, and how that ended."""
    folder = scratch() / "run"
    ended = run(words(study, folder, *more))
    if ended.code:
        raise RuntimeError(f"{study} does not run at all: {ended.err}")
    return folder, ended


def content(folder: Path) -> dict[str, str]:
    """All that a run left, by name: SHA-256 of files, and of the manifest what does not depend on the time."""
    found = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        if path.name not in TIMED and path.suffix != ".damaged":
            found[str(path.relative_to(folder))] = hashlib.sha256(path.read_bytes()).hexdigest()
    if (folder / "manifest.json").exists():
        manifest = json.loads((folder / "manifest.json").read_text())
        kept = {name: manifest[name] for name in ("command", "settings", "models", "units")}
        found["manifest.json"] = json.dumps([kept, sorted(manifest["files"]), bool(manifest.get("finished"))], indent=1)
    if (folder / "reproduce.json").exists():
        made = json.loads((folder / "reproduce.json").read_text())
        found["reproduce.json"] = json.dumps({name: made[name] for name in made if name != "seconds"})
    return found


def difference(folder: Path, wanted: Path) -> str:
    """What is not as in the folder of an uninterrupted run; nothing where all is."""
    here, there = content(folder), content(wanted)
    names = sorted(name for name in here.keys() | there.keys() if here.get(name) != there.get(name))
    return ", ".join(
        f"{name} {'is left' if name not in there else 'is missing' if name not in here else 'differs'}"
        for name in names
    )


def fresh(folder: Path) -> Path:
    """A copy of a run folder, to be damaged; times of files stay."""
    to = scratch() / "run"
    shutil.copytree(folder, to)
    return to
