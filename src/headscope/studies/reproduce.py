"""The five published figures in one go, each by its own study, with the published numbers beside those measured here.

    figure   study          what it shows
    000      heads          explained effect against heads kept, one ranking per task; dense against sparse
    001      heads          the same, a ranking per prompt
    002      edges          explained effect against edges kept
    003      functions      answers with a function's heads masked, against others at random
    004      roles          change of the target's log-probability as heads of each role are ablated
    sparse   sparsity       no figure of its own: how sparse the sparse model of 000 to 002 is

1. Say how long it will take, from one timed pass and what each study asks for.
2. Run the studies into folders of their own; each resumes by itself.
3. Set every published number beside the one that came out, and write `reproduce.json`.

The published numbers are of other models (GPT-2, OLMo-7B, Llama 3), so the two columns are not the same experiment.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from headscope.functions.masking import PAPER_HEADS, default_ks, of_paper
from headscope.methods.gating import preset_of as gate_preset
from headscope.models import Model, load
from headscope.progress import bar
from headscope.records import ROLES, spread
from headscope.records.files import write_json
from headscope.report.outputs.series import Compared, curve_figures
from headscope.runs.lock import held
from headscope.studies.edges import study_edges
from headscope.studies.function_tables import study_functions
from headscope.studies.heads import study_heads
from headscope.studies.roles import study_roles
from headscope.studies.settings import (
    EdgeSettings,
    FunctionSettings,
    HeadSettings,
    ReproduceSettings,
    RoleSettings,
    SparsitySettings,
)
from headscope.studies.sparsity import study_sparsity
from headscope.tasks import make_task

TASKS = ("greater-than", "ioi", "docstring", "ioi-long")
ROLE_TASKS = ("syntax", "common-sense", "math")

TITLES = {
    "000": "Explained effect against heads kept, one ranking per task",
    "001": "Explained effect against heads kept, a ranking per prompt",
    "002": "Explained effect against edges kept",
    "003": "Answers with a function's heads masked, against random heads",
    "004": "What taking heads of each role away does to the target",
    "sparse": "The sparse model behind 000 to 002: open attention edges, and what they cost",
}

# Multipliers by task, in the order of TASKS; shares of heads by role; accuracies at 16 and 128 masked heads.
MULTIPLIERS = {"000": (4.5, 2.2, 2.2, 1.4), "001": (0.6, 2.0, 1.3, 1.6), "002": (97.0, 42.8, 8.6, 5.4)}
SHARES = {"syntax": (25.6, 63.0), "common-sense": (27.4, 64.6), "math": (52.6, 39.0)}
RETRIEVAL = {16: ("0.95", "0.95"), 128: ("near 0", "above 0.75")}


# What each figure shows in its paper, in a sentence.
CLAIMS = {
    "000": "To explain 0.9 of the effect dense models need 4.5, 2.2, 2.2 and 1.4 times the heads of sparse ones.",
    "001": "With a ranking for each prompt the dense models need 0.6, 2.0, 1.3 and 1.6 times as many heads.",
    "002": "The dense models need 97.0, 42.8, 8.6 and 5.4 times as many edges as the sparse ones.",
    "003": "Masking the 128 best heads of Retrieval takes its accuracy to near 0; 128 at random leave above 0.75.",
    "004": "The target gets less likely as facilitating heads go, likelier as interfering ones go.",
    "sparse": "About 0.3 % of the attention edges stay open at the dense model's loss.",
}


@dataclass(frozen=True)
class Preset:
    """What each study is asked for, besides models and tasks."""

    heads: dict[str, Any]
    edges: dict[str, Any]
    functions: dict[str, Any]
    roles: dict[str, Any]
    sequences: int


PRESETS = {
    "quick": Preset(
        heads={"methods": ["attribution"], "n": 8, "draws": 0, "points": 14},
        edges={"methods": ["eap"], "n": 4, "points": 9, "draws": 0},
        functions={
            "rankings": ["attribution"], "draws": 2, "n": 8, "train": 8, "ablated": 4, "shots": 2, "alphas": [],
            "max_new_tokens": 6, "ks": [1, 4, 34],
        },
        roles={"seeds": 1, "preset": "quick", "n": 32, "held_out": 8, "compare": 0},
        sequences=16,
    ),
    "full": Preset(
        heads={"methods": ["patching"], "n": 50, "draws": 3},
        edges={"methods": ["eap-ig"], "n": 30, "draws": 0},
        functions={},
        roles={"seeds": 3, "preset": "cpu", "n": 64, "held_out": 24, "compare": 8},
        sequences=128,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Figure:
    """One published figure as it came out here: the run folder and its picture, both relative to the whole's folder."""

    id: str
    title: str
    run: str
    image: str
    claim: str = ""
    measured: str = ""  # in a sentence


@dataclass(frozen=True)
class Number:
    """A published number beside the one measured here."""

    figure: str
    what: str
    published: str
    measured: str
    setting: str


