"""The models of a server while it runs: loaded beside those that are served, and put in their place at once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from onward.backends.base import Backend, LiveModel, ModelChange, Permit
from onward.backends.embedded import EmbeddedBackend, EmbeddedModel
from onward.compose.backend import model_folders, named_upstreams, resolve_models, start_engines
from onward.compose.drafts import draft_words
from onward.compose.programs import ONWARD, resolve_for_program, wanted_engines
from onward.compose.served import ModelNames, embedded_models, model_names
from onward.errors import ModelNameError, SetupError
from onward.fair_pool import FairPool
from onward.models.registry import did_you_mean
from onward.models.resolve import ResolvedModel, id_of, resolve
from onward.network import without_secrets
from onward.settings import MODEL_SETTINGS, Settings, UpstreamName, adapted_models, served_names, upstreams_of

log = logging.getLogger("onward.server")

T = TypeVar("T")
Version = tuple[tuple[str, int, int, int], ...]
"""Of a model's files: path, inode, time of change and size of each."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """A model that is served or to be. `word` names it in the settings; the id of one that was added."""

    word: str
    found: ResolvedModel
    created: int
    is_added: bool = False
    model: EmbeddedModel | None = None
    """None until it is loaded."""
    version: Version | None = None

    @property
    def id(self) -> str:
        return self.found.id


