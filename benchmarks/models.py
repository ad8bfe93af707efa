"""The models that benchmarks are told to use, by name or path."""

from __future__ import annotations

from onward.errors import OnwardError
from onward.models.resolve import ResolvedModel, resolve
from onward.runtimes.openvino.load import load_model
from onward.runtimes.openvino.model import OpenVINOModel
from onward.runtimes.options import RuntimeOptions


def model_id(name: str) -> str:
    """The id under which a name or path is served."""
    return folder_of(name).id


def folder_of(name: str) -> ResolvedModel:
    """Where the model of this name or path lies; ends the program with a sentence where there is none."""
    try:
        return resolve(name, allow_download=False)
    except OnwardError as error:
        raise SystemExit(f"error: {error}") from None


def load(name: str) -> tuple[OpenVINOModel, ResolvedModel]:
    """The model of this name or path as `onward serve` loads it by default, and where it lies."""
    folder = folder_of(name)
    return load_model(folder.path, RuntimeOptions()), folder
