"""Do the cheap presets of head gating find the roles that the paper's finds, and at what cost?

    python bench/role_presets.py nano --task ioi,greater-than --keep FOLDER

Fits every preset on the same prompts with the same seeds and sets it beside the paper's: by score, the correlation over
heads of the mean over seeds, and the share of heads whose commonest role is the same. How alike single seeds of the
paper's preset are says what can be asked for. The paper's fit takes long; `--keep` keeps it, whole or half done.
"""

from __future__ import annotations

import argparse
from itertools import combinations
from pathlib import Path

import numpy as np

import headscope as hs
from headscope.methods.gating import PRESETS, Preset, gating
from headscope.records import ROLES, Roles, agreement, correlation
from headscope.tasks import Task, make_task


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--task", default="ioi,greater-than")
    parser.add_argument("--n", type=int, default=64, help="prompts to fit on")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--keep", type=Path, help="folder for fits")
    given = parser.parse_args()
    model = hs.load(given.model)
    print(f"{model.name}, {given.n} prompts, {given.seeds} seeds")
    for name in given.task.split(","):
        task = make_task(name, model.tokenizer, n=given.n, seed=0)
        fits = {preset: fitted(model, task, preset, given.seeds, given.keep) for preset in PRESETS}
        paper = fits.pop("paper")
        print(f"{name}: {'':15s}" + "".join(f"{role:>16s}" for role in (*ROLES, "same role", "paper / prompts")))
        for preset, roles in fits.items():
            alike = agreement(roles, paper)
            values = [alike[f"{role} correlation"] for role in ROLES] + [alike["same role"]]
            cost = prompts(PRESETS["paper"], given.n) / prompts(PRESETS[preset], given.n)
            print(f"  {preset:20s}" + "".join(f"{value:16.2f}" for value in values) + f"{cost:15.0f}x")
        print(f"  {'paper, seed by seed':20s}" + "".join(f"{by_seed(paper, role):16.2f}" for role in ROLES))


def fitted(model: hs.Model, task: Task, preset: str, seeds: int, keep: Path | None) -> Roles:
    if keep is None:
        return gating(model, task, seeds=seeds, preset=preset)
    keep.mkdir(parents=True, exist_ok=True)
    stem = f"{model.name}-{task.name}-{len(task)}-{seeds}-{preset}"
    place = keep / f"{stem}.safetensors"
    if not place.exists():
        gating(model, task, seeds=seeds, preset=preset, checkpoint=keep / f".{stem}.safetensors").save(place)
    return Roles.load(place)


def prompts(preset: Preset, n: int) -> int:
    """Prompts that go through the model for one seed."""
    return min(preset.batch, n) * (preset.free.updates + 2 * preset.pressed.updates)


def by_seed(roles: Roles, role: str) -> float:
    """Mean correlation of two seeds."""
    scores = getattr(roles, role).reshape(len(roles.g_plus), -1)
    return float(np.mean([correlation(a, b) for a, b in combinations(scores, 2)]))


if __name__ == "__main__":
    main()