@dataclass(frozen=True)
class Reproduction:
    folder: Path
    figures: list[Figure]
    numbers: list[Number]
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        return {
            "figures": [asdict(figure) for figure in self.figures],
            "numbers": [asdict(number) for number in self.numbers],
            "seconds": round(self.seconds, 1),
        }


def chosen_figures(settings: ReproduceSettings) -> list[str]:
    """The figures asked for; all if none is named."""
    return [name for name in TITLES if not settings.only or name in settings.only]


def reproduce(
    settings: ReproduceSettings, *, out: Path, how: Preset | None = None,
    say: Callable[[str], None] = lambda text: None, grown: Callable[[Reproduction], None] = lambda whole: None,
) -> Reproduction:  # fmt: skip
    """Run the studies behind the figures, or go on with them, in folders below `out`.

    how: what to ask of each study, if not what the preset of that name does. say: called with a line before each study.
    grown: called after each study with what there is by then, which `reproduce.json` holds.
    """
    began, wanted = time.monotonic(), chosen_figures(settings)
    parts = _Parts(settings, out, how or PRESETS[settings.preset])
    about = {
        "command": "reproduce",
        "preset": settings.preset if how is None else "own",
        "models": list(settings.models),
    }
    asked = {name: [figure for figure in wanted if figure in ids] for name, ids in STUDIES.items()}
    whole = Reproduction(out, [], [], 0.0)
    with held(out), bar("Studies", sum(map(bool, asked.values())), unit="done") as shown:
        for name, ids in asked.items():
            if not ids:
                continue
            say(f"{name}: figure{'s' * (len(ids) > 1)} {', '.join(ids)}")
            made, found = getattr(parts, name)(ids)
            figures = [replace(one, claim=CLAIMS[one.id], measured=_sentence(one.id, found)) for one in made]
            seconds = time.monotonic() - began
            whole = Reproduction(out, [*whole.figures, *figures], [*whole.numbers, *found], seconds)
            write_json(out / "reproduce.json", {**about, **whole.as_dict()})
            shown.advance()
            grown(whole)
    return whole


def _sentence(id: str, numbers: Sequence[Number]) -> str:
    """The measured numbers of a figure, as they stand in the table."""
    mine = [
        f"{number.what} {number.measured} (published {number.published})" for number in numbers if number.figure == id
    ]
    return "; ".join(mine) + "." if mine else ""


STUDIES = {
    "heads": ("000", "001"), "edges": ("002",), "functions": ("003",), "roles": ("004",), "sparsity": ("sparse",)
}  # fmt: skip


@dataclass(frozen=True)
class _Parts:
    """One method per study: which figures it gave, and its rows of the table."""

    settings: ReproduceSettings
    out: Path
    how: Preset

    @property
    def models(self) -> tuple[str, ...]:
        return self.settings.models

    @property
    def common(self) -> dict[str, Any]:
        return {"formats": self.settings.formats, **self.settings.loading}

    def figure(self, id: str, run: str, image: str) -> Figure:
        return Figure(id, TITLES[id], run, f"{run}/{image}.png")

    def heads(self, asked: list[str]) -> tuple[list[Figure], list[Number]]:
        rankings = {"000": "task", "001": "prompt"}
        run = "heads" if len(asked) > 1 else f"heads-{asked[0]}"
        how = {"rankings": [rankings[id] for id in asked], **self.how.heads, **self.common}
        study = study_heads(HeadSettings(models=self.models, tasks=TASKS, **how), out=self.out / run)
        figures, numbers = [], []
        image_of = {c.settings["ranking"]: name for name, part in curve_figures(study.curves).items() for c in part}
        for id in asked:
            figures.append(self.figure(id, run, image_of[rankings[id]]))
            of = [compared for compared in study.compared if compared.ranking == rankings[id]]
            numbers += self._ratios(id, of, "heads, dense / sparse", study.curves[0].settings["n"])
        return figures, numbers

    def edges(self, asked: list[str]) -> tuple[list[Figure], list[Number]]:
        settings = EdgeSettings(models=self.models, tasks=TASKS, **self.how.edges, **self.common)
        study = study_edges(settings, out=self.out / "edges")
        numbers = self._ratios("002", study.compared, "edges, dense / sparse", study.curves[0].settings["n"])
        return [self.figure("002", "edges", "curves")], numbers

    def _ratios(self, id: str, rows: list[Compared], what: str, n: int) -> list[Number]:
        """Multipliers of the second model, where there is one."""
        if len(self.models) < 2:
            return []
        published: dict[str, float] = dict(zip(TASKS, MULTIPLIERS[id], strict=True))
        numbers = []
        for c in rows:
            setting = f"{c.against}; {n} prompts"
            numbers.append(Number(id, f"{c.task}: {what}", f"{published[c.task]:g}x", str(c.found), setting))
        return numbers

    def functions(self, asked: list[str]) -> tuple[list[Figure], list[Number]]:
        settings = FunctionSettings(
            model=self.models[0], comet=self.settings.comet, **self.how.functions, **self.common
        )
        study = study_functions(settings, out=self.out / "functions")
        ranking, numbers = settings.rankings[-1], []
        heads = study.scores[ranking][0].values.size
        same_share = {of_paper(k, heads): k for k in RETRIEVAL}
        for row in study.scored["sweep"]:
            if row["function"] == "retrieval" and row["ranking"] == ranking and row["k"] in same_share:
                k = same_share[row["k"]]
                for which, published in zip(("top", "random"), RETRIEVAL[k], strict=True):
                    share = f"{k / PAPER_HEADS:.1%} of heads ({row['k']})"
                    what = f"retrieval: accuracy, {which.capitalize()}K, {share} masked"
                    setting = f"{self.models[0]}, {ranking}; {settings.n} questions"
                    numbers.append(Number("003", what, published, f"{row[f'{which}_accuracy']:.2f}", setting))
        return [self.figure("003", "functions", f"functions-{ranking}")], numbers

    def roles(self, asked: list[str]) -> tuple[list[Figure], list[Number]]:
        settings = RoleSettings(models=self.models[:1], tasks=ROLE_TASKS, **self.how.roles, **self.common)
        study = study_roles(settings, out=self.out / "roles")
        numbers = []
        for roles in study.roles:
            shares = spread(roles)
            for role, published in zip(ROLES, SHARES[roles.task], strict=False):
                setting = f"{roles.model}, preset {roles.settings['preset']}, {len(roles.g_plus)} seeds"
                what = f"{roles.task}: share of heads, {role}"
                numbers.append(Number("004", what, f"{published:g} %", f"{100 * shares[role]['share']:.1f} %", setting))
        return [self.figure("004", "roles", "ablation")], numbers

    def sparsity(self, asked: list[str]) -> tuple[list[Figure], list[Number]]:
        if len(self.models) < 2:
            return [], []
        dense, sparse, *_ = self.models
        how = {"sequences": self.how.sequences, "n": self.how.heads["n"], **self.common}
        settings = SparsitySettings(dense=dense, sparse=sparse, tasks=TASKS, **how)
        report = study_sparsity(settings, out=self.out / "sparsity").report
        lost = "{mean:+.3f} [{low:+.3f}, {high:+.3f}]".format(**report["ce above dense"])
        setting = f"{report['sparse']}, {self.how.sequences} sequences of 64 tokens"
        numbers = [
            Number("sparse", "attention edges open", "0.3 %", f"{100 * report['connectivity']:.2f} %", setting),
            Number("sparse", "cross-entropy above the dense model's", "about 0", lost, setting),
        ]
        return [self.figure("sparse", "sparsity", "attention")], numbers


