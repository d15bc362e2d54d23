"""Text to sparsify on, as sequences of token ids.

`sequences(model, "self", ...)` lets the model write its own: it needs no corpus, and on what a model says itself its
cross-entropy exceeds the dense model's by just the divergence between the two. Other sources: a text file, a folder
of text files, a data set on the Hugging Face hub, sequences made elsewhere (a .safetensors file with `ids`), or several
of these separated by commas: in equal parts, or in those asked for (`self,corpus.txt:3`).

Shape letters: N sequences, T tokens in a sequence, B rows written at a time, V vocabulary.
"""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from transformers.cache_utils import DynamicCache

from headscope.errors import InputError
from headscope.models import Model, cache_folder
from headscope.models.builtin import cache_lock
from headscope.models.sparse_gate import Gates, deciding
from headscope.models.weights import refuse_overflow
from headscope.progress import bar, tell
from headscope.records.sealed import is_old, read_sealed, write_sealed
from headscope.runs.names import file_name

SUFFIXES = (".txt", ".md", ".text")
ROWS = 128
TOP_P = 0.9


def sequences(model: Model, text: str, *, count: int, length: int, seed: int = 0, top_p: float = TOP_P) -> Tensor:
    """`count` sequences of `length` tokens, (N, T), in an order that the seed decides.

    text: "self", a file, a folder, a data set's name (`name` or `name:config`, its split "train"), or several
    separated by commas, each with a number behind a colon where the parts are not equal.
    top_p: of "self", see `written`.
    """
    limit = getattr(model.hf.config.get_text_config(), "max_position_embeddings", None)
    if limit and length > limit:
        raise InputError(f"--length must be at most {limit}, the positions that {model.name} has; found {length}.")
    sources = [_weighed(name.strip()) for name in text.split(",") if name.strip()]
    if not sources:
        raise InputError("No text was given. Known: self, a file, a folder, the name of a data set.")
    total = sum(weight for _, weight in sources)
    parts = []
    for name, weight in sources:
        own, share = name == "self", math.ceil(count * weight / total)
        part = written(model, count=share, length=length, seed=seed, top_p=top_p) if own else _cut(model, name, length)
        if len(part) < share:
            raise InputError(
                f"{name} is too short: {share} sequences of {length} tokens are needed, it has {len(part)}.\n"
                "Give more text, or ask for fewer sequences (--sequences) or shorter ones (--length)."
            )
        order = torch.randperm(len(part), generator=torch.Generator().manual_seed(seed))
        parts.append(part[order[:share]])
    whole_NT = torch.cat(parts)
    return whole_NT[torch.randperm(len(whole_NT), generator=torch.Generator().manual_seed(seed + 1))][:count]


def _weighed(source: str) -> tuple[str, float]:
    """A source and its weight: `corpus.txt:3`. (Behind a data set's colon stands its config, which is no number.)"""
    name, _, weight = source.rpartition(":")
    try:
        value = float(weight) if name else 1.0
    except ValueError:
        return source, 1.0
    if not 0 < value < math.inf:
        raise InputError(f"The part of {name} in --text must be above 0, found {weight}.")
    return (name, value) if name else (source, 1.0)


