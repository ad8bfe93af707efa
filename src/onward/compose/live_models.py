"""The models of a server while it runs: new ones are loaded while the others keep serving, then replace them at
once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from onward.backends.base import Backend, LiveModel, ModelChange, Permit
from onward.backends.embedded import EmbeddedBackend, EmbeddedModel
from onward.compose.backend import by_base, model_folders, named_upstreams, resolve_models, start_engines
from onward.compose.drafts import draft_of, drafter_of
from onward.compose.entries import (
    LiveEntry,
    change_of,
    ending_model,
    files_of,
    names_of,
    source_of,
    statements_of,
    version_of,
    with_served_aliases,
)
from onward.compose.programs import ONWARD, engine_of
from onward.compose.served import ModelNames, Served, embedded_model, embedded_models
from onward.compose.upstreams import resolve_model
from onward.engine.client import AdaptableClient
from onward.errors import ModelNameError, SetupError
from onward.fair_pool import FairPool
from onward.models.registry import did_you_mean
from onward.models.resolve import ResolvedModel, id_of, with_adapter
from onward.settings import MODEL_SETTINGS, Settings, model_words, upstreams_of

log = logging.getLogger("onward.server")

T = TypeVar("T")


class EmbeddedLiveModels:
    """Implements `backends.base.LiveModels` over the backend that `compose` has made of the settings.

    Engines are loaded on a thread that ends with the process: on Linux, programs end with the thread that started them.
    """

    def __init__(self, settings: Settings, backend: EmbeddedBackend) -> None:
        self._folders = model_folders(settings)
        self._settings = settings
        self._backend = backend
        self._filters = next(iter(backend.served.values())).filters
        words = {backend.aliases[word]: word for word in model_words(settings)}
        self._entries = [
            LiveEntry(words[id], found, found.created, model=model, version=version_of(found))
            for id, model in backend.served.items()
            if (found := model.found) is not None
        ]
        self._loading: list[LiveEntry] = []
        self._lock = asyncio.Lock()
        self._pool = FairPool("onward-models", 1, 1)

    @property
    def folders(self) -> tuple[str, ...]:
        return tuple(map(str, self._folders))

    @property
    def is_busy(self) -> bool:
        return self._lock.locked()

    def models(self) -> list[LiveModel]:
        health, load = self._backend.health().models, self._backend.load()
        upstreams = upstreams_of(self._settings)
        served = [
            LiveModel(
                id=each.id, status=health[each.id].state, detail=health[each.id].detail,
                source=source_of(each, upstreams), is_added=each.is_added,
                num_running=load[each.id].num_running or each.num_requests, num_waiting=load[each.id].num_waiting,
            )
            for each in self._entries
        ]  # fmt: skip
        loading = [LiveModel(id=each.id, status="loading", source=source_of(each, upstreams)) for each in self._loading]
        return [*served, *loading, *map(ending_model, self._backend.ending)]

    async def add(self, name: str, model_id: str | None, permit: Permit) -> LiveModel:
        async with self._lock:
            path = await self._on_thread(lambda: self._path_of(name))
            id = model_id or id_of(path)
            before = next((each for each in self._entries if each.id == id), None)
            if before is not None:
                self._require_no_adapters(before)
            word = id if before is None else before.word
            found = replace(await self._on_thread(lambda: self._find(path, word)), id=id)
            entry = LiveEntry(word, found, found.created, is_added=True)
            entries = [entry if each is before else each for each in self._entries]
            await self._use(self._settings, entries if before else [*entries, entry], permit)
        return next(each for each in self.models() if each.id == id)

    async def remove(self, model_id: str, permit: Permit) -> None:
        async with self._lock:
            entry = next((each for each in self._entries if each.id == model_id), None)
            if entry is None:
                hint = did_you_mean(model_id, [each.id for each in self._entries])
                raise ModelNameError(f"No model with the id {model_id[:100]!r} is served.{hint}")
            self._require_no_adapters(entry)
            await self._remove(entry, permit)

    async def load_adapter(self, name: str, path: str, base: str | None, permit: Permit, *, in_place: bool) -> None:
        async with self._lock:
            changed = self._base(base)
            before = next((each for each in self._entries if each.id == name), None)
            if before is not None and before.found.adapter is None:
                raise SetupError(f"{name} is the name of a model that is not an adapter: choose another one.")
            if before is not None and not in_place:
                raise SetupError(
                    f"The adapter {name} has been loaded already: pass 'load_inplace' to load it in its place."
                )
            found = replace(await self._on_thread(lambda: self._find_adapter(path, changed)), id=name)
            word = name if before is None else before.word
            entry = LiveEntry(word, found, found.created, is_added=True)
            entries = [entry if each is before else each for each in self._entries]
            await self._use(self._settings, entries if before else [*entries, entry], permit)

    async def unload_adapter(self, name: str, permit: Permit) -> None:
        async with self._lock:
            adapters = {each.id: each for each in self._entries if each.found.adapter is not None}
            if name not in adapters:
                raise ModelNameError(f"The adapter {name[:100]!r} is not loaded.{did_you_mean(name, adapters)}")
            await self._remove(adapters[name], permit)

    async def _remove(self, entry: LiveEntry, permit: Permit) -> None:
        entries = [each for each in self._entries if each is not entry]
        if not entries:
            raise SetupError(f"{entry.id} is the only model of this server: add another one first.")
        await self._use(self._settings, entries, permit)

    def _base(self, name: str | None) -> LiveEntry:
        """Return the model that an adapter is to change. Raises ModelNameError, or SetupError if it cannot."""
        plain = [each for each in self._entries if each.found.adapter is None]
        id = None if name is None else self._backend.aliases.get(name, name)
        entry = next((each for each in plain if id in (None, each.id)), None)
        if entry is None:
            raise ModelNameError(
                f"No model with the id {name!r} is served.{did_you_mean(str(name), [each.id for each in plain])}"
            )
        if entry.model is None or not isinstance(entry.model.engine, AdaptableClient):
            raise SetupError(f"{entry.id} is not computed by Onward: give the adapter to the server that computes it.")
        return entry

    def _adapters_of(self, entry: LiveEntry) -> list[LiveEntry]:
        """Return the adapters that are served by the engine of their base."""
        if entry.found.adapter is not None or entry.model is None:
            return []
        shared = entry.model.shared
        return [each for each in self._entries if each is not entry and each.model and each.model.shared is shared]

    def _require_no_adapters(self, entry: LiveEntry) -> None:
        """Raise SetupError for a model that may not go, because its adapters would stay."""
        if found := self._adapters_of(entry):
            raise SetupError(f"{entry.id} has adapters: unload them first ({', '.join(each.id for each in found)}).")

    async def apply(self, settings: Settings, permit: Permit) -> ModelChange:
        async with self._lock:
            if settings.cluster is not None:
                raise SetupError("The settings name a cluster now: start the server again to serve its models.")
            settings = replace(self._settings, **{name: getattr(settings, name) for name in MODEL_SETTINGS})
            named_upstreams(settings)
            stale = await self._on_thread(lambda: self._stale_words(settings))
            found = await self._on_thread(lambda: resolve_models(settings, log.info, only=stale))
            entries = self._merged(settings, found)
            new_aliases = tuple(pair for pair in settings.alias if pair not in self._settings.alias)
            names_of(replace(settings, alias=new_aliases), entries)  # one of no model is refused
            for each in self._entries:
                if each not in entries and any(one in entries for one in self._adapters_of(each)):
                    self._require_no_adapters(each)
            for group in by_base({each.word: each.found for each in entries}).values():
                draft_of(group)  # several are refused, as when a server starts
            change = await self._use(settings, entries, permit)
            self._settings = settings
        return change

    def _stale_words(self, settings: Settings) -> set[str]:
        """Return the words of the models that are to be loaded: what the settings say of them is new, or their files
        are."""
        before, now = statements_of(self._settings), statements_of(settings)
        stale = {word for word, statement in now.items() if before.get(word) != statement}
        return stale | {
            each.word
            for each in self._entries
            if not each.is_added and each.word in now and version_of(each.found) != each.version
        }

    def _merged(self, settings: Settings, found: Mapping[str, ResolvedModel]) -> list[LiveEntry]:
        """Return the models of the settings, of which `found` are to be loaded, and those that were added otherwise."""
        current = {each.word: each for each in self._entries}
        words = model_words(settings)
        entries = [
            LiveEntry(word, found[word], found[word].created) if word in found else current[word]
            for word in words
            if word in found or word in current
        ]
        ids = [each.id for each in entries]
        for id in ids:
            if ids.count(id) > 1:
                raise SetupError(f"Two models are named {id!r}: rename one of their folders.")
        added = [each for each in self._entries if each.is_added and each.id not in ids]
        return [*entries, *(replace(each, word=each.id) for each in added)]

    async def _use(self, settings: Settings, entries: Sequence[LiveEntry], permit: Permit) -> ModelChange:
        """Load what has to be loaded, and serve these models in place of the present ones. Raises SetupError, and what
        `permit` raises; then nothing has changed."""
        names = names_of(with_served_aliases(settings, entries), entries)
        known = ModelNames(self._backend.listed, self._backend.aliases, dict(self._backend.stand_ins))
        change = change_of(self._entries, entries, changes_names=names != known)
        if change == ModelChange():
            return change
        with self._shown_as_loading([each for each in entries if each.model is None]) as new:
            loading = self._pool.submit("", lambda: self._load(settings, new))
            try:
                loaded = await asyncio.wrap_future(loading)
                await permit(change)
                if self._backend.health().state == "draining":
                    raise SetupError("The server is shutting down.")
            except BaseException as problem:
                # After the load, on the thread of it, also where this task is cancelled in the middle of it.
                stopping = self._pool.submit("", lambda: _stop_loaded(loading))
                if isinstance(problem, Exception):
                    await asyncio.wrap_future(stopping)
                raise
            by_id = {each.id: each for each in loaded}
            self._entries = [by_id.get(each.id, each) for each in entries]
            self._backend.use({each.id: each.model for each in self._entries if each.model is not None}, *names)
        log.info("models were changed: %s", change)
        return change

    @contextmanager
    def _shown_as_loading(self, entries: list[LiveEntry]) -> Iterator[list[LiveEntry]]:
        self._loading = entries
        try:
            yield entries
        finally:
            self._loading = []

    def _load(self, settings: Settings, entries: Sequence[LiveEntry]) -> list[LiveEntry]:
        """Return the entries with their models, which can be served. Raises SetupError."""
        versions = {each.id: version_of(each.found) for each in entries}
        running = {each.id: base for each in entries if (base := self._running_base(each, entries)) is not None}
        found = {each.word: each.found for each in entries if each.id not in running}
        by_settings, upstreams = {each.word for each in entries if not each.is_added}, upstreams_of(settings)
        with ExitStack() as on_failure:
            served = start_engines(
                settings, found, {word: each for word, each in upstreams.items() if word in by_settings},
                log.info, on_failure, in_processes=settings.engine_process == "on", must_fit=True,
            )  # fmt: skip
            models = {each.served.id: each for each in embedded_models(settings, served, self._filters, on_failure)}
            for model in models.values():
                on_failure.callback(model.stop)
            for each in entries:
                if (base := running.get(each.id)) is not None:
                    adapted = Served(each.found, base.served.tokenizer, base.engine)
                    models[each.id] = embedded_model(settings, adapted, base.shared, self._filters)
                    on_failure.callback(models[each.id].stop)
            on_failure.pop_all()
        for each in entries:
            each.found.release()
        return [replace(each, model=models[each.id], version=versions[each.id]) for each in entries]

    def _running_base(self, entry: LiveEntry, others: Sequence[LiveEntry]) -> EmbeddedModel | None:
        """Return a model that runs, in whose engine the adapter of an entry can be loaded; None if there is none, or if
        another engine is started for its base together with it."""
        base, drafter = version_of(replace(entry.found.base, draft=None)), drafter_of(entry.found)
        if entry.found.adapter is None or any(
            each.found.adapter is None and each.found.path == entry.found.path for each in others
        ):
            return None
        for each in self._entries:
            is_same = base == each.base_version and drafter in (None, drafter_of(each.found))
            if is_same and each.model and isinstance(each.model.engine, AdaptableClient):
                return each.model
        return None

    def _find(self, path: Path, word: str) -> ResolvedModel:
        """Return the model at a path in one of the folders, which the settings name `word`. Raises SetupError."""
        is_own = engine_of(word, self._settings) == ONWARD
        settings = replace(self._settings, offline=True)
        found = resolve_model(str(path), settings, log.info, must_be_computed=is_own)
        self._require_inside(path, files_of(found))
        return found

    def _find_adapter(self, name: str, base: LiveEntry) -> ResolvedModel:
        """Return a model with the adapter at a path in one of the folders. Raises SetupError."""
        return with_adapter(base.found, self._path_of(name))

    def _path_of(self, name: str) -> Path:
        """Return the path of `name` in the first folder that has it. Anything outside the folders counts as missing and
        is not read through links, since errors say what is in a file."""
        for folder in self._folders:
            path = folder / name
            if ".." not in path.parts and self._is_inside(path):
                self._require_inside(path, _files_at(path))
                return path
        if not self._folders:
            raise ModelNameError("This server adds no models: it was started without --model-folder.")
        there = sorted({path.name for folder in self._folders for path in folder.glob("*")})
        raise ModelNameError(
            f"There is no {name[:100]!r} in the model folders ({', '.join(self.folders)}).{did_you_mean(name, there)}"
        )

    def _require_inside(self, path: Path, files: Iterable[Path]) -> None:
        """Raise ModelNameError if what is at a path links to files outside the folders."""
        if not all(map(self._is_inside, files)):
            raise ModelNameError(f"{path} leads to files outside of the model folders ({', '.join(self.folders)}).")

    def _is_inside(self, path: Path) -> bool:
        """Return whether a path exists and is in one of the folders, wherever links lead."""
        try:
            resolved = path.resolve(strict=True)
        except (OSError, RuntimeError, ValueError):  # it does not exist, may not be read, is too long, is a loop
            return False
        return any(resolved.is_relative_to(folder) for folder in self._folders)

    async def _on_thread(self, work: Callable[[], T]) -> T:
        """Return the result of slow work, on the thread of models."""
        return await asyncio.wrap_future(self._pool.submit("", work))


def _files_at(path: Path) -> list[Path]:
    """Return a file, or what a folder contains. Raises SetupError."""
    try:
        return sorted(path.iterdir()) if path.is_dir() else [path]
    except OSError as problem:
        raise SetupError(f"{path} cannot be read: {problem.strerror or problem}.") from None


def _stop_loaded(loading: Future[list[LiveEntry]]) -> None:
    """Stop the engines of models that were loaded and will not be served. Blocks."""
    if loading.cancelled() or loading.exception() is not None:
        return
    for each in loading.result():
        if each.model is not None:
            each.model.stop()


def open_models(settings: Settings, backend: Backend) -> EmbeddedLiveModels | None:
    """Return the LiveModels that change the models of a backend, None for those of a cluster."""
    if settings.cluster is not None:
        return None
    assert isinstance(backend, EmbeddedBackend)
    return EmbeddedLiveModels(settings, backend)
