"""What every group of faults shares: a trial, and the bar that a group has to reach."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Trial:
    """One trial: what was done (`name` says it well enough to do it again), whether all went as it must, and if not,
    or where there is a figure to tell, what was seen."""

    group: str
    name: str
    ok: bool
    detail: str = ""


@dataclass(frozen=True)
class Bar:
    """A group's bar: how many trials, and what each must show."""

    count: int
    what: str


# By group, which is the name of its module.
BARS = {
    "kills": Bar(
        60, "kill -9, at random moments and at renames: results identical to the uninterrupted run, nothing left behind"
    ),
    "damages": Bar(
        60, "flip, cut, swap, delete, foreign: detected or healed, never silent, no traceback"
    ),
    "disks": Bar(20, "full or unusable disks: a clear message, no traceback, and the next run with room ends right"),
    "pairs": Bar(8, "two processes on one folder: one works, the other is told, the result is that of one"),
    "overhead": Bar(1, "hashing and locks in `heads smollm2-135m --task ioi --n 50`: at most 2 % of the time"),
    "fuzz": Bar(
        5000, "fuzzed inputs: no traceback, no hang, exit codes 0, 1 and 2 only, no file outside the chosen folder"
    ),
    "numbers": Bar(50, "models with NaN, infinity or huge weights: refused by the tensor's name, or harmless"),
}  # fmt: skip
