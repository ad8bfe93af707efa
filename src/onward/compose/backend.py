"""From Settings to a Backend: which models are served under which names, and by what kind of engine client."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Container
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from onward.compose.engine import EngineConfig, drop_loading_pages, kernels_loading, load_model, make_engine
from onward.compose.programs import kind_of, resolve_for_program, start_program, wanted_engines
from onward.compose.upstreams import connect, resolve_tokenizer
from onward.errors import ModelFolderError, SetupError
from onward.machine import address_space_limit
from onward.model_files.base import Progress
from onward.model_files.files import rows_problem
from onward.model_files.vocabulary import PackedVocabulary
from onward.models.registry import BUILT_IN, REAL_MODEL, listed_models
from onward.models.resolve import ResolvedModel, resolve
from onward.residency import trim_heap
from onward.runtimes.base import LoadedModel
from onward.settings import (
    OPENAI_NAMES,
    Settings,
    UpstreamName,
    adapted_models,
    model_named,
    served_names,
    upstream_of,
    upstreams_of,
)

if TYPE_CHECKING:
    from onward.backends.embedded import EmbeddedBackend
    from onward.completions.filters import ContentFilters
    from onward.engine.client import EngineClient
    from onward.engine.model import Tokenizer
    from onward.engines.child.child import SpareProcess

WORKER = (sys.executable, "-P", "-m", "onward.compose.worker")
"""The program of an engine's process. -P: a folder named onward in the working directory is not imported."""


MIN_ADDRESS_SPACE_BYTES = 1 << 29
"""What libraries and threads reserve before a model is loaded. With less, an import fails wherever it happens to be,
with any of Python's errors; with more, too little memory for a model is found where it is allocated."""


class Served(NamedTuple):
    """A model whose engine is ready."""

    found: ResolvedModel
    tokenizer: Tokenizer
    engine: EngineClient


def compose(
    settings: Settings,
    progress: Progress = lambda message: None,
    *,
    own_process: bool = False,
    spare: SpareProcess | None = None,
) -> EmbeddedBackend:
    """Load every model and create its engine: in a thread, or with `own_process` in a process each, unless the settings
    say otherwise. Slow; blocks. `progress` receives a sentence at each stage, on any thread.

    `own_process`: nothing else runs in this process, so file pages that only loading needed may be dropped.
    `spare`: that of `spare_process`.

    Raises SetupError, which names the model and what to do; models that were loaded before are closed.
    """
    filters = _filters(settings)
    if settings.cluster is not None:
        if settings.engine:
            raise SetupError(
                "--engine does not apply to --cluster: the cluster's settings say what computes its models."
            )
        return _compose_cluster(settings, filters, progress)
    wanted = wanted_engines(settings)
    models = _resolve_all(settings, progress, wanted)
    aliases = _aliases(settings, models)
    upstreams = _upstreams(settings)
    kinds = {name: kind for name, word in wanted.items() if (kind := kind_of(word, models[name], progress))}
    tokenizers = {name: models[name].files.load_tokenizer(settings.cache_dir) for name in kinds}
    local = {name: found for name, found in models.items() if name not in upstreams and name not in kinds}
    if local:
        _require_address_space()
    with ExitStack() as on_failure:
        if own_process and settings.engine_process == "on":
            served = _start_processes(settings, local, progress, on_failure, spare)
        elif local:
            may_drop = own_process and not _has_foreign_code(settings)
            served = _start_threads(settings, local, progress, on_failure, drop_pages=may_drop)
        else:
            served = []
        served += _connect(settings, upstreams, models, progress, on_failure)
        for name, kind in kinds.items():
            found, tokenizer = models[name], tokenizers[name]
            engine = start_program(kind, found, tokenizer, settings, progress, on_failure)
            served.append(Served(found, tokenizer, engine))
        by_id = {one.found.id: one for one in served}
        on_failure.pop_all()  # from here on the backend owns the engines
    return _backend(settings, [by_id[found.id] for found in models.values()], aliases, filters)


