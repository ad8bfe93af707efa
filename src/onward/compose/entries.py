"""The models of a running server: the names they are served under, and the files they are read from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from onward.backends.base import LiveModel, ModelChange
from onward.backends.embedded import EmbeddedModel
from onward.checkpoints.paths import adapter_files
from onward.compose.drafts import draft_words
from onward.compose.programs import wanted_engines
from onward.compose.served import ModelNames, model_names
from onward.errors import SetupError
from onward.models.resolve import ResolvedModel, split_adapter
from onward.network import without_secrets
from onward.settings import Settings, UpstreamName, adapted_models, model_words, upstreams_of

Version = tuple[tuple[str, int, int, int], ...]
"""Of a model's files: path, inode, time of change and size of each."""


@dataclass(frozen=True, slots=True)
class LiveEntry:
    """A model that is served, or is to be served. `word` names it in the settings; the id of one that was added."""

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

    @property
    def path(self) -> Path:
        """Where its adapter is, or itself if it has none."""
        return self.found.adapter or self.found.path

    @property
    def num_requests(self) -> int:
        """Requests that it answers."""
        return 0 if self.model is None else len(set(self.model.answers.values()))

    @property
    def base_version(self) -> Version | None:
        """The version of its files without those of its adapter."""
        paths = set(map(str, self.found.files.paths()))
        return None if self.version is None else tuple(each for each in self.version if each[0] in paths)


def statements_of(settings: Settings) -> dict[str, object]:
    """Return what the settings say of each model, and of the base of one with an adapter: when that changes, it is
    loaded again."""
    upstreams, engines, adapted = upstreams_of(settings), wanted_engines(settings), adapted_models(settings)
    tokenizers, drafts = dict(settings.tokenizer), draft_words(settings)
    return {
        word: (
            upstreams.get(word), engines.get(word), adapted.get(word), tokenizers.get(word),
            drafts.get(word), drafts.get(split_adapter(adapted.get(word, word))[0]),
        )
        for word in model_words(settings)
    }  # fmt: skip


def source_of(entry: LiveEntry, upstreams: Mapping[str, UpstreamName]) -> str:
    upstream = None if entry.is_added else upstreams.get(entry.word)
    return str(entry.path) if upstream is None else ", ".join(map(without_secrets, upstream.urls))


def names_of(settings: Settings, entries: Sequence[LiveEntry]) -> ModelNames:
    """Return the names of models. Raises SetupError."""
    if not entries:
        raise SetupError("No model would be left: the settings name only what was removed while the server ran.")
    ids = {each.word: each.id for each in entries}
    for each in entries:
        if ids[each.word] != each.id:
            raise SetupError(
                f"{each.word} names two models, {each.id} and {ids[each.word]}: choose another id for one."
            )
    return model_names(settings, {each.word: each.found for each in entries})


def with_served_aliases(settings: Settings, entries: Iterable[LiveEntry]) -> Settings:
    """Return the settings without aliases of models that are not served now."""
    names = {name for each in entries for name in (each.word, each.id)}
    return replace(settings, alias=tuple(pair for pair in settings.alias if pair[1] in names))


def change_of(before: Iterable[LiveEntry], after: Iterable[LiveEntry], *, changes_names: bool) -> ModelChange:
    old, new = {each.id for each in before}, {each.id: each for each in after}
    loaded = {id: f"{id} ({each.path})" for id, each in new.items() if each.model is None}
    return ModelChange(
        tuple(words for id, words in loaded.items() if id not in old),
        tuple(words for id, words in loaded.items() if id in old),
        tuple(sorted(old - new.keys())),
        changes_names,
    )


def ending_model(model: EmbeddedModel) -> LiveModel:
    running = len(set(model.answers.values()))
    source = "" if model.found is None else str(model.found.adapter or model.found.path)
    return LiveModel(id=model.served.id, status="ending", source=source, num_running=running)


def files_of(found: ResolvedModel) -> list[Path]:
    """Return the files that a model is read from, each once: it may draft for itself."""
    own = [*found.files.paths(), *(() if found.adapter is None else adapter_files(found.adapter))]
    return list(dict.fromkeys(own if found.draft is None else own + files_of(found.draft)))


def version_of(found: ResolvedModel) -> Version | None:
    """Return the version of a model's files, None where one of them is missing."""
    try:
        states = [(path, path.stat()) for path in files_of(found)]
    except OSError:
        return None
    return tuple((str(path), each.st_ino, each.st_mtime_ns, each.st_size) for path, each in states)
