"""Dependency wiring: builds a Backend, or only a tokenizer, from Settings.

Heavy packages are imported here, late and concurrently: the sampler (numba loads its kernels) in a thread, while this
one loads a model.
"""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from onward.errors import SetupError
from onward.models.registry import listed_models
from onward.models.resolve import resolve
from onward.residency import drop_file_pages, trim_heap
from onward.runtimes.base import Progress
from onward.runtimes.options import RuntimeOptions
from onward.settings import Settings

if TYPE_CHECKING:
    from onward.backends.embedded import EmbeddedBackend
    from onward.completions.filters import ContentFilters
    from onward.engine.client import EngineClient
    from onward.engine.model import Model as RuntimeModel
    from onward.engine.model import Tokenizer

SAMPLING_REVISION = 2
"""Raised with every change of `sampling` that may change a sampled token or a reported log-probability."""

_LOADING_ONLY_FILES = ("libllvmlite.", "libcrypto.")
"""Name prefixes of mapped files that serving hardly reads, besides those of the models' formats: LLVM has
compiled the kernels. Pages that are needed again are read again."""

COMPILING = "Compiling the sampling kernels (once per installation; about 10 s)"


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A loaded model without an engine yet."""

    id: str
    runtime: RuntimeModel
    tokenizer: Tokenizer
    fingerprint: str
    created: int
    loading_only_files: tuple[str, ...]


def compose(
    settings: Settings, progress: Progress = lambda message: None, *, own_process: bool = False
) -> EmbeddedBackend:
    """Load every model and create its engine. Slow; blocks. `progress` receives a sentence at each stage.

    `own_process`: nothing else runs in this process, so file pages that only loading needed may be dropped. Raises
    SetupError, which names the model and what to do; models that were loaded before are closed.
    """
    _check_listed_once(settings.model)
    filters = _filters(settings)
    with ExitStack() as on_failure:
        with ThreadPoolExecutor(1, thread_name_prefix="onward-kernels") as executor:
            kernels = executor.submit(_load_kernels, progress)
            loaded = _load_all(settings, progress, on_failure)
            kernels.result()
        aliases = _aliases(settings, loaded)
        trim_heap()
        if own_process and not _has_foreign_code(settings):
            # No engine runs yet, so nothing can end one, which would unmap its model.
            names = {name for each in loaded.values() for name in each.loading_only_files}
            drop_file_pages(*_LOADING_ONLY_FILES, *names)
        engines = {model.id: _engine(model, settings) for model in loaded.values()}
        on_failure.pop_all()  # from here on the engines own the models
    return _start(settings, loaded, engines, aliases, filters)


def _check_listed_once(names: tuple[str, ...]) -> None:
    """Raise SetupError if a name is repeated."""
    for name in names:
        if names.count(name) > 1:
            raise SetupError(f"The model {name!r} is listed twice; pass it once.")


def _has_foreign_code(settings: Settings) -> bool:
    """Return whether a content filter is the operator's own code, which may have threads that do anything."""
    return any(each.entry_point is not None for each in settings.content_filter)


def _load_kernels(progress: Progress) -> None:
    from onward.sampling.kernels import on_compilation
    from onward.sampling.sampler import Sampler

    with on_compilation(lambda: progress(COMPILING)):
        Sampler(1)


def _load_all(settings: Settings, progress: Progress, on_failure: ExitStack) -> dict[str, _Loaded]:
    """Load the models of the settings, by the names used there; `on_failure` closes them. Raises SetupError."""
    loaded: dict[str, _Loaded] = {}
    for name in settings.model:
        model = _load(name, settings, progress)
        on_failure.callback(model.runtime.close)
        if any(model.id == other.id for other in loaded.values()):
            raise SetupError(f"Two models are named {model.id!r}: rename one of their folders.")
        loaded[name] = model
    return loaded


def _filters(settings: Settings) -> ContentFilters | None:
    """Return the content filters of the settings, None without any. Raises SetupError, before a model is loaded."""
    if not settings.content_filter:
        return None
    from onward.completions.filters import make_filters

    return make_filters(settings.content_filter)


