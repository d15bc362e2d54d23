"""Running a task's prompts: how well a model does it, and what is computed for each prompt in batches.

Shape letters: N prompts, B prompts of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from headscope.models.model import Model
from headscope.progress import bar
from headscope.records import Check
from headscope.running.batching import batches, in_parts, same_length
from headscope.running.targets import Targets, asked_of, metrics_of, refuse_unfit, target_logits
from headscope.tasks.metrics import COMPARING, metric_of, name_of
from headscope.tasks.task import Task


@torch.no_grad()
def check(model: Model, task: Task) -> Check:
    """Run the task's clean and corrupt prompts and say how well the model does it, before anyone studies how.

    Args:
        model: what `load` returned.
        task: its prompts; corrupt ones are run where there are some.

    Returns:
        Accuracy, and the mean metric on clean and on corrupt prompts; `usable` says whether the model does the task.
    """
    clean, solved = measures(model, task)
    corrupt = float("nan")
    if task.corrupt_ids:
        run = lambda rows, targets: metrics_of(model, [task.corrupt_rows[i] for i in rows], targets)  # noqa: E731
        corrupt = float(per_prompt(model, task, run, f"{model.name} on {task.name}, corrupt").astype(float).mean())
    metric = "target log-prob" if task.targets and task.metric == "log-prob" else name_of(task.metric)
    found = Check(model.name, task.name, len(task), float(solved.mean()), metric, float(clean.mean()), corrupt)
    return found if found.usable else replace(found, note=_likely_cause(model, task))


def _likely_cause(model: Model, task: Task) -> str:
    """Why a model may not do a task that it should: prompts without the BOS token that it was trained with."""
    bos = model.tokenizer.bos_token_id
    if bos is None or bos == model.tokenizer.eos_token_id or any(row[:1] == [bos] for row in task.clean_ids):
        return ""
    return (
        f"A likely cause: its tokenizer has a BOS token, {model.tokenizer.bos_token}, which the prompts do not begin "
        "with. If the model was trained with it, set add_bos_token in tokenizer_config.json."
    )


@torch.no_grad()
def measures(model: Model, task: Task) -> tuple[np.ndarray, np.ndarray]:
    """The metric of each prompt, and whether the model gets it right: right tokens beat wrong ones, the target is
    likelier than each of its foils, or, where there is neither, it is what the model would say, token by token."""

    def run(rows: Sequence[int], targets: Targets) -> Tensor:
        logits_BPV = target_logits(model, [task.clean_rows[i] for i in rows], targets)
        values = [targets(logits_BPV), targets.solved(logits_BPV), replace(targets, metric="log-prob")(logits_BPV)]
        return torch.stack([value.double() for value in values], dim=1)

    metric, solved, right = per_prompt(model, task, run, f"{model.name} on {task.name}").T
    asked = [(i, foil) for i, foils in enumerate(task.foils) for foil in foils]
    if not asked or metric_of(task.metric) in COMPARING:
        return metric, solved.astype(bool)
    rows = [task.clean_ids[i] + foil[:-1] for i, foil in asked]
    against = np.full(len(task), -np.inf)

    def run_foils(part: Sequence[int]) -> None:
        foils = [[[token] for token in asked[r][1]] for r in part]
        targets = Targets.from_tokens("log-prob", foils, [[[]] for _ in part], model.device)
        values = metrics_of(model, [rows[r] for r in part], targets).double().cpu().numpy()
        np.maximum.at(against, [asked[r][0] for r in part], values)

    for group in same_length(model, "prompts", [len(row) for row in rows]):
        in_parts(model, "prompts", group, run_foils, each=len(rows[group[0]]))
    return metric, np.where(np.isinf(against), solved.astype(bool), right > against)


def per_prompt(
    model: Model, task: Task, run: Callable[[Sequence[int], Targets], Tensor], title: str, *, purpose: str = "prompts",
    corrupt: bool = False,
) -> np.ndarray:  # fmt: skip
    """`run(rows, targets)` on every batch of the task; its results, a row per prompt, in the order of the prompts.

    purpose: whose budget of tokens. corrupt: corrupt prompts are needed.
    """
    out: list[np.ndarray] = []

    def keep(rows: Sequence[int], values: np.ndarray) -> None:
        if not out:
            out.append(np.empty((len(task), *values.shape[1:]), values.dtype))
        out[0][list(rows)] = values

    each_batch(
        model, task, lambda rows, targets: keep(rows, _numpy(run(rows, targets))), title, purpose=purpose,
        corrupt=corrupt,
    )  # fmt: skip
    return out[0]


def each_batch(
    model: Model, task: Task, run: Callable[[Sequence[int], Targets], None], title: str, *, purpose: str = "prompts",
    corrupt: bool = False,
) -> None:  # fmt: skip
    """`run(rows, targets)` on every batch of the task, after a look at whether the model can be asked it."""
    refuse_unfit(model, task, corrupt=corrupt)
    with bar(title, len(task), unit="prompts") as progress:
        for group in batches(model, task, purpose):

            def part(rows: Sequence[int]) -> None:
                run(rows, asked_of(model, task, rows))
                progress.advance(len(rows))

            in_parts(model, purpose, group, part, each=len(task.clean_rows[group[0]]))


def _numpy(value: Tensor) -> np.ndarray:
    return (value if value.dtype == torch.float64 else value.float()).cpu().numpy()