def written(model: Model, *, count: int, length: int, seed: int, top_p: float = TOP_P) -> Tensor:
    """Sequences that the dense model wrote, each from its beginning token on, kept in the cache as they are made.
    Where the tokenizer begins no text with that token, it is taken off again: the model will not see it elsewhere.

    top_p: every token is drawn from the likeliest ones that together have this probability. At 1 a small model soon
    leaves what it was trained on, and writes what nobody would.
    """
    start, shown_first = _start(model), _begins(model)
    made: list[Tensor] = []
    length += 0 if shown_first else 1
    asked = f"{model.fingerprint()} {length} {start} {top_p}"
    folder = cache_folder() / "text" / f"{file_name(model.name)}-{hashlib.sha256(asked.encode()).hexdigest()[:12]}"
    with (
        bar(f"{model.name} writes its text", -(-count // ROWS) * length, unit="tokens") as progress,
        # A second process that wants the same text waits, and then reads it.
        cache_lock(folder),
    ):
        while sum(map(len, made)) < count:
            piece = folder / f"seed-{seed}-{len(made)}.safetensors"
            about = {"asked": asked, "seed": seed, "piece": len(made)}
            kept = _kept(piece, about, length) if piece.exists() else None
            if kept is not None:
                progress.advance(length)
            else:
                draw = torch.Generator().manual_seed(seed * 1000003 + len(made))
                kept = _write(model, start, length, top_p, draw, progress)
                write_sealed(piece, {"ids": kept.int().numpy()}, about)
            made.append(kept)
    return torch.cat(made)[:count, 0 if shown_first else 1 :]


def _kept(piece: Path, about: dict[str, Any], length: int) -> Tensor | None:
    """Text from the cache; None, and a word, where it is not what was put there."""
    try:
        if is_old(piece):
            # From before there were checksums: what has the right shape gets one.
            ids = load_file(piece)["ids"]
            if ids.shape != (ROWS, length):
                raise ValueError("it has another shape")
            write_sealed(piece, {"ids": ids.numpy()}, about)
        arrays, found = read_sealed(piece)
        if found != about:
            raise ValueError("it is other text")
        return torch.from_numpy(arrays["ids"]).long()
    except (ValueError, KeyError, OSError, SafetensorError) as error:
        tell(f"{piece} is damaged: {error}. The text is written again.")
        return None


@torch.no_grad()
def _write(model: Model, start: int, length: int, top_p: float, draw: torch.Generator, progress: Any) -> Tensor:
    """Sample token by token, through ends of texts into the next one."""
    ids_BT = torch.full((ROWS, 1), start)
    cache = DynamicCache()
    with deciding(Gates("open")):
        while ids_BT.shape[1] < length:
            new = ids_BT[:, -1:].to(model.device)
            logits_BV = model.hf(input_ids=new, past_key_values=cache, use_cache=True).logits[:, -1].float().cpu()
            refuse_overflow(model.hf, logits_BV)
            ids_BT = torch.cat([ids_BT, drawn(logits_BV, top_p, draw)], dim=1)
            progress.advance()
    return ids_BT


def drawn(logits_BV: Tensor, top_p: float, draw: torch.Generator) -> Tensor:
    """One token per row, (B, 1), from the nucleus: by inverting the distribution function, which over a vocabulary is
    many times quicker than `torch.multinomial`."""
    chance_BV = logits_BV.softmax(-1)
    if top_p < 1:
        chance_BV = chance_BV.masked_fill(chance_BV < nucleus_edge(chance_BV, top_p), 0.0)
    total_BV = chance_BV.cumsum(-1)
    # Right of the point drawn, so that a token without probability is never taken.
    point_B1 = torch.rand(len(total_BV), 1, generator=draw) * total_BV[:, -1:]
    return torch.searchsorted(total_BV, point_B1, right=True).clamp(max=total_BV.shape[1] - 1)


def nucleus_edge(chance_BV: Tensor, top_p: float, first: int = 512) -> Tensor:
    """The smallest probability in the nucleus of each row, (B, 1). It is nearly always among the few `first` ones, and
    those are found far sooner than the whole is sorted."""
    V = chance_BV.shape[1]
    large_BK = np.partition(chance_BV.numpy(), V - first, axis=-1)[:, V - first :] if first < V else chance_BV.numpy()
    sorted_BK = torch.from_numpy(np.sort(large_BK, axis=-1)).flip(-1)
    total_BK = sorted_BK.cumsum(-1)
    if first < V and (total_BK[:, -1] < top_p).any():
        return nucleus_edge(chance_BV, top_p, V)
    inside_BK = total_BK - sorted_BK < top_p
    return sorted_BK.gather(1, inside_BK.sum(-1, keepdim=True) - 1)


def _start(model: Model) -> int:
    """The token with which this model's texts begin."""
    tokenizer: Any = model.tokenizer
    # A tokenizer that puts nothing before a text: in training, texts were divided by this, or by their ends.
    divider = tokenizer.get_vocab().get("<|endoftext|>")
    known = (*_begins(model), divider, tokenizer.bos_token_id, tokenizer.eos_token_id)
    start = next((token for token in known if token is not None), None)
    if start is None:
        raise InputError(f"{model.name} has no token that begins a text, so it cannot write its own: give --text.")
    return start


def _begins(model: Model) -> list[int]:
    """What the tokenizer puts before every text: one special token, or nothing."""
    tokenizer: Any = model.tokenizer
    first = tokenizer("a")["input_ids"][0]
    return [first] if first in tokenizer.all_special_ids else []


def _cut(model: Model, name: str, length: int) -> Tensor:
    """A corpus as sequences; where the tokenizer begins texts with a special token, so does every sequence."""
    if name.endswith(".safetensors"):
        return _made(Path(name).expanduser(), length)
    tokenizer: Any = model.tokenizer
    head = _begins(model)
    ids = [token for text in _texts(name) for token in tokenizer(text, add_special_tokens=False)["input_ids"]]
    body = length - len(head)
    rows = [head + ids[at : at + body] for at in range(0, len(ids) - body + 1, body)]
    return torch.tensor(rows, dtype=torch.long).reshape(-1, length)


def _made(file: Path, length: int) -> Tensor:
    """Sequences of token ids from a file."""
    try:
        ids_NT = load_file(file)["ids"].long()
    except (OSError, SafetensorError, KeyError) as error:
        raise InputError(
            f"{file} cannot be read: {error}. Expected sequences of token ids (N, T) named ids."
        ) from error
    if ids_NT.ndim != 2 or ids_NT.shape[1] != length:
        raise InputError(f"{file} must hold sequences of {length} tokens, found a shape {tuple(ids_NT.shape)}.")
    return ids_NT


def _texts(name: str) -> list[str]:
    path = Path(name).expanduser()
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.suffix in SUFFIXES)
        if not files:
            raise InputError(f"{path} has no text files: expected files ending in {', '.join(SUFFIXES)}.")
        return [_read(file) for file in files]
    if path.is_file():
        return [_read(path)]
    return _hub_texts(name)


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file} cannot be read as UTF-8 text: {error}.") from error


def _hub_texts(name: str) -> list[str]:
    try:
        from datasets import load_dataset  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise InputError(
            f"There is no file or folder {name}. For a data set of the hub: pip install datasets."
        ) from error
    path, _, config = name.partition(":")
    try:
        rows: Any = load_dataset(path, config or None, split="train")
    except Exception as error:
        said = (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
        raise InputError(
            f"There is no file or folder {name}, and no data set of that name could be had: {said}\n"
            "Give --text a file, a folder, a data set, or self."
        ) from error
    column = "text" if "text" in rows.column_names else rows.column_names[0]
    return [str(text) for text in rows[column]]