def _require_address_space() -> None:
    """Raise SetupError if the limit of this process, which engines' processes inherit, leaves no room for an engine."""
    limit = address_space_limit()
    if limit is not None and limit < MIN_ADDRESS_SPACE_BYTES:
        raise SetupError(
            f"This process may use {limit >> 20} MiB of memory, and an engine needs at least "
            f"{MIN_ADDRESS_SPACE_BYTES >> 20} MiB before its model is loaded: raise the limit (ulimit -v)."
        )


def _compose_cluster(settings: Settings, filters: ContentFilters | None, progress: Progress) -> EmbeddedBackend:
    """Return the backend over the replicas of a cluster. Raises SetupError."""
    from onward.compose.cluster import connect_models

    with ExitStack() as on_failure:
        served = [Served(*each) for each in connect_models(settings, progress, on_failure)]
        models = {one.found.id: one.found for one in served}
        settings = replace(settings, model=tuple(models))
        backend = _backend(settings, served, _aliases(settings, models), filters)
        on_failure.pop_all()
    return backend


def start_engine(settings: Settings, progress: Progress, on_failure: ExitStack) -> Served:
    """Return the one model of the settings with its engine, whose `EngineClient.start` was not called yet;
    `on_failure` stops it. Raises SetupError."""
    wanted = wanted_engines(settings)
    models = _resolve_all(settings, progress, wanted)
    [(name, found)] = models.items()
    if name in wanted and (kind := kind_of(wanted[name], found, progress)):
        tokenizer = found.files.load_tokenizer(settings.cache_dir)
        return Served(found, tokenizer, start_program(kind, found, tokenizer, settings, progress, on_failure))
    _require_address_space()
    if settings.engine_process == "on":
        return _start_processes(settings, models, progress, on_failure, None)[0]
    return _start_threads(settings, models, progress, on_failure, drop_pages=False)[0]


def spare_process(settings: Settings) -> AbstractContextManager[SpareProcess | None]:
    """Start the process of the first engine, if `compose` will use one, so that it imports while the caller does.

    Call it on the main thread; what `compose` did not take ends with the context. Raises SetupError.
    """
    if settings.engine_process == "off" or settings.cluster:
        return nullcontext()
    elsewhere = _upstreams(settings).keys() | wanted_engines(settings).keys()
    if elsewhere.issuperset(served_names(settings)):
        return nullcontext()
    from onward.engines.child.child import SpareProcess

    return SpareProcess(WORKER)


def load_tokenizer(model: str | None, settings: Settings, progress: Progress = lambda message: None) -> Tokenizer:
    """Load the tokenizer alone of `model`, a name, path or alias (None: the first of the settings). Blocks.

    Raises SetupError.
    """
    name = model or settings.model[0]
    word = model_named(name, settings)
    upstream = upstreams_of(settings).get(word) or upstream_of(word)
    found = resolve_tokenizer(upstream, settings, progress) if upstream else _resolve(word, settings, progress)
    return found.files.load_tokenizer(settings.cache_dir)


def _resolve(name: str, settings: Settings, progress: Progress) -> ResolvedModel:
    return resolve(name, allow_download=not settings.offline, progress=progress, cache_dir=settings.cache_dir)


def _resolve_all(settings: Settings, progress: Progress, elsewhere: Container[str]) -> dict[str, ResolvedModel]:
    """Return the models of the settings, by the names used there. May download; Onward need not be able to compute
    those in `elsewhere`. Raises SetupError, also for a name or an id that is repeated."""
    for name in settings.model:
        if settings.model.count(name) > 1:
            raise SetupError(f"The model {name!r} is listed twice; pass it once.")
    models: dict[str, ResolvedModel] = {}
    upstreams = upstreams_of(settings)
    for name in served_names(settings):
        upstream = upstreams.get(name)
        if upstream is not None:
            found = resolve_tokenizer(upstream, settings, progress)
        else:
            found = (resolve_for_program if name in elsewhere else _resolve)(name, settings, progress)
        if any(found.id == other.id for other in models.values()):
            raise SetupError(f"Two models are named {found.id!r}: rename one of their folders.")
        models[name] = found
    for name, target in adapted_models(settings).items():
        if name in models or any(name == other.id for other in models.values()):
            raise SetupError(f"--lora {name}=… has the name of a model: choose another one.")
        models[name] = replace(_resolve(target, settings, progress), id=name)
    return models


