"""OpenVINO's entry in the table of runtimes."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from onward.errors import SetupError
from onward.model_files.openvino_ir import WEIGHTS, OpenVINOFiles
from onward.runtimes.base import LoadedModel, Runtime, RuntimeOptions

if TYPE_CHECKING:
    from onward.model_files.base import ModelFiles, Progress


class OpenVINORuntime(Runtime):
    """Computes OpenVINO IR folders, if the extra is installed."""

    name = "openvino"
    reason = f"it is {OpenVINOFiles.format}"
    loading_only_files = (WEIGHTS, "libopenvino", "_pyopenvino.")

    def computes(self, files: ModelFiles) -> bool:
        return isinstance(files, OpenVINOFiles)

    def refusal(self, files: ModelFiles) -> str:
        return (
            f"{files.path} is not {OpenVINOFiles.format}, and OpenVINO computes nothing else: remove --runtime "
            "openvino, or export the model to an IR folder."
        )

    def load(self, files: ModelFiles, options: RuntimeOptions, progress: Progress) -> LoadedModel:
        if options.weights in ("int8", "int4"):
            raise SetupError(
                f"The weights of {files.path} are computed as they were exported: --weights {options.weights} is for "
                "GGUF and safetensors files."
            )
        if importlib.util.find_spec("openvino") is None:
            raise SetupError(
                f"{files.path} is {files.format}, which needs OpenVINO: `pip install 'onward[openvino]'`, or use the "
                "GGUF or safetensors files of the model."
            )
        from onward.runtimes.openvino.load import load_model

        model = load_model(files.path, options)
        return LoadedModel(model, model.fingerprint, tuple(model.notes))
