"""Models whose engine is another server: their tokenizer is on this machine, and every token is computed there."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Callable, Coroutine
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onward.errors import HubUnreachable, ModelNameError, SetupError, TextNotEncodable
from onward.model_files.base import ModelFiles, Progress
from onward.model_files.formats import files_at
from onward.model_files.gguf import GGUFFiles
from onward.model_files.safetensors import TokenizerFolder
from onward.models.gguf_metadata import fetch_metadata, kept_metadata
from onward.models.hub import HubName, fetch_tokenizer
from onward.models.resolve import ResolvedModel, name_on_hub, named_path, resolve
from onward.settings import UPSTREAM_KINDS, Settings, UpstreamName

if TYPE_CHECKING:
    from onward.engine.model import Tokenizer
    from onward.engines.upstreams.base import Upstream, UpstreamInfo
    from onward.engines.upstreams.engine import UpstreamEngine

BATCH_INVARIANT = "_batch_invariant"
"""In fingerprints of vLLM in the mode in which it computes the same bits whatever else it computes."""
PROBE_TEXT = "Hello, world! 1234 été – naïve\n\n  def f(x):\n\treturn x*2 # 日本語 😀"
"""Tokenized by both sides: an upstream with another vocabulary is refused before it computes nonsense."""


def resolve_tokenizer(upstream: UpstreamName, settings: Settings, progress: Progress) -> ResolvedModel:
    """Return the model that an upstream's tokenizer comes from, under the upstream's name. Asks the upstream for its
    model's file where the settings do not say. Raises SetupError."""
    word = dict(settings.tokenizer).get(upstream.name) or _file_of(upstream, settings)
    return replace(with_tokenizer(word, settings, progress), id=upstream.name)


def with_tokenizer(word: str, settings: Settings, progress: Progress) -> ResolvedModel:
    """Return a model of which only the tokenizer is read: Onward need not be able to compute it, and of one on the hub
    nothing else is downloaded. Raises SetupError."""
    folder, hub = named_path(word), name_on_hub(word)
    if files_at(folder) is None and TokenizerFolder.matches(folder):
        return ResolvedModel(TokenizerFolder(folder), word, "folder")
    if hub is not None and not folder.exists():
        progress(f"Looking for the tokenizer of {hub.repository} in the local cache and on the hub")
        if (found := _tokenizer_on_hub(hub, settings, progress)) is not None:
            return ResolvedModel(found, word, "hub")
    return resolve_model(word, settings, progress, must_be_computed=False)


def resolve_model(word: str, settings: Settings, progress: Progress, *, must_be_computed: bool = True) -> ResolvedModel:
    """Return a model by its name in the settings; see `models.resolve.resolve`. May download. Raises SetupError."""
    return resolve(
        word,
        allow_download=not settings.offline,
        progress=progress,
        cache_dir=settings.cache_dir,
        must_be_computed=must_be_computed,
    )


def _tokenizer_on_hub(hub: HubName, settings: Settings, progress: Progress) -> ModelFiles | None:
    """Return files with the tokenizer of a repository and no weights: its own, or the metadata of a GGUF file. None
    where it has neither. Raises ModelNameError, CheckpointError."""
    kept = kept_metadata(hub, settings.cache_dir)
    try:
        if not hub.file:
            folder = fetch_tokenizer(hub, allow_download=not settings.offline)
            if TokenizerFolder.matches(folder):
                return TokenizerFolder(folder)
    except ModelNameError:
        if kept is None:
            raise
    try:
        found = kept if settings.offline else fetch_metadata(hub, settings.cache_dir, progress)
    except HubUnreachable:
        found = kept
    return None if found is None else GGUFFiles(found)


def connect(upstream: UpstreamName, tokenizer: Tokenizer, settings: Settings, on_failure: ExitStack) -> UpstreamEngine:
    """Return the engine of a model, connected; `on_failure` stops it. Raises SetupError."""
    from onward.engines.upstreams.engine import UpstreamEngine

    engine = UpstreamEngine(
        upstream.name,
        lambda: _connections(upstream, settings),
        tokenizer,
        context_length=settings.context_length or None,
        max_rows=settings.max_rows,
        wait_seconds=settings.engine_wait,
        fingerprint=fingerprint_of,
    )
    on_failure.callback(engine.stop)
    engine.connect(tokenizer_check(upstream.name, tokenizer))
    return engine


