"""The training loop that makes attention sparse.

1. Copy the model; give the copy gates, and LoRA adapters unless all weights are to be trained.
2. Take the text (`text.sequences`); the first sequences are held out.
3. Each step: the dense model's logits where they are needed, the sparse model's with trained gates, the loss of
   `objective.py`, one AdamW step, one GECO step. Which sequences and which noise a step uses follows from the seed and
   the step's number alone, so a run that was killed goes on to the same numbers from its last checkpoint.
4. Every so often: held-out connectivity, cross-entropy and divergence under hard gates; a checkpoint, and an adapter
   where connectivity has passed a milestone.
5. At the end: a Hugging Face folder that says it is gated, and the adapter beside it.

Runs on one process or, under `accelerate launch`, on several, which share each batch.

Shape letters: B batch, T positions, P those whose logits are compared, V vocabulary, N sequences.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headscope import stopping
from headscope.errors import InputError, SetupError
from headscope.models import Model
from headscope.models.adapters import start_from
from headscope.models.sparse_gate import CONFIG_KEY, OFFSETS, Gates, deciding
from headscope.progress import Bar, bar
from headscope.running.layer_modules import narrowed
from headscope.sparse.checkpoint import Checkpoint, open_checkpoint
from headscope.sparse.objective import FLOOR, Geco, cross_entropy, divergence, edges_per_query, mean_fraction, penalty
from headscope.sparse.offsets import add_offsets
from headscope.sparse.saving import save_milestone, save_sparse
from headscope.sparse.settings import Settings
from headscope.sparse.text import sequences

# Evaluations in a row without any penalty left and the constraint still broken, after which a run says so and stops.
PATIENCE = 3


def sparsify(model: Model, *, out: str | Path, settings: Settings | None = None, **options: Any) -> list[dict]:
    """Make a sparse-attention model of a dense one. A run that was stopped goes on from its last checkpoint.

    Args:
        model: the dense model.
        out: the folder to write, from which `load` takes the sparse one.
        settings: a record of settings, or
        options: its fields: text="self", steps=1000, ...

    Returns:
        The history: a row per evaluation.
    """
    settings = settings or Settings(**options)
    with sparsified(model, Path(out), replace(settings, model=settings.model or model.name)) as checkpoint:
        return checkpoint.history


@contextmanager
def sparsified(model: Model, out: Path, settings: Settings) -> Iterator[Checkpoint]:
    """The same for a block that does more in the folder, which stays held meanwhile."""
    _refuse(model)
    with open_checkpoint(out, model, settings) as checkpoint:
        if not checkpoint.finished:
            _train(model, settings, checkpoint)
        yield checkpoint


def _train(model: Model, settings: Settings, checkpoint: Checkpoint) -> None:
    text_NT = sequences(
        model, settings.text, count=settings.sequences + settings.held_out, length=settings.length, seed=settings.seed,
        top_p=settings.top_p,
    )  # fmt: skip
    trainer = Trainer(model, settings, text_NT, checkpoint)
    trainer.run()
    if trainer.accelerator.is_main_process:
        with trainer.averaged():
            save_sparse(trainer.student, model, checkpoint)
    trainer.accelerator.wait_for_everyone()


def _refuse(model: Model) -> None:
    config = model.hf.config
    if getattr(config, CONFIG_KEY, None) is not None:
        raise InputError(f"{model.name} is sparse already. Give the dense model it was made from.")
    if model.reach.way != "interface":
        raise InputError(
            f"{config.model_type} cannot be made sparse: its attention does not go through transformers' "
            "AttentionInterface, and a gate needs the attention logits."
        )
    odd = [name for name in ("attn_logit_softcapping",) if getattr(config, name, None)]
    if odd or config.model_type == "gpt_oss":
        raise InputError(
            f"{config.model_type} cannot be made sparse yet: its attention has {odd[0] if odd else 'sinks'}, "
            "for which gates have no training step."
        )


class Trainer:
    """One run: the two models, the optimiser, GECO, and where it stands."""

    def __init__(self, model: Model, settings: Settings, text_NT: Tensor, checkpoint: Checkpoint):
        from accelerate import Accelerator

        self.model, self.settings, self.checkpoint = model, settings, checkpoint
        on_gpu = model.device.type == "cuda"
        mixed = "bf16" if on_gpu and torch.cuda.is_bf16_supported() else "no"
        self.accelerator = Accelerator(cpu=model.device.type == "cpu", mixed_precision=mixed)
        share = settings.accumulate * self.accelerator.num_processes
        if settings.batch % share:
            raise InputError(f"--batch {settings.batch} cannot be shared equally by {share} parts and processes.")
        self.held_NT, self.train_NT = text_NT[: settings.held_out], text_NT[settings.held_out :]
        self.dense = model.hf
        self.seen_V = text_NT.unique() if settings.vocabulary == "seen" else None
        self.student = student_of(model, settings)
        named = {name: p for name, p in self.student.named_parameters() if p.requires_grad}
        offsets = [p for name, p in named.items() if name.endswith(OFFSETS)]
        others = [p for name, p in named.items() if not name.endswith(OFFSETS)]
        groups: list[dict[str, Any]] = [{"params": others, "times": 1.0}]
        groups += [{"params": offsets, "times": settings.offset_lr}] if offsets else []
        optimizer = torch.optim.AdamW(groups, lr=settings.lr, betas=(0.9, 0.98), weight_decay=0.0)
        self.geco = Geco(settings.penalty_weight, settings.rate)
        self.step, self.dense_ce = 0, None
        self.means = {name: p.detach().clone() for name, p in named.items()} if settings.average else {}
        if checkpoint.exists():
            self.step, self.geco = checkpoint.restore(named, self.means, optimizer, self.geco)
        self.named = named
        self.wrapped, self.optimizer = self.accelerator.prepare(self.student, optimizer)

    def run(self) -> None:
        with bar("Sparsifying", self.settings.steps) as progress, stopping.unit():
            progress.reach(self.step)
            if not self.checkpoint.history:
                self._note(self.evaluate())
            while self.step < self.settings.steps:
                self._go_on(progress)

    def _go_on(self, progress: Bar) -> None:
        """One step, and what follows it: an evaluation where it is time for one, and a checkpoint there or where it is
        asked to stop. (Of several processes, all hear of that in the step.)"""
        settings, (loss, stop) = self.settings, self.train_step()
        if not math.isfinite(loss):
            raise SetupError(
                f"The loss or its gradient became {loss} at step {self.step + 1}. The checkpoint of step "
                f"{self.checkpoint.step} is kept in {self.checkpoint.folder}; try a lower --lr."
            )
        self.step += 1
        progress.reach(self.step)
        if self.step % settings.every == 0 or self.step == settings.steps:
            self._note(self.evaluate())
            self._stop_if_hopeless()
        elif stop:
            self._keep()
        if stop:
            stopping.stop_if_asked(others=True)

    def _stop_if_hopeless(self) -> None:
        rows, name = self.checkpoint.history[-PATIENCE:], self.settings.constraint
        if len(rows) == PATIENCE and all(row[name] > row["target"] and row["penalty_weight"] <= FLOOR for row in rows):
            raise SetupError(
                f"The constraint cannot be met: {name} is {rows[-1][name]:.3f} with no penalty left, its target "
                f"{rows[-1]['target']:.3f}.\nThe last checkpoint is kept; raise --margin or --bias, or lower --lr or "
                "--noise, in another --out."
            )

    def train_step(self) -> tuple[float, bool]:
        """One step of the optimiser and of GECO; the loss, and whether some process is asked to stop. What is not
        finite, of the loss or its gradient's norm, is given back before anything has moved."""
        settings, accelerator = self.settings, self.accelerator
        for group in self.optimizer.param_groups:
            group["lr"] = settings.lr_at(self.step) * group["times"]
        self.optimizer.zero_grad()
        parts = list(self._batch())
        total = torch.zeros(3, device=accelerator.device)
        total[2] = float(stopping.asked())
        for number, ids_BT in enumerate(parts):
            last = number == len(parts) - 1
            with nullcontext() if last else accelerator.no_sync(self.wrapped):
                loss, constraint = self._loss(ids_BT, number)
                accelerator.backward(loss / len(parts))
            total[:2] += torch.stack([loss.detach(), constraint.detach()]) / len(parts)
        mean: Any = accelerator.reduce(total, reduction="mean")
        loss, constraint, stop = mean.tolist()
        if math.isfinite(loss):
            norm: Any = accelerator.clip_grad_norm_(self.named.values(), settings.clip)
            if not math.isfinite(float(norm)):
                return float(norm), bool(stop)
            self.optimizer.step()
            self._average()
            self.geco = self.geco.after(constraint, target=self.target, margin=settings.margin_at(self.step))
        return loss, bool(stop)

    def _loss(self, ids_BT: Tensor, number: int) -> tuple[Tensor, Tensor]:
        settings = self.settings
        rank = self.accelerator.process_index
        seed = ((settings.seed * 10**6 + self.step) * 64 + number) * 64 + rank
        gates = Gates("trained", settings.noise_at(self.step), settings.temperature_at(self.step), seed)
        places_P = self._places(ids_BT)
        with deciding(gates), self._unembedding(self.student):
            logits_BPV = self.wrapped(input_ids=ids_BT, use_cache=False, logits_to_keep=places_P).logits
        ce = kl = None
        if settings.constraint == "kl" or settings.distill:
            kl = divergence(self._dense_logits(ids_BT, places_P), logits_BPV)
        if settings.constraint == "ce":
            ce = cross_entropy(logits_BPV, ids_BT, places_P)
        constraint: Any = kl if settings.constraint == "kl" else ce
        loss = constraint + self.geco.weight * penalty(gates.expected, settings.penalty, ids_BT.shape[1])
        if settings.distill and kl is not None:
            loss = loss + settings.distill * kl
        return loss, constraint

    @torch.no_grad()
    def _average(self) -> None:
        """Move the means towards the weights: the mean of all steps at first, then of about the last ones."""
        share = 1 / min(self.step + 1, self.settings.average) if self.means else 0.0
        for name, mean in self.means.items():
            mean.lerp_(self.named[name], share)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Inside the block the model has the averaged weights, if any are kept."""
        kept = {name: self.named[name].data for name in self.means}
        for name, mean in self.means.items():
            self.named[name].data = mean
        try:
            yield
        finally:
            for name, weight in kept.items():
                self.named[name].data = weight

    def _places(self, ids_BT: Tensor) -> Tensor:
        """The positions at which this step looks at the logits. Every position reads all earlier ones, so a part of
        them tells of all edges, and an unembedding as wide as a vocabulary costs as much as several layers."""
        count = ids_BT.shape[1] - 1
        draw = torch.Generator().manual_seed(self.settings.seed * 10**6 + self.step)
        some = torch.randperm(count, generator=draw)[: max(1, round(self.settings.positions * count))]
        return some.sort().values.to(ids_BT.device)

    def _unembedding(self, model: Any) -> AbstractContextManager[None]:
        """Whole, or for the tokens that the text has: a small model's text has a few thousand of a wide vocabulary."""
        head = model.get_output_embeddings()
        if self.seen_V is None or type(head) is not nn.Linear:
            return nullcontext()
        return narrowed(head, self.seen_V.to(head.weight.device))

    @torch.no_grad()
    def _dense_logits(self, ids_BT: Tensor, places_P: Tensor) -> Tensor:
        with self.accelerator.autocast(), self._unembedding(self.dense):
            return self.dense(input_ids=ids_BT, use_cache=False, logits_to_keep=places_P).logits

    def _batch(self) -> Iterator[Tensor]:
        """This process's share of the step's sequences, in parts to accumulate: an epoch is an order of them all."""
        settings, size = self.settings, self.settings.batch
        first = self.step * size
        rows = [self._sequence(at) for at in range(first, first + size)]
        mine = rows[self.accelerator.process_index :: self.accelerator.num_processes]
        ids_BT = torch.stack(mine).to(self.accelerator.device)
        yield from ids_BT.chunk(settings.accumulate)

    def _sequence(self, at: int) -> Tensor:
        epoch, place = divmod(at, len(self.train_NT))
        if getattr(self, "_order", (None,))[0] != epoch:
            draw = torch.Generator().manual_seed(self.settings.seed * 1000003 + epoch)
            self._order = (epoch, torch.randperm(len(self.train_NT), generator=draw))
        return self.train_NT[self._order[1][place]]

    @property
    def target(self) -> float:
        margin = self.settings.margin_at(self.step)
        if self.settings.constraint == "kl":
            return margin
        if self.dense_ce is None:
            self.dense_ce = measured(self.dense, None, self.held_NT, self.settings.batch)["ce"]
        return self.dense_ce + margin

    def evaluate(self) -> dict[str, float]:
        with self.averaged():
            row = measured(self.student, self.dense, self.held_NT, self.settings.batch)
        # The training's own moving average: far below the held-out one, it is overfitting.
        train = row[self.settings.constraint] if self.geco.average is None else self.geco.average
        return {"step": self.step, **row, "train": train, "target": self.target, "penalty_weight": self.geco.weight}

    def _note(self, row: dict[str, float]) -> None:
        self.checkpoint.history.append(row)
        if self.accelerator.is_main_process:
            # Before the checkpoint: a run that is killed in between comes here again.
            with self.averaged():
                save_milestone(self.student, self.model, self.checkpoint, row)
        self._keep()

    def _keep(self) -> None:
        if self.accelerator.is_main_process:
            self.checkpoint.save(self.step, self.named, self.means, self.optimizer, self.geco)
        self.accelerator.wait_for_everyone()


