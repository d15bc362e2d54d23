"""Greedy generation under many masks at once.

Every prompt is answered under every mask: the rows of a batch are pairs of a mask and a prompt. What costs time is paid
for once:

1. the prefix that all prompts share (few-shot examples) runs once per mask, and its keys and values go to all of that
   mask's rows; where masks act on decode steps only, once for all masks, and so do the prompts;
2. prompts of about one length go through together, padded on the left, between prefix and prompt, so that all rows
   generate in step; without padding where a sliding window would count it;
3. rows that have ended leave the batch, with their part of the cache.

Shape letters: C masks, N prompts, R rows, P prefix positions, T positions, S all positions, L layers, H heads,
K head width, V vocabulary.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from headscope.errors import InputError
from headscope.functions.kv_cache import PreallocatedCache
from headscope.models.model import Model
from headscope.models.weights import refuse_overflow
from headscope.progress import Bar
from headscope.running.batching import budget, in_parts
from headscope.running.interventions import patched, shifted


@dataclass(frozen=True)
class Answer:
    """What a model said: the text up to a stop string, the tokens it consists of, and each one's surprisal in nats."""

    text: str
    ids: list[int]
    surprisal: list[float] = field(default_factory=list)
    cut: bool = False  # at the token limit, before it had ended


@dataclass(frozen=True)
class Interventions:
    """What acts on the heads while generating, a row per variant: gates (C, L, H), and what is added to z, per layer
    (C, H, K). None: nothing."""

    masks_CLH: Tensor | None = None
    shifts: Sequence[Tensor] | None = None
    steps: Literal["all", "decode"] = "all"

    def __len__(self) -> int:
        if self.masks_CLH is not None:
            return len(self.masks_CLH)
        return len(self.shifts[0]) if self.shifts is not None else 1

    @contextmanager
    def act(self, model: Model, variants: Tensor) -> Iterator[None]:
        """Let them act in the block, `variants[r]` being the variant of row r."""
        with ExitStack() as stack:
            if self.masks_CLH is not None:
                stack.enter_context(patched(model, self.masks_CLH[variants]))
            if self.shifts is not None:
                stack.enter_context(shifted(model, [shift[variants] for shift in self.shifts]))
            yield


