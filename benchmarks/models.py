"""Resolve and load the models named on the command line of a benchmark."""

from __future__ import annotations

from onward.errors import OnwardError
from onward.models.resolve import ResolvedModel, resolve
from onward.runtimes.openvino.format import OpenVINOFormat
from onward.runtimes.openvino.load import load_model
from onward.runtimes.openvino.model import OpenVINOModel
from onward.runtimes.options import RuntimeOptions


def model_id(name: str) -> str:
    """Return the id under which a name or path is served. Exits with an error message if there is no such model."""
    return find_model(name).id


def find_model(name: str) -> ResolvedModel:
    """Return a model by name or path. Exits with an error message if there is none."""
    try:
        return resolve(name, allow_download=False)
    except OnwardError as error:
        raise SystemExit(f"error: {error}") from None


def find_openvino_model(name: str) -> ResolvedModel:
    """Return a model that the OpenVINO runtime loads. Exits with an error message if there is none."""
    model = find_model(name)
    if not isinstance(model.format, OpenVINOFormat):
        raise SystemExit(
            f"error: The model {model.id!r} does not run on OpenVINO, which this benchmark measures. Pass --model with "
            "'storyteller' or the folder of an OpenVINO model."
        )
    return model


def load(name: str) -> tuple[OpenVINOModel, ResolvedModel]:
    """Load a model as `onward serve` does by default. Exits as `find_openvino_model` does."""
    model = find_openvino_model(name)
    return load_model(model.path, RuntimeOptions()), model
