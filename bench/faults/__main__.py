"""Run groups of faults, print the table of the bars, and write it into docs/reliability.md.

PYTHONPATH=bench python -m faults [group ...] [--seed 0] [--n TRIALS] [--no-write]
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from pathlib import Path

from faults.trial import BARS, Trial

DOCUMENT = Path(__file__).parents[2] / "docs" / "reliability.md"
HEADER = "| group | what each trial must show | trials | as it must be |\n|---|---|---|---|\n"


def main() -> int:
    reader = argparse.ArgumentParser(prog="faults", description="What goes wrong on purpose, and what comes of it.")
    reader.add_argument("groups", nargs="*", help=f"of {', '.join(BARS)}; all that are there if none is named")
    reader.add_argument("--seed", type=int, default=0)
    reader.add_argument("--n", type=int, help="trials per group; those of its bar if not given")
    reader.add_argument("--no-write", action="store_true", help="leave docs/reliability.md as it is")
    asked = reader.parse_args()
    failed = 0
    for group in asked.groups or [name for name in BARS if importlib.util.find_spec(f"faults.{name}")]:
        done = run(group, asked.seed, asked.n or BARS[group].count)
        failed += sum(not trial.ok for trial in done)
        row = told(group, done)
        print(row, flush=True)
        if asked.n is None and not asked.no_write:
            write(group, row)
    return int(failed > 0)


def run(group: str, seed: int, n: int) -> list[Trial]:
    """The trials of a group; those that went wrong are shown as they end."""
    module, done, began = importlib.import_module(f"faults.{group}"), [], time.monotonic()
    for trial in module.trials(seed, n):
        done.append(trial)
        if not trial.ok:
            print(f"WRONG {trial.group}: {trial.name}: {trial.detail}", flush=True)
        elif n <= 100:
            print(f"{group} {len(done)} of {n}: {trial.name}: as it must be", file=sys.stderr, flush=True)
    print(f"{group}: {len(done)} trials in {time.monotonic() - began:.0f} s", file=sys.stderr)
    return done


def told(group: str, done: list[Trial]) -> str:
    """A group's row of the table; a single trial tells its figure."""
    good = sum(trial.ok for trial in done)
    said = f"{good} ({done[0].detail})" if len(done) == 1 and done[0].detail else str(good)
    return f"| {group} | {BARS[group].what} | {len(done):,} | {said} |"


def write(group: str, row: str) -> None:
    """Put a row in the document's table, in the order of the bars."""
    text = DOCUMENT.read_text(encoding="utf-8")
    before, _, rest = text.partition(HEADER)
    lines = rest.splitlines(keepends=True)
    count = next((at for at, line in enumerate(lines) if not line.startswith("|")), len(lines))
    rows = {line.split("|")[1].strip(): line for line in lines[:count]} | {group: f"{row}\n"}
    table = "".join(rows[name] for name in BARS if name in rows)
    DOCUMENT.write_text(before + HEADER + table + "".join(lines[count:]), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
