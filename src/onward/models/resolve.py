"""From what an operator typed to a folder with a model in it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Literal

from onward.errors import ModelNameError
from onward.models.check import GRAPH, check_folder
from onward.models.hub import fetch, hub_name
from onward.models.registry import BUILT_IN, did_you_mean

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A checked folder and the id its model answers to. `created` is in Unix seconds."""

    path: Path
    id: str
    created: int
    source: Literal["built-in", "folder", "hub"]


def resolve(
    name_or_path: str,
    *,
    allow_download: bool = True,
    progress: Progress = lambda message: None,
    fetcher: Callable[..., str] | None = None,
) -> ModelFolder:
    """A built-in name, else an existing folder, else `org/name[@revision]` on the hub.

    `progress` gets a sentence before a download may begin; `fetcher` stands for the hub's download function.
    Raises ModelNameError for a name that leads nowhere, ModelFolderError for a folder that is no model.
    """
    if name_or_path in BUILT_IN:
        return _checked(built_in_folder(name_or_path), name_or_path, "built-in")
    folder = Path(name_or_path).expanduser()
    if folder.is_dir():
        return _checked(folder, folder.resolve().name, "folder")
    hub = None if _is_path(name_or_path) else hub_name(name_or_path)
    if hub is None:
        raise ModelNameError(_unknown(name_or_path, folder))
    progress(f"Looking for {hub.repository} in the local cache and on the hub")
    return _checked(fetch(hub, allow_download=allow_download, fetcher=fetcher), hub.repository, "hub")


def built_in_folder(name: str) -> Path:
    """Where the package keeps a built-in model."""
    return Path(str(resources.files("onward.models").joinpath(name)))


def _checked(folder: Path, model_id: str, source: Literal["built-in", "folder", "hub"]) -> ModelFolder:
    check_folder(folder)
    return ModelFolder(folder, model_id, int((folder / GRAPH).stat().st_mtime), source)


def _is_path(text: str) -> bool:
    return text.startswith((".", "~", os.sep)) or Path(text).is_absolute()


def _unknown(text: str, path: Path) -> str:
    if path.is_file():
        if path.name == GRAPH:
            return f"{text} is a file: give its folder, {path.parent}."
        kind = "a GGUF file, which Onward does not read yet" if path.suffix == ".gguf" else "a file"
        return f"{text} is {kind}: give a folder that holds an OpenVINO model."
    if _is_path(text) or os.sep in text:
        parent = path.parent
        near = [entry.name for entry in parent.iterdir()] if parent.is_dir() else []
        hint = did_you_mean(path.name, near) or " Give the path of one that holds an OpenVINO model."
        return f"There is no folder {text}.{hint}"
    folders = [entry.name for entry in Path().iterdir() if entry.is_dir()]
    hint = did_you_mean(text, [*BUILT_IN, *folders])
    return (
        f"There is no model {text!r}.{hint} Give a built-in name ({', '.join(BUILT_IN)}), a folder, or "
        "a name on the hub such as org/name."
    )
