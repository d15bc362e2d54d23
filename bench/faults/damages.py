"""Files are damaged (a bit flipped, cut short, swapped with another, deleted, replaced by the same file of a run with
another seed) and then used: by the same command, by `figure`, by loading. Each must be healed (the result is that of
the undamaged run) or detected (a message that names it, exit code 1 or 2); never is it used in silence."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

from faults.kills import killed_at
from faults.process import Ended, run, scratch, warm
from faults.studies import content, difference, fresh, use_cache, whole, words
from faults.trial import Trial
from headscope.models import builtin_folder
from headscope.records.checksums import write_sums

KINDS = ("flip", "cut", "delete", "swap", "foreign")
# What is damaged, by turns: files of which run, by pattern, and who then uses them.
TARGETS = (
    ("heads", "*.safetensors", "again"), ("heads", "manifest.json", "again"), ("heads", "check-*.json", "again"),
    ("heads", "*.safetensors", "figure"), ("heads", "manifest.json", "figure"), ("heads", "*.csv", "again"),
    ("edges", "*.safetensors", "again"), ("edges", "curve-*.safetensors", "figure"),
    ("functions", "*.json", "again"), ("functions", "functions.json", "figure"),
    ("sparsify", "checkpoint.safetensors", "again"), ("sparsify", "model.safetensors", "again"),
    ("sparsify", "model.safetensors", "load"), ("sparsify", "tokenizer.json", "again"),
    ("sparsify", "config.json", "load"), ("sparsify", "adapter/*", "again"), ("sparsify", "adapter/*", "merge"),
    ("sparsify", "history.csv", "again"), ("text", "seed-0-*.safetensors", "again"), ("models", "*", "load"),
    ("roles", ".fit-*", "again"), ("sparsify", "checkpoint.safetensors", "figure"),
)  # fmt: skip


def trials(seed: int, n: int) -> Iterator[Trial]:
    warm()
    os.environ["PIP_NO_INDEX"] = "1"
    draw = random.Random(seed)
    for number in range(n):
        run_of, pattern, by = TARGETS[number % len(TARGETS)]
        kind = KINDS[(number + number // len(TARGETS)) % len(KINDS)]
        use_cache(cache := scratch())
        shutil.copytree(text_cache(), cache / "text")
        folder, wanted, other = _prepared(run_of, cache)
        path = draw.choice(sorted(path for path in folder.glob(pattern) if path.is_file()))
        how = _damage(kind, path, folder, other, draw)
        ended = _used(run_of, by, folder)
        wrong = _wrong(run_of, by, folder, wanted, path, ended)
        yield Trial("damages", f"{run_of} {path.relative_to(folder)}: {how}, then {by}", not wrong, wrong)
        for place in (folder.parent, cache):
            shutil.rmtree(place, ignore_errors=True)


_TEXT: list[Path] = []


def text_cache() -> Path:
    """The cached text of the sparsify study, made once."""
    if not _TEXT:
        use_cache(scratch())
        whole("sparsify")
        whole("sparsify", "--seed", 1)
        _TEXT.append(Path(os.environ["HEADSCOPE_CACHE"]) / "text")
    return _TEXT[0]


def _prepared(run_of: str, cache: Path) -> tuple[Path, Path, Path]:
    """A folder to damage, the undamaged one, and one of another seed."""
    if run_of == "text":
        text = next(path for path in (cache / "text").iterdir() if path.is_dir())
        return text, text_cache() / text.name, text_cache() / text.name
    if run_of == "models":
        # Stands for the real model, which is as large as a small disk: what is there is verified, not what it says.
        folder = cache / "models" / "smollm2-135m"
        shutil.copytree(builtin_folder("nano"), folder)
        write_sums(folder)
        return folder, builtin_folder("nano"), builtin_folder("nano")
    other = whole(run_of, "--seed", 1)[0]
    if run_of == "roles":
        for number in range(1, 60):
            folder = scratch() / "run"
            run(words("roles", folder), killed_at(number, before=False))
            if list(folder.glob(".fit-*.safetensors")):
                return folder, whole("roles")[0], other
            shutil.rmtree(folder.parent)
    return fresh(whole(run_of)[0]), whole(run_of)[0], other


def _damage(kind: str, path: Path, folder: Path, other: Path, draw: random.Random) -> str:
    data = bytearray(path.read_bytes())
    alike = sorted(one for one in path.parent.glob(f"*{path.suffix}") if one != path and one.is_file())
    foreign = other / path.relative_to(folder)
    if kind == "delete":
        path.unlink()
        return "deleted"
    if kind == "swap" and alike:
        with_ = draw.choice(alike)
        path.write_bytes(with_.read_bytes())
        with_.write_bytes(data)
        return f"swapped with {with_.name}"
    if kind == "foreign" and foreign.is_file() and foreign.read_bytes() != data:
        shutil.copyfile(foreign, path)
        return "of another seed"
    if kind == "cut":
        at = draw.randrange(len(data))
        path.write_bytes(data[:at])
        return f"cut to {at} of {len(data)} bytes"
    bit = draw.randrange(8 * len(data))
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)
    return f"bit {bit} flipped"


def _used(run_of: str, by: str, folder: Path) -> Ended:
    if by == "figure":
        return run(["figure", folder, "--format", "png", "--out", folder.parent / "drawn"])
    if by == "merge":
        return run(["merge", folder / "adapter", "nano", "--out", folder.parent / "merged"])
    if by == "load":
        name = "smollm2-135m" if run_of == "models" else folder
        return run(["check", name, "--task", "ioi", "--n", "2"])
    return run(words("sparsify", folder.parent.parent / "from-text") if run_of == "text" else words(run_of, folder))


def _wrong(run_of: str, by: str, folder: Path, wanted: Path, path: Path, ended: Ended) -> str:
    """What is wrong with how it ended; nothing if it was healed or told."""
    if ended.traceback or ended.code not in (0, 1, 2):
        return ended.said
    if ended.code:
        known = (path.name, folder.name, "manifest", "smollm2-135m", "adapter")
        return "" if any(name in ended.err for name in known) else f"says nothing of it: {ended.said}"
    if by == "again" and run_of == "text":
        made = folder.parent.parent / "from-text"
        healed = path.read_bytes() == (wanted / path.name).read_bytes()
        return difference(made, whole("sparsify")[0]) or ("" if healed else f"{path.name} stayed as it was")
    if by == "again":
        return difference(folder, wanted)
    # Whoever only reads must say it, or have come to the same.
    again = _used(run_of, by, fresh(wanted) if run_of != "models" else wanted)
    if by == "load":
        return "" if (again.out == ended.out) else "loaded in silence"
    made = {"figure": "drawn", "merge": "merged"}[by]
    there = Path(next(line for line in again.out.splitlines() if line).split(": ", 1)[1])
    there = there if there.is_dir() else there.parent
    return "" if content(folder.parent / made) == content(there) else "used in silence"
