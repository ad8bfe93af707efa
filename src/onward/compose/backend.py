"""From Settings to a Backend: which models are served under which names, and by what kind of engine client."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from importlib import import_module
from itertools import chain, repeat
from pathlib import Path
from typing import TYPE_CHECKING

from onward.compose.drafts import draft_of, refuse_drafts, require_same_tokens, with_drafts
from onward.compose.engine import (
    EngineConfig,
    LoadedModels,
    drop_loading_pages,
    kernels_loading,
    load_models,
    make_engine,
)
from onward.compose.programs import ONWARD, engine_of, kind_of, start_program
from onward.compose.served import Served, make_backend, make_filters, model_names
from onward.compose.unused import refuse_unused
from onward.compose.upstreams import connect, resolve_model, resolve_tokenizer, with_tokenizer
from onward.errors import SetupError
from onward.machine import address_space_limit
from onward.model_files.base import Progress
from onward.model_files.vocabulary import PackedVocabulary
from onward.models.resolve import ResolvedModel
from onward.residency import trim_heap
from onward.settings import (
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
    from onward.engine.model import Tokenizer
    from onward.engines.child.child import SpareProcess
    from onward.engines.child.link import EngineLink, Launch, OnLost, OnReport

MIN_ADDRESS_SPACE_BYTES = 1 << 29
"""The address space that libraries and threads reserve before a model is loaded. With less, an import fails at an
arbitrary point, with any of Python's errors; with more, a lack of memory for the model is found where it is
allocated."""


def _ignore(message: str) -> None:
    pass


def compose(
    settings: Settings,
    progress: Progress = _ignore,
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
    filters = make_filters(settings)
    model_folders(settings)
    if settings.cluster is not None:
        if settings.engine:
            raise SetupError(
                "--engine does not apply to --cluster: the cluster's settings say what computes its models."
            )
        refuse_unused(settings, is_server=own_process)
        return _compose_cluster(settings, filters, progress)
    refuse_unused(settings, is_server=own_process)
    models = resolve_models(settings, progress)
    names, upstreams = model_names(settings, models), named_upstreams(settings)
    with ExitStack() as on_failure:
        served = start_engines(
            settings, models, upstreams, progress, on_failure,
            in_processes=own_process and settings.engine_process == "on", spare=spare,
            drop_pages=own_process and not _has_foreign_code(settings),
        )  # fmt: skip
        return make_backend(settings, served, names, filters, on_failure)


def model_folders(settings: Settings) -> tuple[Path, ...]:
    """Return the folders that models may be added from while a server runs, without links. Raises SetupError."""
    if settings.model_folder and settings.cluster is not None:
        raise SetupError("--model-folder does not apply to --cluster: put models into cluster.toml.")
    for folder in settings.model_folder:
        if not folder.is_dir():
            raise SetupError(f"--model-folder {folder} is not a folder.")
    return tuple(folder.resolve() for folder in settings.model_folder)


def start_engines(
    settings: Settings,
    models: dict[str, ResolvedModel],
    upstreams: dict[str, UpstreamName],
    progress: Progress,
    on_failure: ExitStack,
    *,
    in_processes: bool,
    drop_pages: bool = False,
    must_fit: bool = False,
    spare: SpareProcess | None = None,
) -> list[Served]:
    """Return models, in their order, with their engines: the servers of `upstreams`, the programs that
    --engine names, and for all others Onward's own, one for a model and all its adapters. `on_failure` stops them.
    Slow; blocks. Raises SetupError.

    `drop_pages`: of files that only loading needed; no engine may run in this process yet. `must_fit`: weights that
    would have to be read from the file at each step are refused.
    """
    kinds = {
        name: kind
        for name, found in models.items()
        if name not in upstreams and (kind := kind_of(engine_of(name, settings), found, progress))
    }
    refuse_drafts(models, kinds)
    tokenizers = {name: models[name].files.load_tokenizer(settings.cache_dir) for name in kinds}
    local = {name: found for name, found in models.items() if name not in upstreams and name not in kinds}
    served: list[Served] = []
    if local:
        _require_address_space()
        if in_processes:
            served = _start_processes(settings, by_base(local), progress, on_failure, spare, must_fit=must_fit)
        else:
            served = _start_threads(
                settings, by_base(local), progress, on_failure, drop_pages=drop_pages, must_fit=must_fit
            )
    for name, upstream in upstreams.items():
        progress(f"Connecting to {', '.join(upstream.urls)} for {name}")
        tokenizer = models[name].files.load_tokenizer(settings.cache_dir)
        served.append(Served(models[name], tokenizer, connect(upstream, tokenizer, settings, on_failure)))
    for name, kind in kinds.items():
        found, tokenizer = models[name], tokenizers[name]
        served.append(Served(found, tokenizer, start_program(kind, found, tokenizer, settings, progress, on_failure)))
    for found in models.values():
        found.release()
    trim_heap()
    by_id = {one.found.id: one for one in served}
    return [by_id[found.id] for found in models.values()]


Groups = Mapping[str, Sequence[ResolvedModel]]
"""The models of each engine, which differ in their adapters, by the name of the first."""


def by_base(models: Mapping[str, ResolvedModel]) -> Groups:
    """Return models in the groups that one engine computes."""
    groups: dict[Path, tuple[str, list[ResolvedModel]]] = {}
    for name, found in models.items():
        groups.setdefault(found.path.absolute(), (name, []))[1].append(found)
    return dict(groups.values())


def _has_foreign_code(settings: Settings) -> bool:
    """Return whether a content filter is the operator's own code, which may have threads that do anything."""
    return any(each.entry_point is not None for each in settings.content_filter)


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
        return make_backend(settings, served, model_names(settings, models), filters, on_failure)