def estimate(settings: ReproduceSettings, how: Preset | None = None) -> float:
    """About how many seconds the studies will take: tokens to run, times one timed forward pass of the first model.

    What a study costs in passes over its prompts is known from the benchmarks, not measured anew; heads and edges of
    all models, functions and roles of the first one.
    """
    how, wanted = how or PRESETS[settings.preset], chosen_figures(settings)
    model = load(settings.models[0], **settings.loading)
    total = 0.0
    heads, count = model.n_layers * model.n_heads, len(settings.models)
    rankings = len({"000", "001"} & set(wanted))
    if rankings:
        scoring = 0.3 * heads if "patching" in how.heads["methods"] else 3
        sweeps = (rankings * how.heads.get("points", 60) + 13 * how.heads["draws"]) * 0.8
        total += count * _tokens(model, TASKS) * how.heads["n"] * (scoring + sweeps)
    if "002" in wanted:
        scoring = 14 if "eap-ig" in how.edges["methods"] else 4
        total += count * _tokens(model, TASKS) * how.edges["n"] * (scoring + 10 * how.edges.get("points", 31))
    if "003" in wanted:
        s = FunctionSettings(model=model.name, **how.functions)
        ks = s.ks or default_ks(heads)
        variants = len(s.rankings) * (len(ks) * (1 + s.draws) + 4) + len(s.alphas)
        total += 4 * (s.n * variants * 50 + s.train * 100 + s.ablated * 500 * len(s.rankings))
    if "004" in wanted:
        r = how.roles
        gates = gate_preset(r["preset"])
        updates = gates.free.updates + 2 * gates.pressed.updates
        passes = r["seeds"] * (2.5 * min(gates.batch, r["n"]) * updates + 3 * 20 * r["held_out"]) + r["compare"] * heads
        total += _tokens(model, ROLE_TASKS) * passes
    return total * _seconds_per_token(model)


def _tokens(model: Model, tasks: Sequence[str]) -> float:
    """Tokens of one prompt (and target) of each task together."""
    total = 0.0
    for name in tasks:
        task = make_task(name, model.tokenizer, n=4, seed=0)
        total += sum(map(len, task.clean_ids)) / len(task)
    return total


@torch.no_grad()
def _seconds_per_token(model: Model) -> float:
    ids_BT = torch.randint(0, model.hf.config.vocab_size, (16, 32), device=model.device)
    times = []
    for _ in range(3):
        began = time.perf_counter()
        model.hf(input_ids=ids_BT, use_cache=False, logits_to_keep=1)
        times.append(time.perf_counter() - began)
    return min(times) / ids_BT.numel()
