"""Which model is at a path, and what is wrong with it: one sentence per problem."""

from __future__ import annotations

from pathlib import Path

from onward.errors import ModelFolderError
from onward.model_files.base import ModelFiles
from onward.model_files.formats import files_at, hub_formats, readable_formats

MAX_NAMED = 5
"""How many folders with models an error names."""


def check_model(path: Path) -> ModelFiles:
    """Return the model at `path`. Raises ModelFolderError with every problem."""
    found = find_model(path)
    if listed := found.problems():
        raise ModelFolderError(" ".join(listed))
    return found


def find_model(path: Path) -> ModelFiles:
    """Return the model at `path`, whatever is wrong with it. Raises ModelFolderError where there is none."""
    found = files_at(path)
    if found is None:
        raise ModelFolderError(no_model(path))
    return found


def problems(path: Path) -> list[str]:
    """Return what keeps `path` from being served, each a sentence that says what to do. Empty: nothing found.

    Looks at files only; whether the weights can be computed is checked by loading them.
    """
    found = files_at(path)
    return [no_model(path)] if found is None else found.problems()


def no_model(path: Path) -> str:
    """Return the sentence for a path at which no format finds a model."""
    if not path.exists():
        return f"{path} does not exist: pass the path of a model ({readable_formats()})."
    if path.is_file():
        settings = " Settings files are passed with --config." if path.suffix == ".toml" else ""
        return (
            f"{path} is not a model that Onward can read: pass the folder of a model ({readable_formats()}).{settings}"
        )
    entries = entries_of(path)
    if any(entry.name.endswith(".safetensors") or entry.name.startswith("pytorch_model") for entry in entries):
        advice = f"Convert it with {conversions(str(path))}."
    elif inner := sorted(str(entry) for entry in entries if is_folder(entry) and files_at(entry) is not None):
        advice = f"Pass one of its folders: {', '.join(inner[:MAX_NAMED])}{', …' if len(inner) > MAX_NAMED else ''}."
    else:
        advice = "Pass the path of a GGUF file, or a folder with config.json, a tokenizer and .safetensors files."
    return f"{path} contains no model that Onward can read ({readable_formats()}). {advice}"


def entries_of(folder: Path) -> list[Path]:
    """Return what is in a folder; nothing where that may not be listed."""
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def is_folder(path: Path) -> bool:
    """Return whether there is a folder at a path; False where what is in its parent may only be listed."""
    try:
        return path.is_dir()
    except OSError:
        return False


def conversions(source: str) -> str:
    """Return the commands that convert `source`, a folder or hub id in another format, into one that can be read."""
    return " or ".join(filter(None, (each.conversion(source) for each in hub_formats())))
