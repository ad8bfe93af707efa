"""The native runtime's entry in the table of runtimes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onward.model_files.checkpoint import CheckpointFiles
from onward.runtimes.base import LoadedModel, Runtime, RuntimeOptions

if TYPE_CHECKING:
    from onward.model_files.base import ModelFiles, Progress


class NativeRuntime(Runtime):
    """Computes every checkpoint whose architecture is in the table, with machine code of Onward's own."""

    name = "native"
    reason = "the same bits on every machine"
    packages = ("llvmlite",)

    def computes(self, files: ModelFiles) -> bool:
        return isinstance(files, CheckpointFiles)

    def refusal(self, files: ModelFiles) -> str:
        return (
            f"{files.path} is {files.format}, which only OpenVINO computes: remove --runtime native, or use the GGUF "
            "or safetensors files of the model."
        )

    def load(self, files: ModelFiles, options: RuntimeOptions, progress: Progress) -> LoadedModel:
        from onward.runtimes.native.load import load_model

        assert isinstance(files, CheckpointFiles)
        return load_model(files.checkpoint(), options, progress)