def tokenizer_check(
    name: str, tokenizer: Tokenizer, hint: str = ""
) -> Callable[[str, Upstream], Coroutine[Any, Any, None]]:
    """Return what raises UpstreamError for an upstream of the model `name` with another tokenizer. `hint`: what to do;
    by default to name another one for Onward. Raises SetupError. Not on an event loop: the tokenizer may be a process.
    """
    from onward.engines.upstreams.base import UpstreamError

    try:
        expected = tokenizer.encode(PROBE_TEXT, add_special_tokens=False)
    except TextNotEncodable as error:
        raise SetupError(f"The tokenizer of {name} cannot be used: {error}.") from None

    async def check(url: str, connected: Upstream) -> None:
        if await connected.encode(PROBE_TEXT) != expected:
            usual = f"pass --tokenizer {name}=MODEL with the model that {url} serves"
            raise UpstreamError(f"its tokenizer is not that of {name}: {hint or usual}.")

    return check


def upstream_at(url: str, kind: str, key: str | None, settings: Settings, *, has_grammars: bool = False) -> Upstream:
    """Return a connection to a server of a kind in UPSTREAM_KINDS. `has_grammars`: whether llguidance keeps to grammars
    there."""
    from onward.engines.upstreams.connection import Connection
    from onward.engines.upstreams.llama_server import LlamaServer
    from onward.engines.upstreams.sglang import SGLang
    from onward.engines.upstreams.vllm import VLLM

    vllm = partial(VLLM, has_grammars=has_grammars)
    kinds: dict[str, Callable[[Connection], Upstream]] = {"llama": LlamaServer, "vllm": vllm, "sglang": SGLang}
    return kinds[kind](Connection(url, key, settings.engine_timeout))


def _connections(upstream: UpstreamName, settings: Settings) -> dict[str, Upstream]:
    """Return a connection to each address of a model."""
    return {url: upstream_at(url, upstream.kind, settings.upstream_key, settings) for url in upstream.urls}


def _file_of(upstream: UpstreamName, settings: Settings) -> str:
    """Return the path of the upstream's model file, if it is found here: llama-server names it as it was started with,
    perhaps from the current folder, the others may name a repository of the hub. Raises SetupError."""
    named = asyncio.run(_described(upstream, settings)).model_path
    path = Path(named)
    may_be_here = path.is_absolute() or (upstream.kind == "llama" and named)
    with suppress(OSError):  # a folder that this user may not enter
        if may_be_here and path.exists() and files_at(path) is not None:
            return str(path.absolute())
    raise SetupError(
        f"{upstream.name} needs a tokenizer: pass --tokenizer {upstream.name}=MODEL with the model that the "
        f"{UPSTREAM_KINDS[upstream.kind]} at {upstream.urls[0]} serves ({named or 'its file'} is not found here)."
    )


async def _described(upstream: UpstreamName, settings: Settings) -> UpstreamInfo:
    """Ask the addresses of a model what they serve, until one answers. Raises SetupError."""
    from onward.engines.upstreams.base import UpstreamError

    reasons = []
    for connected in _connections(upstream, settings).values():
        try:
            return await connected.probe()
        except UpstreamError as error:
            reasons.append(str(error))
        finally:
            await connected.close()
    raise SetupError(f"The engine of {upstream.name} cannot be used: {reasons[0]}")


def fingerprint_of(description: str, mode: str = "") -> str:
    """Return `system_fingerprint`: it names whose engine it is, and in which `mode`, and changes with what the upstream
    says of itself."""
    kind = description.partition(" ")[0].replace("-", "_") + mode
    return f"fp_{kind}_" + hashlib.blake2b(description.encode(), digest_size=6).hexdigest()


def promises_bytes(fingerprint: str) -> bool:
    """Return whether the same request and seed have the same bytes wherever the fingerprint is this one. Results of
    other servers' engines depend on what else they compute, those of vLLM in its batch-invariant mode do not."""
    found = re.fullmatch(r"fp_([a-z]\w*)_[0-9a-f]+", fingerprint)
    return found is None or found[1].endswith(BATCH_INVARIANT)