def start_engine(settings: Settings, progress: Progress, on_failure: ExitStack, *, threads: int = 0) -> Served:
    """Return the one model of the settings with its engine, whose `EngineClient.start` was not called yet;
    `on_failure` stops it. `threads`: of an engine of which that can be set, unless the settings do. Raises
    SetupError."""
    refuse_unused(settings, is_server=True)
    settings = replace(settings, threads=settings.threads or threads)
    models = resolve_models(settings, progress)
    if any(found.adapter is not None for found in models.values()):
        raise SetupError("Replicas have no adapters: merge the adapter into the model, or serve it without a cluster.")
    [served] = start_engines(settings, models, {}, progress, on_failure, in_processes=settings.engine_process == "on")
    return served


def load_tokenizer(model: str | None, settings: Settings) -> Tokenizer:
    """Load the tokenizer alone of `model`, a name, path or alias (None: the first of the settings). Blocks. Raises
    SetupError."""
    name = model or settings.model[0]
    word = model_named(name, settings)
    upstream = upstreams_of(settings).get(word) or upstream_of(word)
    found = resolve_tokenizer(upstream, settings, _ignore) if upstream else with_tokenizer(word, settings, _ignore)
    return found.files.load_tokenizer(settings.cache_dir)


def resolve_models(
    settings: Settings, progress: Progress, only: Container[str] | None = None
) -> dict[str, ResolvedModel]:
    """Return the models of the settings, by the names used there; those of `only`, if it is there. May download. Raises
    SetupError, also for a name or an id that is repeated."""
    for name in settings.model:
        if settings.model.count(name) > 1:
            raise SetupError(f"The model {name!r} is listed twice; pass it once.")
    models: dict[str, ResolvedModel] = {}
    upstreams = upstreams_of(settings)
    for name in served_names(settings):
        if only is not None and name not in only:
            continue
        upstream = upstreams.get(name)
        if upstream is not None:
            found = resolve_tokenizer(upstream, settings, progress)
        else:
            is_own = engine_of(name, settings) == ONWARD
            found = resolve_model(name, settings, progress, must_be_computed=is_own)
        if any(found.id == other.id for other in models.values()):
            raise SetupError(f"Two models are named {found.id!r}: rename one of their folders.")
        models[name] = found
    for name, target in adapted_models(settings).items():
        if name in models or any(name == other.id for other in models.values()):
            raise SetupError(f"--lora {name}=… has the name of a model: choose another one.")
        if only is None or name in only:
            models[name] = replace(resolve_model(target, settings, progress), id=name)
    return with_drafts(models, settings, lambda word: resolve_model(word, settings, progress))


def named_upstreams(settings: Settings) -> dict[str, UpstreamName]:
    """Return the models whose engine is another server, by name. Raises SetupError."""
    upstreams = upstreams_of(settings)
    for name, _ in settings.tokenizer:
        if name not in upstreams:
            raise SetupError(
                f"--tokenizer {name}=… is for a model NAME=KIND+URL that another server computes; "
                "every other model has the tokenizer of its own files."
            )
    return upstreams