def _upstreams(settings: Settings) -> dict[str, UpstreamName]:
    """Return the models whose engine is another server, by name. Raises SetupError."""
    upstreams = upstreams_of(settings)
    for name, _ in settings.tokenizer:
        if name not in upstreams:
            raise SetupError(f"--tokenizer {name}=… is for a model NAME=KIND+URL that another server computes.")
    return upstreams


def _connect(
    settings: Settings,
    upstreams: dict[str, UpstreamName],
    models: dict[str, ResolvedModel],
    progress: Progress,
    on_failure: ExitStack,
) -> list[Served]:
    """Connect to the servers that are engines; `on_failure` closes the connections. Raises SetupError."""
    served: list[Served] = []
    for name, upstream in upstreams.items():
        progress(f"Connecting to {', '.join(upstream.urls)} for {name}")
        found = models[name]
        tokenizer = found.files.load_tokenizer(settings.cache_dir)
        served.append(Served(found, tokenizer, connect(upstream, tokenizer, settings, on_failure)))
    return served


def _start_processes(
    settings: Settings,
    models: dict[str, ResolvedModel],
    progress: Progress,
    on_failure: ExitStack,
    spare: SpareProcess | None,
) -> list[Served]:
    """Start a process per model; `on_failure` stops them. Raises SetupError.

    One after the other: each takes its share of the memory that is free.
    """
    from onward.engines.child.child import ChildLauncher
    from onward.engines.child.supervised import SupervisedEngine

    served: list[Served] = []
    for name, found in models.items():
        progress(f"Loading {name}")
        payload = EngineConfig.create(found, settings).encode()
        described: Future[bytes] = Future()
        launcher = ChildLauncher(WORKER, payload, described.result, found.id, progress, spare)
        engine = SupervisedEngine(launcher, name=found.id, engine_timeout=settings.engine_timeout)
        on_failure.callback(engine.stop)
        engine.begin()
        tokenizer = _describe(found, settings, described)  # while the process loads the model
        engine.wait_until_ready()
        served.append(Served(found, tokenizer, engine))
    trim_heap()
    return served


def _describe(found: ResolvedModel, settings: Settings, described: Future[bytes]) -> Tokenizer:
    """Load the tokenizer of a model, and set `described` to its vocabulary for the engine's process."""
    try:
        tokenizer = found.files.load_tokenizer(settings.cache_dir)
        described.set_result(PackedVocabulary.create(tokenizer).encode())
    except BaseException as error:
        described.set_exception(error)
        raise
    return tokenizer


def _start_threads(
    settings: Settings,
    models: dict[str, ResolvedModel],
    progress: Progress,
    on_failure: ExitStack,
    *,
    drop_pages: bool,
) -> list[Served]:
    """Load the models into this process; `on_failure` closes them. Raises SetupError."""
    from onward.engine.thread import EngineThread

    loaded: list[tuple[ResolvedModel, EngineConfig, LoadedModel, Tokenizer]] = []
    with kernels_loading(progress) as kernels_loaded, ThreadPoolExecutor(1, "onward-tokenizers") as executor:
        for name, found in models.items():
            progress(f"Loading {name}")
            config = EngineConfig.create(found, settings)
            loading = executor.submit(found.files.load_tokenizer, settings.cache_dir)
            model = load_model(config, progress)
            on_failure.callback(model.model.close)
            loaded.append((found, config, model, loading.result()))
        kernels_loaded()
    trim_heap()
    if drop_pages:
        drop_loading_pages([found.files for found in models.values()])
    served: list[Served] = []
    for found, config, model, tokenizer in loaded:
        engine, info = make_engine(config, model, tokenizer, partial(_kept, tokenizer))
        client = EngineThread(engine, name=found.id, fingerprint=info.fingerprint)
        served.append(Served(found, tokenizer, client))
    return served


