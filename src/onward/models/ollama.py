"""Models that Ollama has downloaded: a manifest names the blob that is a GGUF file (ollama/docs, "import")."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from onward.errors import ModelNameError
from onward.settings import home_folder

PREFIX = "ollama:"
_MODEL_TYPE = "application/vnd.ollama.image.model"
_NAME = re.compile(r"(?P<path>[\w.-]+(/[\w.-]+)*)(:(?P<tag>[\w.-]+))?")
MAX_MANIFEST_BYTES = 1_000_000


def is_manifest(path: Path) -> bool:
    """Return whether a file lies where Ollama keeps its manifests."""
    return "manifests" in path.parts and path.is_file()


def manifest_path(name: str) -> Path:
    """Return where the manifest of `llama3.2:1b` or `user/model:tag` would be. Raises ModelNameError."""
    found = _NAME.fullmatch(name)
    if found is None:
        raise ModelNameError(f"{name!r} is not the name of a model of Ollama, such as llama3.2:1b.")
    parts = found["path"].split("/")
    host = parts.pop(0) if len(parts) > 2 else "registry.ollama.ai"
    owner = parts if len(parts) > 1 else ["library", *parts]
    folder = Path(os.environ.get("OLLAMA_MODELS") or home_folder() / ".ollama" / "models")
    return folder.joinpath("manifests", host, *owner, found["tag"] or "latest")


def blob_of(manifest: Path) -> Path:
    """Return the GGUF file of a manifest. Raises ModelNameError."""
    try:
        with manifest.open("rb") as file:
            layers = json.loads(file.read(MAX_MANIFEST_BYTES))["layers"]
        digest = next(str(each["digest"]) for each in layers if each.get("mediaType") == _MODEL_TYPE)
    except FileNotFoundError:
        raise ModelNameError(f"Ollama has no {manifest}: fetch the model with `ollama pull`.") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, StopIteration, RecursionError):
        raise ModelNameError(f"{manifest} is not a manifest of Ollama that names a model.") from None
    blob = Path(*manifest.parts[: _position(manifest)]) / "blobs" / digest.replace(":", "-")
    if re.fullmatch(r"sha256:[0-9a-f]{64}", digest) is None or not blob.is_file():
        raise ModelNameError(f"{manifest} names a file that does not exist: fetch the model again with `ollama pull`.")
    return blob


def _position(manifest: Path) -> int:
    """Return which part of a path is the folder of the manifests, beside which the blobs are."""
    return len(manifest.parts) - 1 - manifest.parts[::-1].index("manifests")
