"""The table of runtimes. Adding one means adding its entry here, and nothing elsewhere. Cheap to import."""

from __future__ import annotations

from importlib import import_module

from onward.errors import ModelFolderError, SetupError
from onward.model_files.base import ModelFiles, Progress
from onward.runtimes.base import LoadedModel, Runtime, RuntimeOptions
from onward.runtimes.native.runtime import NativeRuntime
from onward.runtimes.openvino.runtime import OpenVINORuntime
from onward.runtimes.toy.runtime import ToyRuntime

RUNTIMES: tuple[Runtime, ...] = (NativeRuntime(), OpenVINORuntime(), ToyRuntime())
"""Where several compute a model, the first one does unless another is asked for."""


def runtime_of(files: ModelFiles, wanted: str = "auto") -> Runtime:
    """Return the runtime of a model: `wanted` by its name, or "auto". Raises SetupError where that does not compute it;
    a format that is not listed is computed by its own runtime whatever is wanted."""
    able = [each for each in RUNTIMES if each.computes(files)]
    for each in able:
        if wanted in ("auto", each.name) or not files.is_listed:
            return each
    other = next(each for each in RUNTIMES if wanted in ("auto", each.name))
    raise SetupError(other.refusal(files))


def load_model(files: ModelFiles, options: RuntimeOptions, progress: Progress) -> LoadedModel:
    """Load a model with what `options.runtime` says. Slow; blocks. Raises as Runtime.load."""
    runtime = runtime_of(files, options.runtime)
    try:
        return runtime.load(files, options, progress)
    except OSError as error:
        if error.filename is None:  # it is not about a file
            raise
        raise ModelFolderError(
            f"{error.filename} cannot be read any more ({error.strerror}): it was changed while the model was loaded."
        ) from error


def import_usual_runtime() -> None:
    """Import what most models are computed with, which takes a few tenths of a second, before the format is known."""
    import_module("onward.runtimes.native.load")
