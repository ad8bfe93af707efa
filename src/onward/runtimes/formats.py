"""The table of model formats. Adding a runtime or a file format means adding its entry here, and nothing elsewhere.

Cheap to import: no entry imports its runtime before it loads a model.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from onward.runtimes.base import ModelFormat
from onward.runtimes.gguf_format import GGUFFormat
from onward.runtimes.openvino.format import OpenVINOFormat
from onward.runtimes.safetensors_format import SafetensorsFormat
from onward.runtimes.toy.format import ToyFormat

MODEL_FORMATS: tuple[ModelFormat, ...] = (GGUFFormat(), SafetensorsFormat(), OpenVINOFormat(), ToyFormat())
"""Where a path matches several entries, the first one counts."""


def format_of(path: Path) -> ModelFormat | None:
    """Return the format of the model at `path`, complete or not; None where there is no model."""
    return next((each for each in MODEL_FORMATS if each.matches(path)), None)


def format_named(name: str) -> ModelFormat:
    """Return the format of this name. Raises LookupError."""
    for each in MODEL_FORMATS:
        if each.name == name:
            return each
    raise LookupError(f"there is no model format named {name!r}")


def hub_formats() -> list[ModelFormat]:
    """Return the formats that a hub repository may contain, in order of preference."""
    return [each for each in MODEL_FORMATS if each.patterns]


def import_usual_runtime() -> None:
    """Import what most models are computed with, which takes a few tenths of a second, before the format is known."""
    import_module("onward.runtimes.native.load")


def readable_formats() -> str:
    """Return the names of the formats that users have models in, for messages."""
    return ", ".join(each.name for each in MODEL_FORMATS if each.is_listed)