class EmbeddedLiveModels:
    """Implements `backends.base.LiveModels` over the backend that `compose` has made of the settings.

    Engines are loaded on a thread that ends with the process: on Linux, programs end with the thread that started them.
    """

    def __init__(self, settings: Settings, backend: EmbeddedBackend) -> None:
        self._folders = model_folders(settings)
        self._settings = settings
        self._backend = backend
        self._filters = next(iter(backend.served.values())).filters
        words = {backend.aliases[word]: word for word in _words(settings)}
        self._entries = [
            _Entry(words[id], found, found.created, model=model, version=_version(found))
            for id, model in backend.served.items()
            if (found := model.found) is not None
        ]
        self._loading: list[_Entry] = []
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
                source=_source(each, upstreams), is_added=each.is_added, num_running=load[each.id].num_running,
                num_waiting=load[each.id].num_waiting,
            )
            for each in self._entries
        ]  # fmt: skip
        loading = [LiveModel(id=each.id, status="loading", source=_source(each, upstreams)) for each in self._loading]
        return [*served, *loading, *map(_ending, self._backend.ending)]

    async def add(self, name: str, model_id: str | None, permit: Permit) -> LiveModel:
        async with self._lock:
            path = await self._on_thread(lambda: self._path_of(name))
            id = model_id or id_of(path)
            before = next((each for each in self._entries if each.id == id), None)
            word = id if before is None else before.word
            engines = {word: engine} if (engine := self._engine_of(word)) != ONWARD else {}
            found = replace(await self._on_thread(lambda: self._find(path, bool(engines))), id=id)
            entry = _Entry(word, found, found.created, is_added=True)
            entries = [entry if each is before else each for each in self._entries]
            await self._use(self._settings, entries if before else [*entries, entry], {}, engines, permit)
        return next(each for each in self.models() if each.id == id)

    async def remove(self, model_id: str, permit: Permit) -> None:
        async with self._lock:
            entries = [each for each in self._entries if each.id != model_id]
            if len(entries) == len(self._entries):
                hint = did_you_mean(model_id, [each.id for each in entries])
                raise ModelNameError(f"No model with the id {model_id[:100]!r} is served.{hint}")
            if not entries:
                raise SetupError(f"{model_id} is the only model of this server: add another one first.")
            await self._use(self._settings, entries, {}, {}, permit)

    async def apply(self, settings: Settings, permit: Permit) -> ModelChange:
        async with self._lock:
            if settings.cluster is not None:
                raise SetupError("The settings name a cluster now: start the server again to serve its models.")
            settings = replace(self._settings, **{name: getattr(settings, name) for name in MODEL_SETTINGS})
            upstreams, engines = named_upstreams(settings), wanted_engines(settings)
            stale = await self._on_thread(lambda: self._stale_words(settings))
            found = await self._on_thread(lambda: resolve_models(settings, log.info, engines, only=stale))
            entries = self._merged(settings, found)
            new_aliases = tuple(pair for pair in settings.alias if pair not in self._settings.alias)
            _names(replace(settings, alias=new_aliases), entries)  # one of no model is refused
            change = await self._use(settings, entries, upstreams, engines, permit)
            self._settings = settings
        return change

    def _stale_words(self, settings: Settings) -> set[str]:
        """Return the words of the models that are to be loaded: what the settings say of them is new, or their files
        are."""
        before, now = _statements(self._settings), _statements(settings)
        stale = {word for word, statement in now.items() if before.get(word) != statement}
        return stale | {
            each.word
            for each in self._entries
            if not each.is_added and each.word in now and _version(each.found) != each.version
        }

    def _merged(self, settings: Settings, found: Mapping[str, ResolvedModel]) -> list[_Entry]:
        """Return the models of the settings, of which `found` are to be loaded, and those that were added otherwise."""
        current = {each.word: each for each in self._entries}
        words = _words(settings)
        entries = [
            _Entry(word, found[word], found[word].created) if word in found else current[word]
            for word in words
            if word in found or word in current
        ]
        ids = [each.id for each in entries]
        for id in ids:
            if ids.count(id) > 1:
                raise SetupError(f"Two models are named {id!r}: rename one of their folders.")
        added = [each for each in self._entries if each.is_added and each.id not in ids]
        return [*entries, *(replace(each, word=each.id) for each in added)]

    async def _use(
        self,
        settings: Settings,
        entries: Sequence[_Entry],
        upstreams: Mapping[str, UpstreamName],
        engines: Mapping[str, str],
        permit: Permit,
    ) -> ModelChange:
        """Load what has to be loaded, and serve these models in place of the present ones. Raises SetupError, and what
        `permit` raises; then nothing has changed."""
        names = _names(_with_served_aliases(settings, entries), entries)
        known = ModelNames(self._backend.listed, self._backend.aliases, dict(self._backend.stand_ins))
        change = _change(self._entries, entries, changes_names=names != known)
        if change == ModelChange():
            return change
        with self._shown_as_loading([each for each in entries if each.model is None]) as new:
            loading = self._pool.submit("", lambda: self._load(settings, new, upstreams, engines))
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
    def _shown_as_loading(self, entries: list[_Entry]) -> Iterator[list[_Entry]]:
        self._loading = entries
        try:
            yield entries
        finally:
            self._loading = []

    def _load(
        self,
        settings: Settings,
        entries: Sequence[_Entry],
        upstreams: Mapping[str, UpstreamName],
        engines: Mapping[str, str],
    ) -> list[_Entry]:
        """Return the entries with their models, which can be served. Raises SetupError."""
        versions = [_version(each.found) for each in entries]
        found = {each.word: each.found for each in entries}
        with ExitStack() as on_failure:
            served = start_engines(
                settings, found, {word: each for word, each in upstreams.items() if word in found}, dict(engines),
                log.info, on_failure, in_processes=settings.engine_process == "on", must_fit=True,
            )  # fmt: skip
            models = embedded_models(settings, served, self._filters, on_failure)
        return [
            replace(each, model=model, version=version)
            for each, model, version in zip(entries, models, versions, strict=True)
        ]

    def _engine_of(self, word: str) -> str:
        """Return the word of --engine for a model that the settings call `word`, or do not know."""
        stated = dict(self._settings.engine)
        return stated.get(word) or stated.get("", ONWARD)

    def _find(self, path: Path, is_for_program: bool) -> ResolvedModel:
        """Return the model at a path in one of the folders. Raises SetupError."""
        if is_for_program:
            found = resolve_for_program(str(path), replace(self._settings, offline=True), log.info)
        else:
            found = resolve(str(path), allow_download=False, cache_dir=self._settings.cache_dir)
        if not all(map(self._is_inside, _files(found))):
            raise ModelNameError(f"{path} leads to files outside of the model folders ({', '.join(self.folders)}).")
        return found

    def _path_of(self, name: str) -> Path:
        """Return the path of what `name` is in the first folder that has it. What is elsewhere does not exist."""
        for folder in self._folders:
            path = folder / name
            if ".." not in path.parts and self._is_inside(path):
                return path
        if not self._folders:
            raise ModelNameError("This server adds no models: it was started without --model-folder.")
        there = sorted({path.name for folder in self._folders for path in folder.glob("*")})
        raise ModelNameError(
            f"There is no {name[:100]!r} in the model folders ({', '.join(self.folders)}).{did_you_mean(name, there)}"
        )

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