def _start(
    settings: Settings,
    loaded: dict[str, _Loaded],
    engines: dict[str, EngineClient],
    aliases: dict[str, str],
    filters: ContentFilters | None,
) -> EmbeddedBackend:
    """Start the engines, by model id, behind a backend."""
    from onward.backends.embedded import EmbeddedBackend, EmbeddedModel
    from onward.completions.limits import RequestLimits
    from onward.completions.plan import ServedModel

    served: dict[str, EmbeddedModel] = {}
    for model in loaded.values():
        engine = engines[model.id]
        info = engine.info
        plan_model = ServedModel.create(model.id, model.tokenizer, info.vocab_size, info.context_length)
        served[model.id] = EmbeddedModel(plan_model, engine, _filtered(info.fingerprint, settings), filters)
    created = {model.id: model.created for model in loaded.values()}
    names = {name: model.id for name, model in loaded.items()}
    return EmbeddedBackend(
        served,
        listed_models(created, aliases),
        names | aliases,
        limits=RequestLimits(settings.max_parallel, settings.max_prompt_tokens, settings.max_answer_logprobs),
        any_name=settings.profile == "lenient",
    )


def _engine(model: _Loaded, settings: Settings) -> EngineClient:
    """The engine that computes a model: today a thread in this process. Not started yet."""
    from onward.engine.step import Engine
    from onward.engine.thread import EngineThread
    from onward.sampling.sampler import Sampler

    engine = Engine(
        model.runtime,
        model.tokenizer,
        Sampler(model.runtime.vocab_size, settings.threads or None),
        max_rows=settings.max_rows,
        share_prefixes=settings.prefix_cache,
        speculate=settings.speculation == "auto",
    )
    return EngineThread(engine, max_waiting=settings.max_waiting, name=model.id, fingerprint=model.fingerprint)


def _load(name: str, settings: Settings, progress: Progress) -> _Loaded:
    progress(f"Loading {name}")
    found = resolve(name, progress=progress)
    loaded = found.format.load(found.path, _options(settings), progress)
    for note in loaded.notes:
        progress(note)
    fingerprint = _fingerprint(loaded.fingerprint)
    return _Loaded(
        found.id, loaded.model, loaded.tokenizer, fingerprint, found.created, found.format.loading_only_files
    )


def load_tokenizer(model: str | None, settings: Settings, progress: Progress = lambda message: None) -> Tokenizer:
    """Load the tokenizer alone of `model`, a name, path or alias (None: the first of the settings). Blocks.

    Raises SetupError.
    """
    name = model or settings.model[0]
    found = resolve(dict(settings.alias).get(name, name), progress=progress)
    return found.format.load_tokenizer(found.path)


def _aliases(settings: Settings, loaded: dict[str, _Loaded]) -> dict[str, str]:
    """Return model ids by alias. Raises SetupError for an alias of no model or with the name of one."""
    served = {model.id for model in loaded.values()}
    aliases: dict[str, str] = {}
    for alias, target in settings.alias:
        model_id = loaded[target].id if target in loaded else target
        if model_id not in served:
            raise SetupError(
                f"The alias {alias}={target} names a model that is not served. The served models are: "
                f"{', '.join(sorted(served))}."
            )
        if alias in served:
            raise SetupError(f"The alias {alias!r} is already the name of a model.")
        aliases[alias] = model_id
    return aliases


def _options(settings: Settings) -> RuntimeOptions:
    return RuntimeOptions(
        threads=settings.threads,
        precision=settings.precision,
        kv_memory=settings.kv_memory,
        cache_dir=settings.cache_dir,
        context_length=settings.context_length or None,
    )


def _fingerprint(runtime: str) -> str:
    """Return `system_fingerprint`: it changes with what the runtime's results depend on and with the sampler."""
    return "fp_" + hashlib.blake2b(f"{runtime} {SAMPLING_REVISION}".encode(), digest_size=6).hexdigest()


def _filtered(fingerprint: str, settings: Settings) -> str:
    """Return the fingerprint, or a different one for each set of content filters, which change the text."""
    if not settings.content_filter:
        return fingerprint
    return "fp_" + hashlib.blake2b(f"{fingerprint} {settings.content_filter}".encode(), digest_size=6).hexdigest()
