"""`onward doctor`: checks of this machine, and what to do about problems."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import socket
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from onward.cli.command import session_command
from onward.cli.hints import pip_install
from onward.cli.output.findings import Finding, shown
from onward.cli.output.formats import emit
from onward.cli.output.terminal import pluralize
from onward.cli.session import Session, session_of
from onward.errors import ModelNameError, OnwardError, SetupError
from onward.machine import available_memory, bytes_in_words, cpu_quota
from onward.models.registry import BUILT_IN, program
from onward.network import without_secrets

if TYPE_CHECKING:
    from onward.settings import Settings

MIN_FREE_MEMORY_BYTES = 1_000_000_000
MIN_FREE_DISK_BYTES = 1_000_000_000
MAX_DRAFT_SHARE = 0.5
"""A draft model that reads more than this fraction of its model's bytes per token seldom saves time."""
LOW_DISK_ADVICE = "Larger models will not fit."
_INSTRUCTIONS = (
    ("avx512_vnni", "AVX-512 with VNNI: fast int8"),
    ("avx_vnni", "AVX2 with VNNI: fast int8"),
    ("avx512f", "AVX-512"),
    ("avx2", "AVX2"),
    ("asimd", "NEON"),
)


def doctor(session: Session, server: str | None, api_key: str | None) -> None:
    if server is None:
        if api_key is not None:
            raise click.UsageError("--api-key is for --server URL: pass that too, or leave it out.")
        findings = [finding for check in CHECKS for finding in check()]
        verdict = f"Ready: {program()} completions create 'Once upon a time'"
    else:
        from onward.cli.server_findings import server_findings

        asked = session_of({"server": server, "api_key": api_key}).connection
        assert asked.base_url is not None
        findings, verdict = list(server_findings(asked.base_url, asked.api_key)), "The server answers."
    emit(session.output, {"findings": [each.as_object() for each in findings]}, lambda: shown(findings, verdict))
    if any(each.state == "bad" for each in findings):
        raise click.exceptions.Exit(1)


def _python() -> Iterator[Finding]:
    yield Finding("Python", "good", f"{platform.python_version()} on {platform.platform(terse=True)}")


