"""The toy's entry in the table of runtimes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onward.model_files.toy import ToyFiles
from onward.runtimes.base import LoadedModel, Runtime, RuntimeOptions

if TYPE_CHECKING:
    from onward.model_files.base import ModelFiles, Progress


class ToyRuntime(Runtime):
    """Computes the toy. Of the options, only the context length has a meaning here."""

    name = "toy"
    reason = "it has no weights"
    packages = ("numpy",)

    def computes(self, files: ModelFiles) -> bool:
        return isinstance(files, ToyFiles)

    def refusal(self, files: ModelFiles) -> str:
        return f"{files.path} is not the toy."

    def load(self, files: ModelFiles, options: RuntimeOptions, progress: Progress) -> LoadedModel:
        from onward.runtimes.toy.model import ToyModel

        assert isinstance(files, ToyFiles)
        blocks, stated = files.sizes()
        model = ToyModel(blocks=blocks, context_length=options.context_within(stated, files.path.name))
        return LoadedModel(model, model.fingerprint)
