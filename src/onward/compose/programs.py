"""Models whose engine is a program that Onward starts: which one, with what, and the engine client over it."""

from __future__ import annotations

import logging
import os
import platform
import secrets
import shutil
import socket
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from onward.compose.upstreams import BATCH_INVARIANT, fingerprint_of, tokenizer_check, upstream_at
from onward.errors import SetupError
from onward.model_files.base import Progress
from onward.models.resolve import ResolvedModel
from onward.settings import Settings, model_words, upstreams_of

if TYPE_CHECKING:
    from onward.engine.model import Tokenizer
    from onward.engines.programs.engine import ProgramEngine
    from onward.engines.programs.kinds import LaunchPlan, ProgramKind
    from onward.engines.programs.process import ProgramProcess
    from onward.engines.upstreams.base import Upstream

log = logging.getLogger("onward.engine")

ONWARD, AUTO = "onward", "auto"
USUAL_CONTEXT = 8192
"""Tokens per sequence that llama-server reserves memory for unless --context-length says otherwise."""
MAX_SOCKET_BYTES = 100
"""Longest path of a socket, in bytes: systems allow 104 or 108."""


def wanted_engines(settings: Settings, called: str = "--engine") -> dict[str, str]:
    """Return the word of --engine for each model whose engine is not Onward's own. Raises SetupError for one of no
    model, or of a model whose engine is a server that runs already. `called`: what its message calls the setting."""
    names = model_words(settings)
    upstreams, stated = upstreams_of(settings), dict(settings.engine)
    for name in filter(None, stated):
        if name in upstreams:
            raise SetupError(f"{called} {name}=…: {name} is computed by the server at its address already.")
        if name not in names:
            raise SetupError(f"{called} {name}=… names a model that is not served. The models are: {', '.join(names)}.")
    wanted = {name: engine_of(name, settings) for name in names if name not in upstreams}
    return {name: word for name, word in wanted.items() if word != ONWARD}


def engine_of(name: str, settings: Settings) -> str:
    """Return the word of --engine for a model, which the settings need not name."""
    stated = dict(settings.engine)
    return stated.get(name, stated.get("", ONWARD))


def kind_of(word: str, found: ResolvedModel, progress: Progress) -> ProgramKind | None:
    """Return the program that computes a model, None for Onward's own engine. Raises SetupError."""
    if word == AUTO:
        word, why = choose(found, has_gpu=has_gpu())
        progress(f"{found.id} is computed by {word}: {why}.")
    if word == ONWARD:
        return None
    from onward.engines.programs.kinds import KINDS

    kind = KINDS[word]
    if found.adapter is not None:
        raise SetupError(f"{found.id}: an adapter cannot be used with --engine {word}; merge it into the model first.")
    if found.files.format not in kind.reads:
        raise SetupError(
            f"{kind.title} reads {' and '.join(kind.reads)} models; {found.id} is one of {found.files.format}. "
            f"Choose another --engine for it."
        )
    return kind


def choose(found: ResolvedModel, *, has_gpu: bool) -> tuple[str, str]:
    """Return a word of --engine other than auto for a model, and why. Raises SetupError where nothing computes it."""
    from onward.engines.programs.kinds import KINDS

    able = [kind for kind in KINDS.values() if found.files.format in kind.reads and found.adapter is None]
    there = [kind for kind in able if kind.installed]
    problems = found.files.problems()
    if there and has_gpu:
        return there[0].word, f"this machine has a GPU, and {there[0].title} is installed"
    if not problems:
        missing = " or ".join(kind.title for kind in able)
        why = f"no {missing} is installed for the GPU" if has_gpu and missing else "it computes this model"
        return ONWARD, why
    if there:
        return there[0].word, f"Onward's own engine does not compute it, and {there[0].title} is installed"
    hint = f" {' or '.join(kind.title for kind in able)} may compute it: install it." if able else ""
    raise SetupError(" ".join(problems) + hint)


def has_gpu() -> bool:
    """Return whether this machine has a GPU that llama.cpp, vLLM or SGLang may use: NVIDIA's, AMD's, or Apple's."""
    if sys.platform == "darwin":
        return platform.machine() == "arm64"
    return any(Path(device).exists() for device in ("/dev/nvidiactl", "/dev/kfd"))


