"""What is shown of a role study."""

from __future__ import annotations

from functools import cached_property, partial
from itertools import combinations
from typing import Any

import numpy as np

from headscope.records import (
    ROLES,
    Ablation,
    Contrast,
    Roles,
    Scores,
    Table,
    against_patching,
    agreement,
    head_name,
    spread,
)
from headscope.report.figures.roles import ablation_grid, role_map, score_distributions
from headscope.report.outputs.outputs import Draw, Outputs
from headscope.runs.names import file_names


class HeadRoles(Outputs):
    """The grid of curves first, then the distributions of scores, then a map for each model and task. Roles, ablations
    and effects are of the models and tasks whose check is usable."""

    on_page = ("ablation", "map-")

    @cached_property
    def roles(self) -> list[Roles]:
        return list(self.run.records("roles-", Roles).values())

    @cached_property
    def ablations(self) -> list[Ablation]:
        return list(self.run.records("ablation-", Ablation).values())

    @cached_property
    def effects(self) -> list[Scores]:
        return list(self.run.records("effects-", Scores).values())

    @cached_property
    def contrasts(self) -> list[dict[str, Any]]:
        return [contrast.summary() for contrast in self.run.records("contrast-", Contrast).values()]

    @property
    def agreements(self) -> list[tuple[str, str, str, dict[str, float]]]:
        """(task, model, other model, how alike) for every two models on a task."""
        return [(a.task, a.model, b.model, agreement(a, b)) for a, b in combinations(self.roles, 2) if a.task == b.task]

    @property
    def comparisons(self) -> list[tuple[str, str, dict[str, Any]]]:
        """(model, task, facilitation against exact patching)."""
        of = {(r.model, r.task): r for r in self.roles}
        both = [(of[e.model, e.task], e) for e in self.effects if (e.model, e.task) in of]
        return [(e.model, e.task, against_patching(roles, e.values)) for roles, e in both]

    def figures(self) -> dict[str, Draw]:
        figures: dict[str, Draw] = {"ablation": partial(ablation_grid, self.checks, self.ablations)}
        if self.roles:
            figures["scores"] = partial(score_distributions, self.roles)
        names = file_names(("map", r.model, r.task) for r in self.roles)
        maps = {names["map", r.model, r.task]: partial(role_map, r) for r in self.roles}
        return figures | maps if self.checks else maps

    def tables(self) -> dict[str, Table]:
        heads, shares, curves = [], [], []
        for r in self.roles:
            common, means = r.commonest, {role: getattr(r, role).mean(0) for role in ROLES}
            for layer, head in np.ndindex(*common.shape):
                scores = [float(means[role][layer, head]) for role in ROLES]
                name = ROLES[common[layer, head]] if common[layer, head] >= 0 else "none"
                heads.append((r.model, r.task, head_name(layer, head), layer, head, *scores, name))
            shares += [(r.model, r.task, role, *share.values()) for role, share in spread(r).items()]
        for a in self.ablations:
            for role in ROLES:
                rows = zip(a.k.tolist(), *line(a, role).values(), strict=True)
                curves += [(a.model, a.task, role, *row) for row in rows]
        alike = [(task, a, b, what, value) for task, a, b, share in self.agreements for what, value in share.items()]
        patching = [
            (m, t, f["rank correlation"], f["k"], f["shared"], f["by chance"], " ".join(f["heads"]))
            for m, t, f in self.comparisons
        ]
        contrasts = [tuple(contrast.values()) for contrast in self.contrasts]
        columns = "model task head layer index facilitation irrelevance interference role"
        return {
            "roles": Table.of(columns, heads, floats=".6g"),
            "shares": Table.of("model task role share always sometimes never", shares, floats=".6g"),
            "ablation": Table.of("model task score k mean low high", curves, floats=".6g"),
            "agreement": Table.of("task model other what value", alike),
            "contrasts": Table.of("model keep forget kept forgotten plain_kept plain_forgotten share_open", contrasts),
            "patching": Table.of("model task rank_correlation k shared by_chance heads", patching),
        }

    def findings(self, *, top: int = 10) -> dict[str, Any]:
        return {
            "run": str(self.run.folder),
            "checks": self.told_checks,
            "roles": [{"model": r.model, "task": r.task, **r.settings, "spread": spread(r)} for r in self.roles],
            "curves": [
                {"model": a.model, "task": a.task, "k": a.k.tolist(), **{role: line(a, role) for role in ROLES}}
                for a in self.ablations
            ],
            "agreement": [{"task": t, "models": [a, b], **measures} for t, a, b, measures in self.agreements],
            "patching": [{"model": m, "task": t, **measures} for m, t, measures in self.comparisons],
            "contrasts": self.contrasts,
            "figures": self.drawn,
        }


def line(ablation: Ablation, role: str) -> dict[str, list[float]]:
    """A curve over k: mean over seeds, the lowest and the highest."""
    by_seed = ablation.by_seed(role)
    return {"mean": by_seed.mean(0).tolist(), "low": by_seed.min(0).tolist(), "high": by_seed.max(0).tolist()}
