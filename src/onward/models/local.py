"""Models that need no download: built in, in the hub's cache, and in the current folder."""

from __future__ import annotations

from pathlib import Path

from onward.model_files.formats import files_at
from onward.models.catalogue import catalogue
from onward.models.hub import REPOSITORY_PREFIX, hub_cache
from onward.models.pull import pulled_path
from onward.models.registry import BUILT_IN
from onward.models.resolve import ModelSource, ResolvedModel, built_in_folder


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
