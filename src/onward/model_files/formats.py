"""The table of model formats. Adding a format means adding its entry here, and nothing elsewhere.

Cheap to import: no entry imports a library before it loads a tokenizer.
"""

from __future__ import annotations

from pathlib import Path

from onward.model_files.base import ModelFiles
from onward.model_files.gguf import GGUFFiles
from onward.model_files.openvino_ir import OpenVINOFiles
from onward.model_files.safetensors import SafetensorsFiles
from onward.model_files.toy import ToyFiles

FORMATS: tuple[type[ModelFiles], ...] = (GGUFFiles, SafetensorsFiles, OpenVINOFiles, ToyFiles)
"""Where a path matches several entries, the first one counts."""


def files_at(path: Path) -> ModelFiles | None:
    """Return the model at `path`, complete or not; None where there is none."""
    return next((each(path) for each in FORMATS if each.matches(path)), None)


def format_named(name: str) -> type[ModelFiles]:
    """Return the format of this name. Raises LookupError."""
    for each in FORMATS:
        if each.format == name:
            return each
    raise LookupError(f"there is no model format named {name!r}")


def hub_formats() -> list[type[ModelFiles]]:
    """Return the formats that a hub repository may contain, in order of preference."""
    return [each for each in FORMATS if each.patterns]


def readable_formats() -> str:
    """Return the names of the formats that users have models in, for messages."""
    return ", ".join(each.format for each in FORMATS if each.is_listed)