def start_program(
    kind: ProgramKind,
    found: ResolvedModel,
    tokenizer: Tokenizer,
    settings: Settings,
    progress: Progress,
    on_failure: ExitStack,
) -> ProgramEngine:
    """Return the engine of a model, whose program has loaded it; `on_failure` stops both. Raises SetupError."""
    from onward.engines.programs.engine import ProgramEngine
    from onward.engines.programs.process import ProgramProcess

    if sys.platform == "win32":
        raise SetupError(
            f"--engine {kind.word} is not available on Windows: start {kind.title} yourself, and pass --model "
            f"{found.id}={kind.upstream}+http://127.0.0.1:PORT."
        )
    program = kind.find(dict(settings.engine_path).get(kind.word))
    plan = _plan(kind, found, settings)
    command, variables, shown = kind.command(program, plan), kind.variables(), _Shown(found.id, kind, progress)

    def launch() -> ProgramProcess:
        plan.socket.unlink(missing_ok=True)
        log.debug("%s: %s", found.id, " ".join(command))
        return ProgramProcess(command, variables, shown, plan.folder)

    url = f"unix:{plan.socket}" if kind.has_socket else f"http://127.0.0.1:{plan.port}"

    def connections() -> dict[str, Upstream]:
        has_grammars = kind.has_grammars(plan)
        return {url: upstream_at(url, kind.upstream, plan.key or None, settings, has_grammars=has_grammars)}

    engine = ProgramEngine(
        found.id,
        kind.title,
        launch,
        connections,
        tokenizer,
        max_rows=settings.max_rows,
        engine_timeout=settings.engine_timeout,
        fingerprint=partial(fingerprint_of, mode=_mode(kind, variables)),
        on_stop=lambda: shutil.rmtree(plan.folder, ignore_errors=True),
    )
    on_failure.callback(engine.stop)
    hint = f"{kind.title} reads the same files differently from Onward; please report this with the model's name"
    engine.connect(tokenizer_check(found.id, tokenizer, hint))
    shown.is_loading = False
    return engine


def _mode(kind: ProgramKind, variables: Mapping[str, str]) -> str:
    """Return what fingerprints say about how a program computes: vLLM's batch-invariant mode, or nothing."""
    is_invariant = kind.word == "vllm" and variables.get("VLLM_BATCH_INVARIANT") == "1"
    return BATCH_INVARIANT if is_invariant else ""


class _Shown:
    """Receives a program's lines: passes all to the log and, while it loads, the percentage to `progress`."""

    def __init__(self, name: str, kind: ProgramKind, progress: Progress) -> None:
        self.is_loading = True
        self._name = name
        self._kind = kind
        self._progress = progress
        self._percentage: int | None = None
        progress(f"Loading {name} in {kind.title}")

    def __call__(self, line: str) -> None:
        log.debug("%s: %s", self._name, line)
        if not self.is_loading or (percentage := self._kind.percentage(line)) in (None, self._percentage):
            return
        self._percentage = percentage
        self._progress(f"Loading {self._name} in {self._kind.title}: {percentage} %")


def _plan(kind: ProgramKind, found: ResolvedModel, settings: Settings) -> LaunchPlan:
    from onward.engines.programs.kinds import LaunchPlan

    length = settings.context_length
    if not length and kind.word == "llama.cpp":
        own = found.files.facts().get("context_length")
        length = min(own, USUAL_CONTEXT) if isinstance(own, int) else USUAL_CONTEXT
        if isinstance(own, int) and own > length:
            log.warning(
                "%s: llama-server reserves memory for %d tokens per sequence, of the model's %d; --context-length "
                "changes that",
                found.id,
                length,
                own,
            )
    return LaunchPlan(
        found.id,
        found.files.paths()[0] if kind.word == "llama.cpp" else found.path,
        _private_folder(),
        length,
        settings.max_rows,
        settings.threads,
        tuple(argument for word, argument in settings.engine_arg if word in ("", kind.word)),
        0 if kind.has_socket else _free_port(),
        "" if kind.has_socket else secrets.token_urlsafe(32),
    )


def _private_folder() -> Path:
    """Make a folder that only this user can enter, with a short path."""
    for parent in (os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir(), "/tmp"):
        if parent and len(os.fsencode(parent)) < MAX_SOCKET_BYTES - 40 and os.access(parent, os.W_OK):
            return Path(tempfile.mkdtemp(prefix="onward-", dir=parent))
    return Path(tempfile.mkdtemp(prefix="onward-"))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
