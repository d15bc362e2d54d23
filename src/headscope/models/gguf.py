"""GGUF files as plain Hugging Face folders in the cache: weights dequantised to float32, tokenizer with the BOS the
file asks for.

A file is known by its SHA-256. The first load reads and dequantises it, writes the folder part by part and notes the
SHA-256 of what it wrote; every load after that checks those and opens the folder, whose weights are mapped, not copied.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import gguf
import torch
from safetensors.torch import save_file
from tokenizers.processors import TemplateProcessing
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers import modeling_gguf_pytorch_utils as transformers_gguf

from headscope.models.builtin import cache_folder, put_in_place
from headscope.models.weights import refuse_gaps
from headscope.progress import bar, tell
from headscope.records.checksums import damaged_files, sha256


def converted(path: Path) -> Path:
    """The folder in the cache that holds a GGUF file's model; made first where needed, and again if it was damaged."""
    folder = cache_folder() / "gguf" / f"{path.stem}-{sha256(path)[:16]}"
    if folder.is_dir() and (damaged := damaged_files(folder)):
        tell(f"{folder / damaged[0]} is damaged; the copy of {path.name} is made again.")
    elif folder.is_dir():
        return folder
    with put_in_place(folder) as scratch:
        if scratch is not None:
            dequantise(path, scratch)
    size = sum(file.stat().st_size for file in folder.iterdir())
    tell(f"{path.name} is kept in {folder}, converted ({size / 1e6:,.0f} MB)")
    return folder


def dequantise(path: Path, folder: Path) -> None:
    """Write a GGUF file's model and tokenizer into a folder. The file is opened once and its tensors are taken a few
    layers at a time, so that memory holds a part of the weights only."""
    own = {"gguf_file": str(path.resolve())}
    # transformers prefers other models' files beside a GGUF file to what the file itself says: show it an empty folder.
    with tempfile.TemporaryDirectory() as empty, _opened(path) as reader:
        config = AutoConfig.from_pretrained(empty, trust_remote_code=False, **own)
        tokenizer: Any = AutoTokenizer.from_pretrained(empty, trust_remote_code=False, **own)
        tokenizer.name_or_path = path.name
        if _asks_for_bos(reader):
            _add_bos(tokenizer)
        tokenizer.save_pretrained(folder)
        with torch.device("meta"):
            bare: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        place = _write_weights(path, reader, bare, folder)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": place}))
    config.architectures = [type(bare).__name__]
    config.save_pretrained(folder)
    bare.generation_config.save_pretrained(folder)


def _write_weights(path: Path, reader: Any, bare: PreTrainedModel, folder: Path) -> dict[str, str]:
    """Write the weights part by part; the file of each, by its name. bare: the model without weights."""
    tensors, shapes, place = list(reader.tensors), {}, {}
    # The words are read; they would be read again for every part.
    reader.fields = {key: field for key, field in reader.fields.items() if not key.startswith("tokenizer.")}
    with bar(f"Dequantising {path.name}", len(tensors), unit="tensors") as shown:
        for number, part in enumerate(_parts(tensors)):
            reader.tensors = part
            weights = transformers_gguf.load_gguf_checkpoint(path, return_tensors=True, model_to_load=bare)["tensors"]
            name = f"model-{number + 1:05}.safetensors"
            save_file({key: value.float().contiguous() for key, value in weights.items()}, folder / name)
            shapes |= {key: value.shape for key, value in weights.items()}
            place |= dict.fromkeys(weights, name)
            del weights
            shown.advance(len(part))
    wanted = bare.state_dict(keep_vars=True)
    # (What is tied to a tensor that is there has none of its own.)
    there = {id(wanted[key]) for key in shapes if key in wanted}
    wrong = sorted(key for key, tensor in wanted.items() if key not in shapes and id(tensor) not in there)
    wrong += [f"{key} of another shape" for key in shapes if key in wanted and wanted[key].shape != shapes[key]]
    refuse_gaps(path, wrong)
    return place


def _parts(tensors: list[Any], most: int = 12) -> Iterator[list[Any]]:
    """Tensors in groups, about `most` of equal size. A layer stays whole: what is one tensor to transformers may be
    several there."""
    by_layer: dict[str, list[Any]] = {}
    for tensor in tensors:
        by_layer.setdefault(re.sub(r"^(blk\.\d+\.).*", r"\1", tensor.name), []).append(tensor)
    share, part = sum(int(tensor.n_elements) for tensor in tensors) / most, []
    for group in by_layer.values():
        part += group
        if sum(int(tensor.n_elements) for tensor in part) >= share:
            yield part
            part = []
    if part:
        yield part


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """The file's reader. Inside the block transformers, which opens a file anew for config, tokenizer and weights, gets
    this one (each time it would read a vocabulary of a hundred thousand words), matches the names of tensors once, and
    shows no bar of its own."""
    reader, match, names = gguf.GGUFReader(path), transformers_gguf.get_gguf_hf_weights_map, {}

    def matched(model: Any, processor: Any, *inner: Any, **more: Any) -> dict[str, str]:
        # (It calls itself for the parts of a model.)
        if inner or more:
            return match(model, processor, *inner, **more)
        if not names:
            names.update(match(model, processor))
        return names

    with (
        patch("gguf.GGUFReader", lambda *_: reader),
        patch.object(transformers_gguf, "get_gguf_hf_weights_map", matched),
        patch.object(transformers_gguf, "tqdm", lambda tensors, **_: tensors),
    ):
        yield reader


def _asks_for_bos(reader: Any) -> bool:
    """What the file says of BOS; files that say nothing follow llama.cpp's rule: SentencePiece vocabularies want it."""
    fields = reader.fields
    if stated := fields.get("tokenizer.ggml.add_bos_token"):
        return bool(stated.contents())
    kind = fields.get("tokenizer.ggml.model")
    return kind is not None and kind.contents() == "llama"


def _add_bos(tokenizer: Any) -> None:
    if tokenizer.bos_token_id is None or tokenizer("a")["input_ids"][0] == tokenizer.bos_token_id:
        return
    bos = tokenizer.bos_token
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, tokenizer.bos_token_id)]
    )
