"""Models that Ollama has downloaded: a manifest names the blobs that are a GGUF file and its adapter (ollama/docs,
"import")."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import NamedTuple

from onward.checkpoints.json_files import read_bounded
from onward.errors import ModelFolderError, ModelNameError
from onward.folders import home_folder

PREFIX = "ollama:"
_TYPE = "application/vnd.ollama.image."
_NAME = re.compile(r"(?P<path>[\w.-]+(/[\w.-]+)*)(:(?P<tag>[\w.-]+))?")
_OF_SERVICE = Path("/usr/share/ollama/.ollama/models")
"""Where Ollama's service keeps models on Linux."""
MAX_MANIFEST_BYTES = 1_000_000


class Blobs(NamedTuple):
    """The files of a model."""

    model: Path
    adapter: Path | None


def is_manifest(path: Path) -> bool:
    """Return whether a file lies where Ollama keeps its manifests."""
    return "manifests" in path.parts and path.is_file()


def manifest_path(name: str) -> Path:
    """Return the manifest of `llama3.2:1b` or `user/model:tag`. Raises ModelNameError where there is none."""
    found = _NAME.fullmatch(name)
    parts = found["path"].split("/") if found else []
    tag = (found["tag"] if found else None) or "latest"
    if not parts or any(not part.strip(".") for part in (*parts, tag)):
        raise ModelNameError(f"{name!r} is not the name of a model of Ollama, such as llama3.2:1b.")
    host = parts.pop(0) if len(parts) > 2 else "registry.ollama.ai"
    owner = parts if len(parts) > 1 else ["library", *parts]
    tried = [folder.joinpath("manifests", host, *owner, tag) for folder in _folders()]
    for path in tried:
        if _is_there(path):
            return path
    raise ModelNameError(
        f"Ollama has no {name}: there is no {' and no '.join(map(str, tried))}. Fetch it with `ollama pull {name}`, or "
        "set OLLAMA_MODELS to the folder of its models."
    )


def _folders() -> list[Path]:
    stated = os.environ.get("OLLAMA_MODELS")
    if stated:
        return [Path(stated.replace("~", str(home_folder()), 1) if stated.startswith("~/") else stated)]
    return [home_folder() / ".ollama" / "models", _OF_SERVICE]


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a folder that may not be entered
        return False


def blobs_of(manifest: Path) -> Blobs:
    """Return the files of a manifest. Raises ModelNameError, also for several adapters."""
    try:
        layers = json.loads(read_bounded(manifest, MAX_MANIFEST_BYTES))["layers"]
        stated = [(str(each.get("mediaType")), str(each["digest"])) for each in layers]
    except ModelFolderError as problem:
        raise ModelNameError(str(problem)) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        stated = []
    models, adapters = (
        [digest for kind, digest in stated if kind == _TYPE + wanted] for wanted in ("model", "adapter")
    )
    if not models:
        raise ModelNameError(f"{manifest} is not a manifest of Ollama that names a model.")
    if len(adapters) > 1:
        raise ModelNameError(f"{manifest} names {len(adapters)} adapters; Onward takes one.")
    return Blobs(_blob(manifest, models[0]), _blob(manifest, adapters[0]) if adapters else None)


def _blob(manifest: Path, digest: str) -> Path:
    blob = Path(*manifest.parts[: _position(manifest)]) / "blobs" / digest.replace(":", "-")
    if re.fullmatch(r"sha256:[0-9a-f]{64}", digest) is None or not blob.is_file():
        raise ModelNameError(f"{manifest} names a file that does not exist: fetch the model again with `ollama pull`.")
    return blob


def _position(manifest: Path) -> int:
    """Return which part of a path is the folder of the manifests; the blobs are in its sibling."""
    return len(manifest.parts) - 1 - manifest.parts[::-1].index("manifests")
