"""What is shown of a role study."""

from __future__ import annotations

from functools import cached_property, partial
from itertools import combinations
from typing import Any

from headscope.records import (
    ROLES,
    Ablation,
    Contrast,
    Roles,
    Scores,
    Table,
    against_patching,
    agreement,
    spread,
)
from headscope.report.figures.roles import ablation_grid, role_map, score_distributions
from headscope.report.figures.titles import task_title
from headscope.report.outputs.outputs import Draw, Outputs, listed
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

    def sentences(self) -> list[str]:
        said = []
        for r in self.roles[:1]:
            share, task, seeds = spread(r), task_title(r.task), len(r.g_plus)
            words = {"facilitation": "facilitate", "irrelevance": "are irrelevant to", "interference": "interfere with"}
            roles = listed([f"{share[role]['share']:.0%} {verb} {task}" for role, verb in words.items()])
            said.append(
                f"Of the {r.g_plus[0].size} heads of {r.model}, {roles}; {share['none']['share']:.0%} have no role."
            )
            if seeds > 1:
                always, some = (share["facilitation"][key] for key in ("always", "sometimes"))
                said.append(f"{always:.0%} facilitate it in all {seeds} seeds, {some:.0%} in some only.")
        for a in self.ablations[:1]:
            first, other = (float(a.mean(role)[-1]) for role in ("facilitation", "irrelevance"))
            said.append(
                f"Shutting the {int(a.k[-1])} heads that facilitate it most changes log P(target) by {first:+.2f}, as "
                f"many irrelevant ones by {other:+.2f}."
            )
        return [*said, *self.unusable][:3]

    def figures(self) -> dict[str, Draw]:
        figures: dict[str, Draw] = {"ablation": partial(ablation_grid, self.checks, self.ablations)}
        if self.roles:
            figures["scores"] = partial(score_distributions, self.roles)
        names = file_names(("map", r.model, r.task) for r in self.roles)
        maps = {names["map", r.model, r.task]: partial(role_map, r) for r in self.roles}
        return figures | maps if self.checks else maps

    def tables(self) -> dict[str, Table]:
        heads = [row for roles in self.roles for row in roles.rows()]
        curves = [row for ablation in self.ablations for row in ablation.rows()]
        shares = [(r.model, r.task, role, *found.values()) for r in self.roles for role, found in spread(r).items()]
        alike = [(task, a, b, what, value) for task, a, b, found in self.agreements for what, value in found.items()]
        patching = [
            (m, t, f["rank correlation"], f["k"], f["shared"], f["by chance"], " ".join(f["heads"]))
            for m, t, f in self.comparisons
        ]
        contrasts = [tuple(contrast.values()) for contrast in self.contrasts]
        return {
            "roles": Table.of(Roles.COLUMNS, heads, floats=".6g"),
            "shares": Table.of("model task role share always sometimes never", shares, floats=".6g"),
            "ablation": Table.of(Ablation.COLUMNS, curves, floats=".6g"),
            "agreement": Table.of("task model other what value", alike),
            "contrasts": Table.of(Contrast.COLUMNS, contrasts),
            "patching": Table.of("model task rank_correlation k shared by_chance heads", patching),
        }

    def findings(self, *, top: int = 10) -> dict[str, Any]:
        return {
            "run": str(self.run.folder),
            "checks": self.told_checks,
            "roles": [{"model": r.model, "task": r.task, **r.settings, "spread": spread(r)} for r in self.roles],
            "curves": [
                {"model": a.model, "task": a.task, "k": a.k.tolist(), **{role: a.line(role) for role in ROLES}}
                for a in self.ablations
            ],
            "agreement": [{"task": t, "models": [a, b], **measures} for t, a, b, measures in self.agreements],
            "patching": [{"model": m, "task": t, **measures} for m, t, measures in self.comparisons],
            "contrasts": self.contrasts,
            "figures": self.drawn,
        }