def student_of(model: Model, settings: Settings) -> Any:
    """A copy of the model with gates. With LoRA the copy shares the frozen weights of the original."""
    shared = {id(p): p for p in model.hf.parameters()} if settings.lora_rank else {}
    hf: Any = copy.deepcopy(model.hf, dict(shared))
    setattr(hf.config, CONFIG_KEY, {"bias": settings.bias})
    if settings.checkpointing:
        # transformers checkpoints in training mode only; dropout, which is no part of this training, stays off.
        hf.gradient_checkpointing_enable({"use_reentrant": False})
        hf.train()
        for module in hf.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
    if not settings.lora_rank:
        if settings.offset_lr:
            add_offsets(hf, model, None)
        return hf.requires_grad_(True)
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(settings.seed)
    rank = settings.lora_rank
    student = get_peft_model(hf, LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear"))
    start = start_from(student, settings.start, model) if settings.start else None
    if settings.offset_lr or start is not None:
        add_offsets(student, model, start)
    return student


@torch.no_grad()
def measured(
    sparse: Any, dense: Any, ids_NT: Tensor, batch: int, gates: Callable[[], Gates] = Gates
) -> dict[str, float]:
    """Connectivity, cross-entropy and (given the dense model) divergence on some sequences, gates hard unless given."""
    sums: dict[str, float] = {}
    device = next(sparse.parameters()).device
    for part in ids_NT.split(batch):
        ids_BT = part.to(device)
        with deciding(gates()) as decided:
            logits_BTV = sparse(input_ids=ids_BT, use_cache=False).logits
        values = {"ce": cross_entropy(logits_BTV, ids_BT).item()}
        if decided.opened:
            values["connectivity"] = mean_fraction(decided.opened).item()
            values["edges_per_query"] = edges_per_query(values["connectivity"], ids_BT.shape[1])
        if dense is not None:
            dense_BTV = dense(input_ids=ids_BT, use_cache=False).logits
            values |= {
                "kl": divergence(dense_BTV, logits_BTV).item(),
                "dense_ce": cross_entropy(dense_BTV, ids_BT).item(),
            }
        for name, value in values.items():
            sums[name] = sums.get(name, 0.0) + value * len(part) / len(ids_NT)
    return sums
