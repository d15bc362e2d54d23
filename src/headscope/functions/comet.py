"""COMET, by Unbabel's own package in an environment of its own.

The package wants an older NumPy and transformers than Headscope, so `setup` makes a virtual environment for it in the
cache, once. A `Comet` starts a process there that loads a checkpoint and then scores whatever it is sent over a pipe.
If that process dies it is started once more and gets the same request again: nothing is lost.

A COMET checkpoint is a pickle, which can run code when it is opened. That happens in the other process; name only
checkpoints that you trust.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from headscope.errors import InputError, SetupError
from headscope.models.builtin import cache_folder
from headscope.progress import bar
from headscope.records.files import write_json

CHECKPOINT = "Unbabel/wmt22-comet-da"

# Torch first and alone, or pip takes a build with gigabytes of GPU libraries; then what is known to work with it.
# (torchmetrics still imports pkg_resources, which newer setuptools do not have.)
STEPS = (
    ("torch==2.13.0",),
    (
        "unbabel-comet==2.2.7", "numpy==1.26.4", "transformers==4.57.6", "huggingface-hub==0.36.2",
        "pytorch-lightning==2.6.6", "torchmetrics==0.10.3", "setuptools==80.10.2",
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Environment:
    """Where COMET lives."""

    folder: Path

    @classmethod
    def here(cls) -> Environment:
        return cls(cache_folder() / "comet")

    @property
    def python(self) -> Path:
        return self.folder / "env" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")

    def worker(self, checkpoint: str) -> list[str]:
        """The command that starts the worker. Isolated (-I): neither Headscope's path, which has other versions, nor
        this folder, where `comet` is another module, may reach it."""
        return [str(self.python), "-I", str(Path(__file__).with_name("comet_worker.py")), checkpoint]

    @property
    def ready(self) -> bool:
        return self._note.get("packages") == [list(step) for step in STEPS] and self.python.exists()

    @property
    def checkpoint(self) -> str | None:
        """The checkpoint that was set up, if any."""
        return self._note.get("checkpoint")

    @property
    def _note(self) -> dict[str, Any]:
        try:
            return json.loads((self.folder / "ready.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}

    def note(self, checkpoint: str | None) -> None:
        write_json(self.folder / "ready.json", {"packages": STEPS, "checkpoint": checkpoint})

    @property
    def missing(self) -> str:
        """Why COMET cannot score, in a few words; empty where it can."""
        if not self.ready:
            return "no environment; `headscope comet setup` makes it"
        return "" if self.checkpoint else "no checkpoint; `headscope comet setup --checkpoint` names one"


def setup(checkpoint: str | None = CHECKPOINT) -> Environment:
    """Make the environment where there is none, and bring the checkpoint (none, if None) into the cache."""
    from filelock import FileLock

    environment = Environment.here()
    try:
        environment.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SetupError(f"Cannot write {environment.folder}: {error.strerror}. Set HEADSCOPE_CACHE.") from error
    with FileLock(environment.folder.with_suffix(".lock")):
        if not environment.ready:
            # (What a killed setup left behind has no note, and is made anew.)
            shutil.rmtree(environment.folder / "env", ignore_errors=True)
            _make(environment)
            environment.note(None)
        if checkpoint is not None:
            with bar(f"Fetching {checkpoint}"):
                _fetch(environment, checkpoint)
            environment.note(checkpoint)
    return environment


def _make(environment: Environment) -> None:
    commands = [[sys.executable, "-m", "venv", str(environment.folder / "env")]]
    install = [str(environment.python), "-m", "pip", "install", "--disable-pip-version-check", "--quiet"]
    commands += [[*install, *step] for step in STEPS]
    with bar("Making an environment for COMET", len(commands)) as progress:
        for command in commands:
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
                errors = [line for line in lines if line.startswith("ERROR: ")]
                reason = (errors or lines[-1:] or ["it said nothing"])[0].removeprefix("ERROR: ")
                raise SetupError(
                    f"Could not make COMET's environment: {reason[:250]}\n"
                    "Check the network and pip's settings, then run `headscope comet setup` again."
                )
            progress.advance()


def _fetch(environment: Environment, checkpoint: str) -> None:
    _refuse_missing(checkpoint)
    done = subprocess.run([*environment.worker(checkpoint), "--fetch"], capture_output=True, text=True)
    said = json.loads(done.stdout.splitlines()[-1]) if done.stdout.strip() else {"error": "no answer"}
    if "error" in said:
        raise SetupError(_no_checkpoint(checkpoint, said["error"]))


def _refuse_missing(checkpoint: str) -> None:
    path = Path(checkpoint).expanduser()
    if (checkpoint.endswith(".ckpt") or path.is_absolute() or checkpoint.startswith(".")) and not path.exists():
        raise InputError(f"There is no COMET checkpoint {checkpoint}. Give a .ckpt file, its folder, or a hub id.")


def _no_checkpoint(checkpoint: str, reason: str) -> str:
    return (
        f"COMET's environment is ready, but its checkpoint {checkpoint} could not be opened: "
        f"{' '.join(reason.split())[:200]}\n"
        "Give another with `headscope comet setup --checkpoint` (a .ckpt file, its folder, or a hub id)."
    )


class Comet:
    """A process that scores answers by COMET; use it in a `with` block."""

    def __init__(self, checkpoint: str, environment: Environment | None = None):
        self.checkpoint = checkpoint
        self.environment = environment or Environment.here()
        self.restarts = 0
        if not self.environment.ready:
            raise SetupError("COMET's environment is missing.\nMake it with `headscope comet setup`.")
        _refuse_missing(checkpoint)
        self._said = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        self._process = self._start()

    def __enter__(self) -> Comet:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._process.stdin is not None and not self._process.stdin.closed:
            with suppress(BrokenPipeError):
                self._process.stdin.close()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._said.close()

    def score(self, source: Sequence[str], prediction: Sequence[str], reference: Sequence[str]) -> np.ndarray:
        """COMET of each prediction, (N,)."""
        samples = [
            {"src": src, "mt": mt, "ref": ref} for src, mt, ref in zip(source, prediction, reference, strict=True)
        ]
        if not samples:
            return np.empty(0)
        reply = self._ask({"samples": samples})
        if reply is None:
            if self.restarts:
                raise SetupError(f"COMET's process died twice. It last said: {self._last_words()}")
            self.restarts += 1
            self._process.wait()
            self._process = self._start()
            reply = self._ask({"samples": samples})
            if reply is None:
                raise SetupError(f"COMET's process died again when restarted. It last said: {self._last_words()}")
        return np.array(reply["scores"], float)

    def _start(self) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            self.environment.worker(self.checkpoint), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said,
            text=True, encoding="utf-8",
        )  # fmt: skip
        assert process.stdout is not None
        line = process.stdout.readline()
        first = json.loads(line) if line else {"error": f"the process died: {self._last_words()}"}
        if "error" in first:
            process.wait()
            raise SetupError(_no_checkpoint(self.checkpoint, first["error"]))
        return process

    def _ask(self, request: dict[str, Any]) -> dict[str, Any] | None:
        """The reply to a request, or None if the process died over it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except (BrokenPipeError, ConnectionResetError):
            return None
        return json.loads(line) if line.endswith("\n") else None

    def _last_words(self) -> str:
        self._said.seek(0)
        lines = [line for line in self._said.read().splitlines() if line.strip()]
        return (lines or ["nothing"])[-1][:200]
