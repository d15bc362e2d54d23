"""Every head's output at the tokens of answers that were generated.

An answer's token is predicted one position earlier: z is taken there. Of a long answer only its
highest-surprisal tokens count (the paper asks an outside service to pick them); z is their mean.

Shape letters: N answers, B batch, T positions, L layers, H heads, K head width, P prefix positions.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor

from headscope.functions.generation import Answer
from headscope.models.model import Model
from headscope.progress import bar
from headscope.running.batching import in_parts
from headscope.running.interventions import record


@torch.no_grad()
def answer_states(
    model: Model, prompts: Sequence[list[int]], answers: Sequence[Answer], *, prefix: list[int], tokens: int = 3
) -> Tensor:
    """z at the `tokens` highest-surprisal tokens of each answer, mean over them, (N, L, H, K)."""
    out = torch.empty(len(prompts), model.n_layers, model.n_heads, max(model.reach.head_widths))
    begun = None
    if prefix:
        begun = model.hf(input_ids=torch.tensor([prefix], device=model.device), use_cache=True).past_key_values
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]) + len(answers[i].ids))
    with bar(f"Heads of {model.name} at its answers", len(prompts), unit="answers") as progress:

        def run(rows: Sequence[int]) -> None:
            cache = copy.deepcopy(begun)
            if cache is not None:
                cache.batch_select_indices(torch.zeros(len(rows), dtype=torch.long, device=model.device))
            # Padding stands on the right, where nothing that counts can see it.
            ids_BT = model.batch([prompts[i] + answers[i].ids[:-1] for i in rows])["input_ids"]
            with record(model) as z:
                model.hf(input_ids=ids_BT, past_key_values=cache, use_cache=cache is not None, logits_to_keep=1)
            for place, i in enumerate(rows):
                at = [len(prompts[i]) - 1 + token for token in highest_surprisal(answers[i], tokens)]
                for layer, width in enumerate(model.reach.head_widths):
                    out[i, layer, :, :width] = z[layer][place, at].float().mean(0).cpu()
            progress.advance(len(rows))

        in_parts(model, "states", order, run, each=1)
    return out


def highest_surprisal(answer: Answer, count: int) -> list[int]:
    """Places of the most surprising tokens of an answer, in order; an empty answer's is where it would have begun."""
    order = sorted(range(len(answer.surprisal)), key=lambda place: -answer.surprisal[place])
    return sorted(order[:count]) or [0]