def _packages() -> Iterator[Finding]:
    from onward.compose.engine import required_packages

    for name in required_packages():
        try:
            yield Finding(name, "good", importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            yield Finding(name, "bad", "is not installed", f"Install it: {pip_install()} {name}")


def _processor() -> Iterator[Finding]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    flags = _processor_flags()
    best = next((words for flag, words in _INSTRUCTIONS if flag in flags), None)
    quota = cpu_quota()
    limit = f"limited to {quota} by a quota" if quota is not None else None
    words = ", ".join(filter(None, (pluralize(cores, "core"), limit, best)))
    if flags and best is None:
        yield Finding("Processor", "note", words, "Without AVX2 models run, but slowly.")
    else:
        yield Finding("Processor", "good", words)


def _kernels() -> Iterator[Finding]:
    """Run the self-test of the kernels, whose code is compiled by the first run."""
    from onward.kernels.self_test import run_self_test
    from onward.kernels.targets import host

    try:
        problem = run_self_test().problem
    except SetupError as error:
        yield Finding("Kernels", "bad", "cannot run", str(error))
        return
    words = f"{host().isa.name}, self-test {'failed' if problem else 'passed'}"
    yield Finding("Kernels", "bad" if problem else "good", words, problem)


def _processor_flags() -> set[str]:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return set()
    lines = (line.partition(":") for line in text.splitlines())
    return {flag for name, _, flags in lines if name.strip() in ("flags", "Features") for flag in flags.split()}


def _memory() -> Iterator[Finding]:
    memory = available_memory()
    words = f"{bytes_in_words(memory.free_bytes)} free"
    if memory.limit_bytes is not None:
        words += f" within the limit of {bytes_in_words(memory.limit_bytes)} for this container or service"
    if memory.free_bytes >= MIN_FREE_MEMORY_BYTES:
        yield Finding("Memory", "good", words)
    elif memory.limit_bytes is None:
        yield Finding("Memory", "note", words, "Close other programs, or set --kv-memory to a small size.")
    else:
        yield Finding("Memory", "note", words, "Raise that limit, or set --kv-memory to a small size.")


def _disk(folder: Path) -> Finding:
    existing = next((path for path in (folder, *folder.parents) if os.path.exists(path)), Path())  # noqa: PTH110 - False where a folder may not be entered
    free = shutil.disk_usage(existing).free
    if not os.access(existing, os.W_OK):
        return Finding("Cache", "bad", f"{folder} is not writable", "Set --cache-dir to a writable folder.")
    words = f"{folder}, {bytes_in_words(free)} free"
    return (
        Finding("Cache", "good", words)
        if free >= MIN_FREE_DISK_BYTES
        else Finding("Cache", "note", words, LOW_DISK_ADVICE)
    )


def _prefix_cache(folder: Path, max_bytes: int) -> Finding:
    from onward.compose.engine import kept_prefixes

    if not folder.is_symlink() and not folder.exists():
        return Finding("Prefix cache", "good", f"{folder}, which does not exist yet")
    try:
        count, size = kept_prefixes(folder)
    except (SetupError, OSError) as problem:
        return Finding("Prefix cache", "bad", str(problem))
    words = f"{folder}, {pluralize(count, 'file')}, {bytes_in_words(size)} of {bytes_in_words(max_bytes)}"
    free = shutil.disk_usage(folder).free
    if not os.access(folder, os.W_OK):
        return Finding("Prefix cache", "note", words, "It is not writable: blocks are read, and none are written.")
    if free < MIN_FREE_DISK_BYTES:
        return Finding("Prefix cache", "note", words, f"Nothing is written: only {bytes_in_words(free)} are free.")
    return Finding("Prefix cache", "good", words)


def _settings() -> Iterator[Finding]:
    """Check the settings, and the cache folder and port they name. Unreadable settings are the only finding."""
    from onward.settings import adapted_models, resolve

    try:
        resolved = resolve()
    except SetupError as problem:
        yield Finding("Settings", "bad", str(problem))
        return
    changed = sum(origin != "default" for origin in resolved.origins.values())
    words = f"{changed} changed (`onward config show`)" if changed else "all at their defaults"
    if resolved.uses_found_file:
        words += ", with onward.toml of this folder"
    yield Finding("Settings", "good", words)
    yield from _without_effect(resolved.settings)
    yield _disk(resolved.settings.cache_dir)
    if resolved.settings.prefix_cache_dir is not None:
        yield _prefix_cache(resolved.settings.prefix_cache_dir, resolved.settings.prefix_cache_disk)
    yield _port(resolved.settings.port)
    drafting = _drafting_for_themselves(resolved.settings)
    for name in resolved.settings.model:
        if name not in BUILT_IN:
            yield _configured(name, resolved.settings, drafts=name in drafting)
    if resolved.settings.draft:
        yield from _drafts(resolved.settings)
    for name, word in adapted_models(resolved.settings).items():
        yield _adapter(name, word, resolved.settings.cache_dir)


def _without_effect(settings: Settings) -> Iterator[Finding]:
    """Report the settings with which `onward serve` does not start, because nothing would act on them."""
    from onward.compose.unused import refuse_unused

    try:
        refuse_unused(settings, is_server=True)
    except SetupError as problem:
        yield Finding("Settings", "bad", str(problem))


def _drafts(settings: Settings) -> Iterator[Finding]:
    """Compare the tokens of each draft model with those of its model, and look for the layers of --draft mtp."""
    from onward.compose.drafts import PREDICTOR, draft_words, require_predictor, require_same_tokens
    from onward.models.resolve import resolve
    from onward.settings import model_named

    try:
        words = draft_words(settings)
    except SetupError as problem:
        yield Finding("Drafts", "bad", str(problem))
        return
    for name, word in words.items():
        try:
            found = resolve(model_named(name, settings), allow_download=False, cache_dir=settings.cache_dir)
            if word == PREDICTOR:
                require_predictor(found)
                yield Finding(word, "good", f"drafts for {name}: its layers that predict several tokens at once")
                continue
            draft = resolve(word, allow_download=False, cache_dir=settings.cache_dir)
            tokenizer = found.files.load_tokenizer(settings.cache_dir)
            require_same_tokens(replace(found, draft=draft), tokenizer, settings.cache_dir)
        except (OnwardError, OSError) as problem:
            yield _unusable(word, problem)
            continue
        read = draft.files.bytes_per_token()
        shares = read / max(1, found.files.bytes_per_token())
        words_of_size = f"reads {bytes_in_words(read)} per token, {shares:.0%} of {found.id}"
        advice = "" if shares <= MAX_DRAFT_SHARE else "Drafts save time where the model that drafts is much smaller."
        yield Finding(word, "note" if advice else "good", f"drafts for {name}: {words_of_size}", advice)


def _drafting_for_themselves(settings: Settings) -> set[str]:
    """Return the models that have --draft mtp; none where the settings contradict each other."""
    from onward.compose.drafts import PREDICTOR, draft_words
    from onward.settings import model_named

    try:
        return {model_named(name, settings) for name, word in draft_words(settings).items() if word == PREDICTOR}
    except SetupError:
        return set()


def _unusable(name: str, problem: Exception) -> Finding:
    """Return the finding of a draft model or an adapter with which no server starts, unless it can be fetched first."""
    return Finding(name, "note" if isinstance(problem, ModelNameError) else "bad", str(problem))


def _count(number: int) -> str:
    return f"{number / 1e9:.1f} billion" if number >= 1e9 else f"{number / 1e6:.1f} million"


def _configured(name: str, settings: Settings, *, drafts: bool) -> Finding:
    """Report what to expect of a model that the settings name: the size of its files, and the parameters that a token
    uses. `drafts`: whether its layers are loaded that only draft."""
    from onward.models.resolve import resolve

    try:
        files = resolve(name, allow_download=False, cache_dir=settings.cache_dir).files
        facts, size = files.facts(), sum(path.stat().st_size for path in files.paths())
    except (OnwardError, OSError) as problem:
        return Finding(name, "note", str(problem))
    words, free = f"{bytes_in_words(size)} of files", available_memory().free_bytes
    if isinstance(unused := facts.get("drafting_bytes"), int) and not drafts:
        words += f" ({bytes_in_words(unused)} of which are not loaded, because only --draft mtp uses them)"
        size -= unused
    total, active = (facts.get(name) for name in ("parameters", "active_parameters"))
    if isinstance(total, int) and isinstance(active, int):
        words += f", {_count(total)} parameters, of which a token uses {_count(active)} ({facts['experts']} experts)"
    is_exact = "exact" in (settings.weights, settings.precision)
    form = "exact_" if is_exact else "int4_" if settings.weights == "int4" else ""
    if isinstance(memory := facts.get(f"{form}memory_bytes"), int):
        words += f" in FP8, {bytes_in_words(memory)} of memory"
        size = memory
    if isinstance(state := facts.get("state_bytes"), int):
        words += f", {bytes_in_words(state)} of state for each sequence"
    if size <= free:
        return Finding(name, "good", words)
    larger = f"{words}: more than the {bytes_in_words(free)} of memory that are free"
    if "parameters" in facts:
        return Finding(
            name, "note", larger, "Experts that do not fit are read from the file when a step uses them, which is slow."
        )
    return Finding(name, "note", larger, "Layers that do not fit are read from the file at each step, which is slow.")


def _adapter(name: str, word: str, cache_dir: Path) -> Finding:
    """Report whether an adapter that the settings name fits its base."""
    from onward.models.resolve import resolve

    try:
        found = resolve(word, allow_download=False, cache_dir=cache_dir)
    except (OnwardError, OSError) as problem:
        return _unusable(name, problem)
    return Finding(name, "good", f"a LoRA adapter that fits {found.base_id}, whose weights it shares")


def _models() -> Iterator[Finding]:
    from onward.models.check import problems
    from onward.models.resolve import built_in_folder

    for name in BUILT_IN:
        found = problems(built_in_folder(name))
        yield Finding(name, "bad" if found else "good", " ".join(found) or "built in, complete")


def _port(port: int) -> Finding:
    with socket.socket() as probe:
        probe.settimeout(0.5)
        taken = port != 0 and probe.connect_ex(("127.0.0.1", port)) == 0
    advice = "A server may already be running; `onward serve --port 0` picks a free port." if taken else ""
    return Finding("Port", "note" if taken else "good", f"{port} is {'in use' if taken else 'free'}", advice)


def _engines() -> Iterator[Finding]:
    """Look for the programs of --engine: none is needed."""
    from onward.engines.programs.kinds import KINDS

    found = {kind.title: kind.installed for kind in KINDS.values()}
    there = ", ".join(f"{title} ({' '.join(command)})" for title, command in found.items() if command)
    missing = ", ".join(title for title, command in found.items() if not command)
    absent = f"not installed, and not needed: {missing}" if missing else ""
    yield Finding("Other engines", "good", "; ".join(filter(None, (there, absent))))


def _environment() -> Iterator[Finding]:
    for name in ("ONWARD_BASE_URL", "OPENAI_BASE_URL"):
        if value := os.environ.get(name):
            advice = f"`completions create` uses that server; unset {name} to run in this process."
            yield Finding(name, "note", without_secrets(value), advice)
    encoding = (sys.stdout.encoding or "").lower()
    if encoding not in ("utf-8", "utf8"):
        yield Finding(
            "Terminal", "note", f"encodes output as {encoding}", "Set LANG=C.UTF-8, or some characters cannot be shown."
        )


CHECKS = (_python, _packages, _processor, _kernels, _memory, _models, _engines, _environment, _settings)
"""In the order of the report."""

HELP = """Check this machine, or a running server: what works, what is missing, and what to do about it.

Prints a report on a terminal and JSON elsewhere; --format text prints the report everywhere. The exit code is 1 if
something is wrong.
"""

PARAMETERS = (
    click.Option(
        ["--server"],
        metavar="URL",
        help="Ask the server there how it is: version, clock, certificates, models, queues, memory, restarts.",
    ),
    click.Option(["--api-key"], metavar="KEY", help="API key for --server.  [OPENAI_API_KEY]"),
)

command = session_command("doctor", doctor, HELP, PARAMETERS, can_connect=False, example="findings.0.words")
