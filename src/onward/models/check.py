"""Which format the model at a path has, and what is wrong with it: one sentence per problem."""

from __future__ import annotations

from pathlib import Path

from onward.errors import ModelFolderError
from onward.runtimes import formats
from onward.runtimes.base import ModelFormat
from onward.runtimes.formats import format_of, hub_formats, readable_formats


def check_model(path: Path) -> ModelFormat:
    """Return the format of the model at `path`. Raises ModelFolderError with every problem."""
    found = format_of(path)
    if found is None:
        raise ModelFolderError(no_model(path))
    if listed := found.problems(path):
        raise ModelFolderError(" ".join(listed))
    return found


def problems(path: Path) -> list[str]:
    """Return what keeps `path` from being served, each a sentence that says what to do. Empty: nothing found.

    Looks at files only; whether the weights can be computed is checked by loading them.
    """
    found = format_of(path)
    return [no_model(path)] if found is None else found.problems(path)


def no_model(path: Path) -> str:
    """Return the sentence for a path at which no format finds a model."""
    if not path.exists():
        return f"{path} does not exist: pass the path of a model ({readable_formats()})."
    if path.is_file():
        settings = " Settings files are passed with --config." if path.suffix == ".toml" else ""
        return (
            f"{path} is not a model that Onward can read: pass the folder of a model ({readable_formats()}).{settings}"
        )
    advice = f"Convert it with {conversions(str(path))}."
    if not any(path.glob("*.safetensors")) and not any(path.glob("pytorch_model*.bin")):
        advice = f"Convert a model with {conversions('MODEL')}."
    return f"{path} contains no model that Onward can read ({readable_formats()}). {advice}"


def conversions(source: str) -> str:
    """Return the commands that convert `source`, a folder or hub id in another format, into one that can be read."""
    return " or ".join(filter(None, (each.conversion(source) for each in hub_formats())))


def required_packages() -> list[str]:
    """Return the Python distributions that the formats need to load models, each once."""
    return list(dict.fromkeys(name for each in formats.MODEL_FORMATS for name in each.packages))
