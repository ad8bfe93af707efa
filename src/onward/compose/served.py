"""Models whose engines are ready, as a backend serves them: under which names, with which filters and limits."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from onward.errors import ModelFolderError, SetupError
from onward.model_files.files import rows_problem
from onward.models.registry import BUILT_IN, ListedModel, listed_models, real_model_hint
from onward.models.resolve import ResolvedModel
from onward.settings import OPENAI_NAMES, Settings

if TYPE_CHECKING:
    from pathlib import Path

    from onward.backends.embedded import EmbeddedBackend, EmbeddedModel
    from onward.backends.shared_engine import SharedEngine
    from onward.completions.filters import ContentFilters
    from onward.engine.client import EngineClient
    from onward.engine.model import Tokenizer


class Served(NamedTuple):
    """A model whose engine is ready; models that differ in their adapters have the same one."""

    found: ResolvedModel
    tokenizer: Tokenizer
    engine: EngineClient


class ModelNames(NamedTuple):
    """The names that requests may use; see `backends.embedded.EmbeddedBackend`."""

    listed: list[ListedModel]
    aliases: dict[str, str]
    stand_ins: dict[str, str]


def make_filters(settings: Settings) -> ContentFilters | None:
    """Return the content filters of the settings, None without any. Raises SetupError, before a model is loaded."""
    if not settings.content_filter:
        return None
    from onward.completions import filters

    return filters.make_filters(settings.content_filter)


def model_names(settings: Settings, models: Mapping[str, ResolvedModel]) -> ModelNames:
    """Return the names of models, which are by the names that the settings have for them. The first one is the default.
    Raises SetupError, also where one model has the name of another."""
    ids = {name: each.id for name, each in models.items()}
    created = {each.id: each.created for each in models.values()}
    parents = {each.id: each.base_id for each in models.values() if each.base_id}
    for name, id in ids.items():
        if name != id and name in created:
            raise SetupError(f"{name} names two models, {id} and one with that id: choose another id for one of them.")
    aliases, first = _aliases(settings, ids), next(iter(created))
    taken = created.keys() | ids.keys() | aliases.keys()
    openai_names = {name: first for name in OPENAI_NAMES if settings.openai_names and name not in taken}
    return ModelNames(
        listed_models(created, aliases, openai_names, parents),
        {**ids, **aliases, **openai_names},
        {name: _stands_in(name, first) for name in openai_names} if first in BUILT_IN else {},
    )


def _stands_in(name: str, model: str) -> str:
    return f"{model}, the small built-in model, answers in place of {name}. {real_model_hint()}"


def _aliases(settings: Settings, ids: Mapping[str, str]) -> dict[str, str]:
    """Return model ids by alias. Raises SetupError for an alias of no model or with the name of one."""
    served = set(ids.values())
    aliases: dict[str, str] = {}
    for alias, target in settings.alias:
        model_id = ids.get(target, target)
        if model_id not in served:
            raise SetupError(
                f"The alias {alias}={target} names a model that is not served. The served models are: "
                f"{', '.join(sorted(served))}."
            )
        if alias in served:
            raise SetupError(f"The alias {alias!r} is already the name of a model.")
        aliases[alias] = model_id
    return aliases


def embedded_models(
    settings: Settings, served: Sequence[Served], filters: ContentFilters | None, on_failure: ExitStack
) -> list[EmbeddedModel]:
    """Return models that a backend can serve. They own their engines from then on, and `on_failure` no longer stops
    these. Loads adapters. Raises SetupError, with all of them stopped."""
    from onward.backends.backlog import Backlog
    from onward.backends.shared_engine import SharedEngine

    on_failure.pop_all()
    with ExitStack() as stops:
        for each in served:
            stops.callback(each.engine.stop)
        backlogs = {each.engine: Backlog(settings.max_waiting, settings.max_waiting_memory) for each in served}
        engines = {client: SharedEngine(client, backlog) for client, backlog in backlogs.items()}
        models = [embedded_model(settings, each, engines[each.engine], filters) for each in served]
        stops.pop_all()
    return models


def embedded_model(
    settings: Settings, served: Served, engine: SharedEngine, filters: ContentFilters | None
) -> EmbeddedModel:
    """Return a model that a backend can serve. Blocks while its adapter is loaded, if it has one. Raises SetupError."""
    from onward.backends.embedded import EmbeddedModel
    from onward.completions.plan import ServedModel

    found, tokenizer, client = served
    info = client.info
    _require_rows(found, tokenizer, info.vocab_size)
    adapter = "" if found.adapter is None else _adapter_id(found.adapter, settings.cache_dir)
    plain = ServedModel.create(found.id, tokenizer, info.vocab_size, info.context_length, info.lacks)
    engine.use(adapter, found.adapter)
    return EmbeddedModel(
        replace(plain, adapter=adapter),
        engine,
        partial(_fingerprint, settings, adapter),
        filters,
        max_wait=settings.max_wait,
        found=found,
    )


def _adapter_id(path: Path, cache_dir: Path) -> str:
    """Return the id of an adapter. Raises ModelFolderError."""
    from onward.checkpoints.paths import adapter_files
    from onward.runtimes.fingerprint import adapter_id

    try:
        return adapter_id(adapter_files(path), cache_dir)
    except OSError as problem:
        raise ModelFolderError(f"The adapter {path} cannot be read: {problem.strerror or problem}.") from None


def _require_rows(found: ResolvedModel, tokenizer: Tokenizer, vocab_size: int) -> None:
    """Raise ModelFolderError for tokens that the model has no rows for."""
    texts = {
        token: tokenizer.token_bytes(token).decode("utf-8", "replace") for token in range(vocab_size, tokenizer.size)
    }
    if problem := rows_problem(str(found.path), texts, vocab_size):
        raise ModelFolderError(problem)


def _fingerprint(settings: Settings, adapter: str, fingerprint: str) -> str:
    """Return the engine's fingerprint, or a different one for each adapter, and for each set of content filters, which
    change the text. It still names whose engine computes."""
    facts = [str(each) for each in (adapter, settings.content_filter) if each]
    if not facts:
        return fingerprint
    changed = hashlib.blake2b(" ".join([fingerprint, *facts]).encode(), digest_size=6).hexdigest()
    return f"{fingerprint.rpartition('_')[0]}_{changed}"


def make_backend(
    settings: Settings, served: list[Served], names: ModelNames, filters: ContentFilters | None, on_failure: ExitStack
) -> EmbeddedBackend:
    """Return the backend over engines that are ready, which owns them: see `embedded_models`. Raises
    ModelFolderError."""
    from onward.backends.embedded import EmbeddedBackend
    from onward.completions.limits import RequestLimits

    limits = RequestLimits.create(settings)
    models = embedded_models(settings, served, filters, on_failure)
    return EmbeddedBackend(
        {each.served.id: each for each in models},
        names.listed,
        names.aliases,
        limits=limits,
        any_name=settings.profile == "lenient",
        stand_ins=names.stand_ins,
    )
