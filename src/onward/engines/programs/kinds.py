"""The programs that can be engines: where they are found, how they are started, what their output says about loading.

Flags and variables are those of llama.cpp's tools/server, of vLLM's `vllm serve` and of SGLang's launch_server.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from onward.errors import SetupError
from onward.ipc.spawn import SECRET_VARIABLES

LLAMA_SLOTS = 4
"""Sequences that llama-server computes together unless --max-rows is lower: each reserves a context of its own."""
QUIET = {
    "DO_NOT_TRACK": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
}
"""Variables of every program: no telemetry, and nothing is downloaded, since Onward has the files already."""


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """What a program is to serve. `folder` is private to Onward's user; sockets and settings of the program lie there.

    `context_length`: in tokens, per sequence; 0: the model's own. `port`: for programs without a Unix socket. `key`:
    what they ask for.
    """

    name: str
    model: Path
    folder: Path
    context_length: int
    max_rows: int
    threads: int = 0
    arguments: tuple[str, ...] = ()
    port: int = 0
    key: str = ""

    @property
    def socket(self) -> Path:
        return self.folder / "engine.sock"


@dataclass(frozen=True, slots=True)
class ProgramKind:
    """A program that can be an engine; an entry of KINDS.

    `upstream`: its kind in `NAME=KIND+URL`. `reads`: the names of model formats. `flags` returns its arguments, without
    those that the operator adds. `loading`: an expression that finds a percentage in a line, group 1. `grammar_flag`:
    what lets llguidance keep to grammars in it; not passed where the operator passes one of that name.
    """

    word: str
    title: str
    upstream: str
    install: str
    reads: frozenset[str]
    has_socket: bool
    flags: Callable[[LaunchPlan], list[str]]
    loading: re.Pattern[str]
    program: str = ""
    module: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    grammar_flag: str = ""

    def find(self, given: Path | None = None) -> list[str]:
        """Return the beginning of its command: `given`, else what is on PATH or next to this Python. Raises
        SetupError."""
        if given is not None:
            if not os.access(given, os.X_OK) or given.is_dir():
                raise SetupError(f"--engine-path: {given} is not an executable program.")
            return [str(given), "-m", self.module] if self.module else [str(given)]
        if found := self.installed:
            return found
        raise SetupError(
            f"{self.title} was not found: {self.install}, or pass --engine-path {self.word}=PATH with the path of "
            f"{'a Python that has it' if self.module else f'its program {self.program}'}."
        )

    @property
    def installed(self) -> list[str] | None:
        """The beginning of its command, None where it is not on this machine."""
        if self.module:
            top = self.module.partition(".")[0]
            return [sys.executable, "-m", self.module] if importlib.util.find_spec(top) else None
        neighbour = Path(sys.executable).with_name(self.program)
        path = shutil.which(self.program) or (str(neighbour) if os.access(neighbour, os.X_OK) else None)
        return [path] if path else None

    def command(self, program: list[str], plan: LaunchPlan) -> list[str]:
        """Return the whole command; what the operator added comes last, so that it takes precedence."""
        grammars = [self.grammar_flag] if self.has_grammars(plan) else []
        return [*program, *self.flags(plan), *grammars, *plan.arguments]

    def has_grammars(self, plan: LaunchPlan) -> bool:
        """Return whether it keeps to grammars by the library that Onward has, too."""
        name = self.grammar_flag.partition(".")[0]
        return bool(name) and not any(each.replace("_", "-").startswith(name) for each in plan.arguments)

    def variables(self) -> dict[str, str]:
        """Return the environment of the program: this process's, without anything of Onward's, and without secrets."""
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("ONWARD_") and name not in SECRET_VARIABLES
        }
        return inherited | QUIET | dict(self.environment)

    def percentage(self, line: str) -> int | None:
        """Return how much is loaded, in percent, if a line says so."""
        found = self.loading.search(line)
        return min(100, int(found[1])) if found else None


def _llama_flags(plan: LaunchPlan) -> list[str]:
    rows = min(plan.max_rows, LLAMA_SLOTS)
    flags = ["--model", str(plan.model), "--alias", plan.name, "--host", str(plan.socket), "--parallel", str(rows)]
    flags += ["--ctx-size", str(rows * plan.context_length), "--no-webui", "--offline"]
    return flags + (["--threads", str(plan.threads)] if plan.threads else [])


def _vllm_flags(plan: LaunchPlan) -> list[str]:
    flags = ["serve", str(plan.model), "--served-model-name", plan.name, "--uds", str(plan.socket)]
    flags += ["--max-num-seqs", str(plan.max_rows), *_context("--max-model-len", plan)]
    return [*flags, "--max-logprobs", "-1", "--enable-prompt-tokens-details"]


def _sglang_flags(plan: LaunchPlan) -> list[str]:
    """SGLang has no Unix socket: a random key keeps others out, in a file, since every user sees flags."""
    settings = plan.folder / "sglang.yaml"
    settings.touch(mode=0o600)
    settings.write_text(f"api-key: {json.dumps(plan.key)}\n", encoding="utf-8")
    flags = ["--config", str(settings), "--model-path", str(plan.model), "--served-model-name", plan.name]
    flags += ["--host", "127.0.0.1", "--port", str(plan.port)]
    return [*flags, "--max-running-requests", str(plan.max_rows), *_context("--context-length", plan)]


def _context(flag: str, plan: LaunchPlan) -> list[str]:
    return [flag, str(plan.context_length)] if plan.context_length else []


_FOLDERS = frozenset({"safetensors"})
_PERCENTAGE = re.compile(r"[Ll]oading.{0,60}?\b(\d{1,3})% ")
KINDS = {
    kind.word: kind
    for kind in (
        ProgramKind(
            "llama.cpp",
            "llama-server",
            "llama",
            "install llama.cpp",
            frozenset({"GGUF"}),
            has_socket=True,
            flags=_llama_flags,
            loading=re.compile(r"load\w*.{0,40}?\b(\d{1,3})\s?%"),
            program="llama-server",
        ),
        ProgramKind(
            "vllm",
            "vLLM",
            "vllm",
            "pip install vllm",
            _FOLDERS,
            has_socket=True,
            flags=_vllm_flags,
            loading=_PERCENTAGE,
            program="vllm",
            grammar_flag="--structured-outputs-config.backend=guidance",
        ),
        ProgramKind(
            "sglang",
            "SGLang",
            "sglang",
            "pip install sglang",
            _FOLDERS,
            has_socket=False,
            flags=_sglang_flags,
            loading=_PERCENTAGE,
            module="sglang.launch_server",
        ),
    )
}
"""By the word of --engine."""