@torch.no_grad()
def generate(
    model: Model, prompts: Sequence[list[int]], *, prefix: list[int] | None = None,
    acting: Interventions | None = None, max_new_tokens: int = 128, stop: Sequence[str] = ("\n",),
    rows: int | None = None, progress: Bar | None = None,
) -> list[list[Answer]]:  # fmt: skip
    """Answers of every prompt under every variant of `acting`, [variant][prompt].

    prefix: tokens in front of all prompts. steps: "all" lets variants act everywhere, "decode" only on passes that go
    on from the prompt. stop: an answer ends before the first of these texts, or at an end token.
    """
    acting = acting or Interventions()
    if acting.steps not in ("all", "decode"):
        raise InputError(f"Unknown steps {acting.steps!r}. Known: all, decode.")
    if not prompts or min(map(len, prompts)) == 0:
        raise InputError("Nothing to generate from: expected prompts of at least one token each.")
    _fits(model, len(prefix or []) + max(map(len, prompts)) + max_new_tokens)
    writer = _Writer(model, acting, prefix or [], max_new_tokens, tuple(stop))
    answered: dict[tuple[int, int], Answer] = {}
    rows = rows or budget(model, "generation")
    groups = _groups(model, prompts, rows)
    together = max(1, rows // max(map(len, groups)))

    def answer(variants: Sequence[int]) -> None:
        begun = writer.begin(variants)

        def one_group(group: Sequence[int]) -> None:
            pairs = [(c, i) for c in variants for i in group]
            answers = writer.answer(begun, variants, [prompts[i] for i in group])
            # (Counted once, also where variants that did not fit are run again.)
            new = sum(pair not in answered for pair in pairs)
            answered.update(zip(pairs, answers, strict=True))
            if progress is not None:
                progress.advance(new)

        for group in groups:
            in_parts(model, "generation", group, one_group, each=len(variants), whole=len(group))

    for first in range(0, len(acting), together):
        in_parts(model, "generation", range(first, min(first + together, len(acting))), answer, each=1, whole=together)
    return [[answered[c, i] for i in range(len(prompts))] for c in range(len(acting))]


def _groups(model: Model, prompts: Sequence[list[int]], rows: int) -> list[list[int]]:
    """Prompts that go through together: of about one length, as padding costs as much as words; of exactly one where
    the model has a sliding window."""
    windowed = getattr(model.hf.config.get_text_config(), "sliding_window", None) is not None
    groups: list[list[int]] = []
    for i in sorted(range(len(prompts)), key=lambda i: len(prompts[i])):
        shortest = len(prompts[groups[-1][0]]) if groups else 0
        slack = 0 if windowed else max(1, shortest // 8)
        if not groups or len(groups[-1]) == rows or len(prompts[i]) > shortest + slack:
            groups.append([])
        groups[-1].append(i)
    return groups


def _fits(model: Model, length: int) -> None:
    limit = getattr(model.hf.config.get_text_config(), "max_position_embeddings", None)
    if limit and length > limit:
        raise InputError(
            f"Prompts and answers take {length} tokens; {model.name} takes at most {limit}.\n"
            "Take a model with more room; `headscope functions` has --shots and --max-new-tokens to need less."
        )


@dataclass
class _Writer:
    """Generates for one model and one choice of what acts."""

    model: Model
    acting: Interventions
    prefix: list[int]
    max_new_tokens: int
    stop: tuple[str, ...]

    def __post_init__(self) -> None:
        hf = self.model.hf
        ends: Any = getattr(hf.generation_config, "eos_token_id", None)
        ends = [*(ends if isinstance(ends, list) else [ends]), self.model.tokenizer.eos_token_id]
        self.ends: set[int] = {end for end in ends if end is not None}
        self.places = "position_ids" in inspect.signature(hf.forward).parameters

    def begin(self, variants: Sequence[int]) -> PreallocatedCache:
        """The cache of the prefix: a row per variant, or one row where the prompt is left alone."""
        cache = PreallocatedCache(self.model.n_layers, self.max_new_tokens)
        if not self.prefix:
            return cache
        several = torch.tensor(variants) if self.acting.steps == "all" else torch.tensor([0])
        ids_CP = torch.tensor([self.prefix], device=self.model.device).expand(len(several), -1)
        with self._acting(several, decoding=False):
            self.model.hf(input_ids=ids_CP, past_key_values=cache, use_cache=True, logits_to_keep=1)
        return cache

    def answer(self, begun: PreallocatedCache, variants: Sequence[int], prompts: list[list[int]]) -> list[Answer]:
        """The answers of some prompts under some variants, in that order (all prompts of a variant together)."""
        C, N, P = len(variants), len(prompts), len(self.prefix)
        apart = self.acting.steps == "all"
        variant_R = torch.tensor(variants).repeat_interleave(N)
        longest = max(map(len, prompts))
        padded = [[0] * (longest - len(ids)) + ids for ids in prompts] * (C if apart else 1)
        seen = [[1] * P + [0] * (longest - len(ids)) + [1] * len(ids) for ids in prompts] * (C if apart else 1)
        ids_RT, seen_RS = (torch.tensor(rows, device=self.model.device) for rows in (padded, seen))
        from_R = torch.arange(C).repeat_interleave(N) if apart else torch.zeros(N, dtype=torch.long)
        cache = begun.rows(from_R.to(self.model.device))
        with self._acting(variant_R, decoding=False):
            logits_RV = self._pass(ids_RT, seen_RS, cache)
        if not apart:
            # So far all variants are the same: a row per prompt becomes a row per pair.
            again = torch.arange(N, device=self.model.device).repeat(C)
            cache.batch_select_indices(again)
            logits_RV, seen_RS = logits_RV[again], seen_RS[again]
        return self._decode(logits_RV, seen_RS, cache, variant_R)

    def _decode(self, logits_RV: Tensor, seen_RS: Tensor, cache: PreallocatedCache, variant_R: Tensor) -> list[Answer]:
        ids: list[list[int]] = [[] for _ in variant_R]
        surprisal: list[list[float]] = [[] for _ in variant_R]
        texts = [""] * len(ids)
        rows, alive = list(range(len(ids))), [True] * len(ids)
        for step in range(self.max_new_tokens):
            next_R, cost_R = _greedy(logits_RV)
            for row, token, cost in zip(rows, next_R.tolist(), cost_R.tolist(), strict=True):
                if alive[row]:
                    alive[row] = self._take(row, token, cost, ids, surprisal, texts)
            if step + 1 == self.max_new_tokens or not any(alive):
                break
            kept = [place for place, row in enumerate(rows) if alive[row]]
            # Leaving copies the cache, so they leave in company.
            if len(kept) <= 0.75 * len(rows):
                chosen = torch.tensor(kept, device=self.model.device)
                cache.batch_select_indices(chosen)
                next_R, seen_RS, variant_R = next_R[chosen], seen_RS[chosen], variant_R[chosen.cpu()]
                rows = [rows[place] for place in kept]
            seen_RS = torch.cat([seen_RS, seen_RS.new_ones(len(seen_RS), 1)], dim=1)
            with self._acting(variant_R, decoding=True):
                logits_RV = self._pass(next_R[:, None], seen_RS, cache)
        return [Answer(*parts) for parts in zip(texts, ids, surprisal, alive, strict=True)]

    def _take(self, row: int, token: int, cost: float, ids: list, surprisal: list, texts: list[str]) -> bool:
        """Add a token to a row's answer; False when it ends the answer."""
        if token in self.ends:
            return False
        text = str(self.model.tokenizer.decode([*ids[row], token]))
        cuts = [text.find(stop) for stop in self.stop if stop in text]
        texts[row] = text[: min(cuts)].strip() if cuts else text.strip()
        # (A token that begins with the stop string adds nothing to the answer.)
        if not cuts or text[: min(cuts)] != str(self.model.tokenizer.decode(ids[row])):
            ids[row].append(token)
            surprisal[row].append(cost)
        return not cuts

    def _pass(self, ids_RT: Tensor, seen_RS: Tensor, cache: PreallocatedCache) -> Tensor:
        T = ids_RT.shape[1]
        places = {"position_ids": (seen_RS.cumsum(1) - 1).clamp(min=0)[:, -T:]} if self.places else {}
        out = self.model.hf(
            input_ids=ids_RT, attention_mask=seen_RS, past_key_values=cache, use_cache=True, logits_to_keep=1, **places
        )
        refuse_overflow(self.model.hf, out.logits)
        return out.logits[:, -1]

    @contextmanager
    def _acting(self, variant_R: Tensor, *, decoding: bool) -> Iterator[None]:
        if decoding or self.acting.steps == "all":
            with self.acting.act(self.model, variant_R):
                yield
        else:
            yield


def _greedy(logits_RV: Tensor) -> tuple[Tensor, Tensor]:
    """The likeliest token of each row, and its surprisal."""
    best = logits_RV.float().max(dim=-1)
    return best.indices, logits_RV.float().logsumexp(dim=-1) - best.values