def _start_processes(
    settings: Settings,
    groups: Groups,
    progress: Progress,
    on_failure: ExitStack,
    spare: SpareProcess | None,
    *,
    must_fit: bool,
) -> list[Served]:
    """Start a process per group; `on_failure` stops them. Raises SetupError.

    One after the other: each takes its share of the memory that is free. `must_fit` is for the first start: a process
    that replaces one that was lost takes the model as it can.
    """
    from onward.compose.spare import WORKER
    from onward.engines.child.child import ChildLauncher
    from onward.engines.child.supervised import SupervisedEngine

    served: list[Served] = []
    for name, group in groups.items():
        found = replace(group[0].base, draft=draft_of(group))
        progress(f"Loading {name}")
        described: Future[bytes] = Future()
        launchers = [
            ChildLauncher(WORKER, config.encode(), described.result, found.id, progress, spare)
            for config in (
                EngineConfig.create(found, settings, must_fit=must_fit),
                EngineConfig.create(found, settings),
            )
        ]
        engine = SupervisedEngine(
            partial(_launch, chain(launchers, repeat(launchers[-1]))),
            name=found.id,
            engine_timeout=settings.engine_timeout,
            save_seconds=settings.save_seconds,
        )
        on_failure.callback(engine.stop)
        engine.begin()
        # while the process loads the model
        tokenizer = _describe(found, settings, described)
        import_module("onward.backends.embedded")
        _report_notes(found, progress)
        engine.wait_until_ready()
        served += [Served(each, tokenizer, engine) for each in group]
    return served


def _launch(launchers: Iterator[Launch], on_report: OnReport, on_lost: OnLost) -> EngineLink:
    """Start an engine with the next of its launchers."""
    return next(launchers)(on_report, on_lost)


def _describe(found: ResolvedModel, settings: Settings, described: Future[bytes]) -> Tokenizer:
    """Load the tokenizer of a model, and set `described` to its vocabulary for the engine's process."""
    try:
        tokenizer = _load_tokenizer(found, settings)
        described.set_result(PackedVocabulary.create(tokenizer).encode())
    except BaseException as error:
        described.set_exception(error)
        raise
    return tokenizer


def _start_threads(
    settings: Settings,
    groups: Groups,
    progress: Progress,
    on_failure: ExitStack,
    *,
    drop_pages: bool,
    must_fit: bool,
) -> list[Served]:
    """Load the models into this process; `on_failure` closes them. Raises SetupError."""
    from onward.engine.thread import EngineThread

    loaded: list[tuple[Sequence[ResolvedModel], EngineConfig, LoadedModels, Tokenizer]] = []
    with kernels_loading(progress) as kernels_loaded, ThreadPoolExecutor(1, "onward-tokenizers") as executor:
        for name, group in groups.items():
            found = replace(group[0].base, draft=draft_of(group))
            progress(f"Loading {name}")
            config = EngineConfig.create(found, settings, must_fit=must_fit)
            loading = executor.submit(_load_tokenizer, found, settings)
            both = load_models(config, progress)
            _report_notes(found, progress)
            on_failure.callback(both.close)
            loaded.append((group, config, both, loading.result()))
        kernels_loaded()
    if drop_pages:
        drop_loading_pages(files for _, config, _, _ in loaded for files in config.all_files())
    served: list[Served] = []
    for group, config, both, tokenizer in loaded:
        engine, info = make_engine(config, both, tokenizer, partial(_kept, tokenizer))
        client = EngineThread(engine, name=config.model_id, fingerprint=info.fingerprint)
        served += [Served(each, tokenizer, client) for each in group]
    return served


def _report_notes(found: ResolvedModel, progress: Progress) -> None:
    """Report what the files of a model, and of the one that drafts for it, state that its operator should know."""
    for each in (found, found.draft):
        for note in () if each is None or each.is_predictor else each.files.notes():
            progress(note)


def _load_tokenizer(found: ResolvedModel, settings: Settings) -> Tokenizer:
    """Load the tokenizer of a model, whose draft model must have the same. Raises SetupError."""
    tokenizer = found.files.load_tokenizer(settings.cache_dir)
    require_same_tokens(found, tokenizer, settings.cache_dir)
    return tokenizer


def _kept(tokenizer: Tokenizer) -> Tokenizer:
    """Return a function that returns a tokenizer which is loaded already."""
    return tokenizer