def _stop_loaded(loading: Future[list[_Entry]]) -> None:
    """Stop the engines of what was loaded in vain. Blocks."""
    if loading.cancelled() or loading.exception() is not None:
        return
    for each in loading.result():
        if each.model is not None:
            each.model.engine.stop()


def open_models(settings: Settings, backend: Backend) -> EmbeddedLiveModels | None:
    """Return what changes the models of a backend, None for those of a cluster."""
    if settings.cluster is not None:
        return None
    assert isinstance(backend, EmbeddedBackend)
    return EmbeddedLiveModels(settings, backend)


def _words(settings: Settings) -> list[str]:
    """Return the words of the settings for their models, in order."""
    return [*served_names(settings), *adapted_models(settings)]


def _statements(settings: Settings) -> dict[str, object]:
    """Return what the settings say of each model: when that changes, it is loaded again."""
    upstreams, engines, adapted = upstreams_of(settings), wanted_engines(settings), adapted_models(settings)
    tokenizers, drafts = dict(settings.tokenizer), draft_words(settings)
    return {
        word: (upstreams.get(word), engines.get(word), adapted.get(word), tokenizers.get(word), drafts.get(word))
        for word in _words(settings)
    }


def _source(entry: _Entry, upstreams: Mapping[str, UpstreamName]) -> str:
    upstream = None if entry.is_added else upstreams.get(entry.word)
    return str(entry.found.path) if upstream is None else ", ".join(map(without_secrets, upstream.urls))


def _names(settings: Settings, entries: Sequence[_Entry]) -> ModelNames:
    """Return the names of models. Raises SetupError."""
    if not entries:
        raise SetupError("No model would be left: the settings name only what was removed while the server ran.")
    ids = {each.word: each.id for each in entries}
    for each in entries:
        if ids[each.word] != each.id:
            raise SetupError(
                f"{each.word} names two models, {each.id} and {ids[each.word]}: choose another id for one."
            )
    return model_names(settings, ids, {each.id: each.created for each in entries})


def _with_served_aliases(settings: Settings, entries: Iterable[_Entry]) -> Settings:
    """Return the settings without aliases of models that are not served now."""
    names = {name for each in entries for name in (each.word, each.id)}
    return replace(settings, alias=tuple(pair for pair in settings.alias if pair[1] in names))


def _change(before: Iterable[_Entry], after: Iterable[_Entry], *, changes_names: bool) -> ModelChange:
    old, new = {each.id for each in before}, {each.id: each for each in after}
    loaded = {id: f"{id} ({each.found.path})" for id, each in new.items() if each.model is None}
    return ModelChange(
        tuple(words for id, words in loaded.items() if id not in old),
        tuple(words for id, words in loaded.items() if id in old),
        tuple(sorted(old - new.keys())),
        changes_names,
    )


def _ending(model: EmbeddedModel) -> LiveModel:
    running = len(set(model.answers.values()))
    source = "" if model.found is None else str(model.found.path)
    return LiveModel(id=model.served.id, status="ending", source=source, num_running=running)


def _files(found: ResolvedModel) -> list[Path]:
    """Return the files that a model is read from."""
    adapter, draft = found.adapter, found.draft
    own = list(found.files.paths())
    if adapter is not None:
        own += sorted(adapter.iterdir()) if adapter.is_dir() else [adapter]
    return own if draft is None else own + _files(draft)


def _version(found: ResolvedModel) -> Version | None:
    """Return the version of a model's files, None where one of them is missing."""
    try:
        states = [(path, path.stat()) for path in _files(found)]
    except OSError:
        return None
    return tuple((str(path), each.st_ino, each.st_mtime_ns, each.st_size) for path, each in states)