def _kept(tokenizer: Tokenizer) -> Tokenizer:
    """Return a tokenizer that is loaded, where a function that loads it is wanted."""
    return tokenizer


def _require_rows(found: ResolvedModel, tokenizer: Tokenizer, vocab_size: int) -> None:
    """Raise ModelFolderError for tokens that the model has no rows for."""
    texts = {
        token: tokenizer.token_bytes(token).decode("utf-8", "replace") for token in range(vocab_size, tokenizer.size)
    }
    if problem := rows_problem(str(found.path), texts, vocab_size):
        raise ModelFolderError(problem)


def _backend(
    settings: Settings, served: list[Served], aliases: dict[str, str], filters: ContentFilters | None
) -> EmbeddedBackend:
    """Return the backend over engines that are ready."""
    from onward.backends.backlog import Backlog
    from onward.backends.embedded import EmbeddedBackend, EmbeddedModel
    from onward.completions.limits import RequestLimits
    from onward.completions.plan import ServedModel

    by_id: dict[str, EmbeddedModel] = {}
    for found, tokenizer, engine in served:
        info = engine.info
        _require_rows(found, tokenizer, info.vocab_size)
        plan_model = ServedModel.create(found.id, tokenizer, info.vocab_size, info.context_length, info.lacks)
        by_id[found.id] = EmbeddedModel(
            plan_model,
            engine,
            partial(_filtered, settings),
            filters,
            Backlog(settings.max_waiting, settings.max_waiting_memory),
            settings.max_wait,
        )
    names = [*served_names(settings), *adapted_models(settings)]
    ids = dict(zip(names, (found.id for found, _, _ in served), strict=True))
    first = next(iter(by_id))
    taken = by_id.keys() | ids.keys() | aliases.keys()
    openai_names = {name: first for name in OPENAI_NAMES if settings.openai_names and name not in taken}
    return EmbeddedBackend(
        by_id,
        listed_models({found.id: found.created for found, _, _ in served}, aliases, openai_names),
        ids | aliases | openai_names,
        limits=RequestLimits.create(settings),
        any_name=settings.profile == "lenient",
        stand_ins={name: _stands_in(name, first) for name in openai_names} if first in BUILT_IN else {},
    )


def _stands_in(name: str, model: str) -> str:
    return f"{model}, the small built-in model, answers in place of {name}. {REAL_MODEL}"


def _has_foreign_code(settings: Settings) -> bool:
    """Return whether a content filter is the operator's own code, which may have threads that do anything."""
    return any(each.entry_point is not None for each in settings.content_filter)


def _filters(settings: Settings) -> ContentFilters | None:
    """Return the content filters of the settings, None without any. Raises SetupError, before a model is loaded."""
    if not settings.content_filter:
        return None
    from onward.completions.filters import make_filters

    return make_filters(settings.content_filter)


def _aliases(settings: Settings, models: dict[str, ResolvedModel]) -> dict[str, str]:
    """Return model ids by alias. Raises SetupError for an alias of no model or with the name of one."""
    served = {model.id for model in models.values()}
    aliases: dict[str, str] = {}
    for alias, target in settings.alias:
        model_id = models[target].id if target in models else target
        if model_id not in served:
            raise SetupError(
                f"The alias {alias}={target} names a model that is not served. The served models are: "
                f"{', '.join(sorted(served))}."
            )
        if alias in served:
            raise SetupError(f"The alias {alias!r} is already the name of a model.")
        aliases[alias] = model_id
    return aliases


def _filtered(settings: Settings, fingerprint: str) -> str:
    """Return the fingerprint, or a different one for each set of content filters, which change the text. It still names
    whose engine computes."""
    if not settings.content_filter:
        return fingerprint
    return (
        fingerprint.rpartition("_")[0]
        + "_"
        + hashlib.blake2b(f"{fingerprint} {settings.content_filter}".encode(), digest_size=6).hexdigest()
    )
