"""`load(name)`: from a name, or a model in memory, to one whose heads are in reach; `release` gives it back.

1. Find out what the name means: a built-in model, a folder, a GGUF file, or an id on the Hugging Face hub.
2. Read weights from safetensors or GGUF only; nothing that could run code is opened.
3. See to it that nothing is missing (transformers would fill gaps with random numbers) and every weight is a number.
4. Put the heads in reach and check that causally (`attention.install`).

A model in memory is taken as it is, in its dtype and on its devices, and nothing of it is copied.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from headscope.errors import InputError, SetupError
from headscope.models.adapters import base_of, is_adapter, with_adapter
from headscope.models.attention import install, uninstall
from headscope.models.builtin import BUILTIN, builtin_folder, folder_of, no_space
from headscope.models.model import Model
from headscope.models.sparse_gate import CONFIG_KEY, refuse_odd_gate
from headscope.models.weights import quiet, read_weights, refuse_odd_weights
from headscope.records.checksums import damaged_files
from headscope.schema import checked, read_json

DTYPES = {name: getattr(torch, name) for name in ("float32", "float16", "bfloat16", "float64")}


def load(
    model: str | Path | nn.Module,
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    revision: str | None = None,
    base: str | Path | None = None,
) -> Model:
    """Load a causal language model, or take one that is in memory, and put its heads in reach.

    Args:
        model: a built-in name (`smollm2-135m`, `nano`), a local folder, a GGUF file or a Hugging Face hub id; or a
            transformers model in memory (fine-tuned, wrapped by peft, quantised, dispatched over devices), which is
            used as it is and given back by `release`.
        tokenizer: of a model in memory.
        device: where to put it; a GPU if there is one, otherwise the CPU.
        dtype: float32 on the CPU and the checkpoint's own elsewhere, unless given ("float32", "bfloat16", ...).
        revision: branch, tag or commit, for hub ids.
        base: the model that an adapter belongs to, where the name in the adapter does not lead to it.
    Returns:
        The model with its tokenizer; `model.hf` is the plain Hugging Face model.
    """
    if not isinstance(model, (str, Path)):
        if any(option is not None for option in (device, dtype, revision, base)):
            raise InputError("A model in memory stays as it is: device, dtype, revision and base are for names.")
        return _in_memory(model, tokenizer)
    if tokenizer is not None:
        raise InputError(f"{model} brings its own tokenizer; one is given with a model in memory only.")
    device = _device(device)
    wanted = _dtype(dtype, device)
    with quiet():
        hf, tokenizer, source = _read(str(model), wanted, revision, base)
        refuse_odd_weights(hf, str(model))
        if (gate := getattr(hf.config, CONFIG_KEY, None)) is not None:
            refuse_odd_gate(gate, f"{model}: {CONFIG_KEY}", hf.config.get_text_config().num_hidden_layers)
        hf = _to_device(hf, device)
        reach = install(hf)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token
    return Model(_short_name(str(model)), hf, tokenizer, reach, source)


def _in_memory(given: nn.Module, tokenizer: PreTrainedTokenizerBase | None) -> Model:
    found: Any = given
    if not isinstance(found, PreTrainedModel) and hasattr(found, "get_base_model"):
        if getattr(getattr(found, "active_peft_config", None), "is_prompt_learning", False):
            raise InputError(
                "This peft model puts learned tokens before every prompt, so that positions are not those of its "
                "tokens. Headscope takes adapters that change weights, such as LoRA."
            )
        # peft puts its adapters into the model itself, which then runs with them.
        found = found.get_base_model()
    if not isinstance(found, PreTrainedModel) or found.get_output_embeddings() is None:
        raise InputError(
            f"Expected a name, or a causal language model of transformers (AutoModelForCausalLM), found "
            f"{type(given).__name__}."
        )
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise InputError(
            f"A model in memory needs its tokenizer, hs.load(model, tokenizer); found {type(tokenizer).__name__}."
        )
    name = Path(str(found.config._name_or_path or found.config.model_type)).name
    refuse_odd_weights(found, name)
    with quiet():
        reach = install(found)
    return Model(name, found, tokenizer, reach, {"kind": "memory"})


def release(model: Model) -> PreTrainedModel:
    """Give a model back as it was before `load`: its attention implementation, hooks and training mode.

    Args:
        model: what `load` returned.

    Returns:
        The plain Hugging Face model (`model.hf`). `model` itself is of no more use: its heads are out of reach.
    """
    if not isinstance(model, Model):
        raise InputError(f"release takes what hs.load returned, found {type(model).__name__}.")
    model.kept.clear()
    with quiet():
        uninstall(model.hf)
    return model.hf


def _read(
    name: str, dtype: torch.dtype | str, revision: str | None, base: str | Path | None = None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, dict[str, Any]]:
    path = Path(name).expanduser()
    if base is not None and not is_adapter(path):
        raise InputError(f"{name} is no adapter (a folder with adapter_config.json), so it has no base {base}.")
    if is_adapter(folder_of(name)):
        return _read_adapter(name, dtype, revision, base)
    if name in BUILTIN:
        hf, tokenizer = _read_folder(builtin_folder(name), dtype)
        return hf, tokenizer, {"kind": "built-in", "licence": BUILTIN[name].licence}
    if path.is_dir():
        hf, tokenizer = _read_folder(path, dtype)
        return hf, tokenizer, {"kind": "folder"}
    if path.is_file():
        if path.suffix.lower() != ".gguf":
            raise InputError(f"{name} is a file, but not a .gguf file. Give a GGUF file, or the folder of a model.")
        hf, tokenizer = _read_gguf_file(path, dtype)
        return hf, tokenizer, {"kind": "gguf"}
    if not re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", name) or name.endswith(".gguf"):
        raise InputError(f"There is no folder or file {name}. {_known()}")
    hf, tokenizer = _from_pretrained(name, dtype, revision)
    return hf, tokenizer, {"kind": "hub", "revision": getattr(hf.config, "_commit_hash", None)}


def _read_adapter(
    name: str, dtype: torch.dtype | str, revision: str | None, base: str | Path | None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, dict[str, Any]]:
    folder = folder_of(name)
    wanted = str(base or base_of(folder))
    try:
        hf, tokenizer, _ = _read(wanted, torch.float32, revision)
    except InputError as error:
        raise InputError(
            f"{name} is an adapter, and its base {wanted} could not be loaded: {_first_line(error)}\n"
            "Say where the base is: load(..., base=FOLDER), or `headscope merge ADAPTER BASE --out FOLDER`."
        ) from error
    hf = with_adapter(hf, folder)
    licence = {"licence": BUILTIN[name].licence} if name in BUILTIN else {}
    return (hf if dtype == "auto" else hf.to(dtype)), tokenizer, {"kind": "adapter", "base": wanted, **licence}  # pyright: ignore[reportArgumentType, reportCallIssue]


def _read_folder(folder: Path, dtype: torch.dtype | str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    if not (folder / "config.json").is_file():
        raise InputError(f"{folder} has no config.json: expected the folder of a Hugging Face model. {_known()}")
    path = folder / "config.json"
    checked(read_json(path, expected="the config of a model"), dict[str, Any], where=str(path))
    if damaged := damaged_files(folder):
        raise InputError(
            f"{folder / damaged[0]} is damaged or missing: it is not what was written there.\nFetch the model again, "
            "or give the command that made it (`headscope sparsify`) again."
        )
    if not list(folder.glob("*.safetensors")):
        found = [file for pattern in ("*.bin", "*.pt", "*.pth", "*.ckpt") for file in folder.glob(pattern)]
        # The weights first: settings of a training and states of an optimiser may be pickles too.
        pickles = [file.name for file in sorted(found, key=lambda file: (-file.stat().st_size, file.name))]
        if pickles:
            raise InputError(
                f"{folder} has weights only as pickle ({pickles[0]}), which can run code when opened; Headscope reads "
                "safetensors and GGUF only.\nConvert them: load once with transformers and save_pretrained()."
            )
        raise InputError(f"{folder} has no weights: expected *.safetensors beside config.json.")
    return _from_pretrained(str(folder), dtype, None)


def _from_pretrained(
    name: str, dtype: torch.dtype | str, revision: str | None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    options: dict[str, Any] = {} if revision is None else {"revision": revision}
    # What a broken checkpoint makes transformers raise is anybody's guess: all of it is about the input.
    try:
        hf = read_weights(name, dtype=dtype, use_safetensors=True, **options)
    except InputError:
        raise
    except SafetensorError as error:
        raise InputError(f"The safetensors of {name} are damaged or cut short: {error}. Fetch them again.") from error
    except Exception as error:
        raise InputError(_explain(name, error)) from error
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False, **options)
        # (Some faults of its config show only when it is used.)
        tokenizer.encode("a")
    except Exception as error:
        raise InputError(
            f"{name} has no tokenizer that can be read: {_first_line(error)}\n"
            "Expected tokenizer.json (or the tokenizer's older files) beside config.json."
        ) from error
    return hf, tokenizer


def _read_gguf_file(path: Path, dtype: torch.dtype | str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    from headscope.models.gguf import converted

    try:
        folder = converted(path)
    except InputError:
        raise
    except OSError as error:
        raise SetupError(no_space(error) or f"Could not convert {path}: {error}") from error
    except Exception as error:
        if full := no_space(error):
            raise SetupError(full) from error
        raise InputError(
            f"{path} cannot be read as a GGUF model: {_first_line(error)}\n"
            "It may be cut short or damaged (fetch it again), or of an architecture that transformers does not read."
        ) from error
    return _read_folder(folder, torch.float32 if dtype == "auto" else dtype)


def _to_device(hf: PreTrainedModel, device: torch.device) -> PreTrainedModel:
    try:
        return hf.to(device)  # pyright: ignore[reportArgumentType]
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"Device {device} cannot be used here: {_first_line(error)}") from error


def _device(device: str | torch.device | None) -> torch.device:
    try:
        chosen = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError as error:
        raise InputError(f"Unknown device {device!r}. Known: cpu, cuda, cuda:1, mps, ...") from error
    if chosen.type == "meta":
        raise InputError("Device meta holds no numbers: nothing can be computed there.")
    return chosen


def _dtype(dtype: str | torch.dtype | None, device: torch.device) -> torch.dtype | str:
    if dtype is None:
        return torch.float32 if device.type == "cpu" else "auto"
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise InputError(f"Unknown dtype {name!r}. Known: {', '.join(DTYPES)}.")
    return DTYPES[name]


def _explain(name: str, error: Exception) -> str:
    """The many errors of transformers as one or two lines that say what to do."""
    text = str(error)
    if "trust_remote_code" in text or "custom code" in text:
        return (
            f"{name} brings its own Python code (trust_remote_code), which Headscope does not run.\n"
            "Use a model whose architecture is part of transformers."
        )
    if "Unrecognized configuration class" in text:
        return f"{name} is no causal language model: transformers has no AutoModelForCausalLM for its config."
    if "does not recognize this architecture" in text or "Unrecognized model" in text:
        return f"{name} has an architecture that this version of transformers does not know: {_first_line(error)}"
    if Path(name).is_dir():
        return f"{name} cannot be loaded: {_first_line(error)}"
    if "safetensors" in text or ".bin" in text:
        named = re.findall(r"[\w.-]+\.(?:bin|pth?|ckpt)\b", text)
        return (
            f"{name} has no safetensors weights; pickle weights ({(named or ['such as pytorch_model.bin'])[0]}) are "
            "refused because opening them can run code.\n"
            "Look for a safetensors revision of it, or convert it once with transformers."
        )
    return f"There is no model {name} here, and the hub did not give it: {_first_line(error)}\n{_known()}"


def _known() -> str:
    return f"Known: {', '.join(BUILTIN)}, a folder, a GGUF file, or a hub id such as openai-community/gpt2."


def _first_line(error: Exception) -> str:
    """The first line of an error that says something, at most about 200 characters of it."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    said = " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
    return textwrap.shorten(said, 200, placeholder=" ...")


def _short_name(name: str) -> str:
    path = Path(name).expanduser()
    if name in BUILTIN or not path.exists():
        return name.rpartition("/")[2]
    return path.resolve().name.removesuffix(".gguf")
