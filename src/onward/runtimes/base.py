"""The interface of a runtime, which computes the models whose files it understands."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from onward.engine.model import AdapterLoader, ModelRunner
    from onward.model_files.base import ModelFiles, Progress
    from onward.runtimes.options import RuntimeOptions


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in memory, ready for its first step. The caller owns it and closes `model`.

    The step shape is the model's own (`model.shape`).
    """

    model: ModelRunner
    fingerprint: str
    """Changes with whatever may change results: weights, runtime, processor, precision."""
    notes: tuple[str, ...] = ()
    """Sentences for the operator: what was lowered to fit, what was assumed."""
    adapters: AdapterLoader | None = None
    """What loads its adapters; None if the runtime does not support them."""


class Runtime(ABC):
    """What computes models. Stateless; an entry of `table.RUNTIMES`. Only `load` may be slow or import libraries."""

    name: ClassVar[str]
    """As in --runtime."""
    reason: ClassVar[str]
    """Why a model is computed by it, for `onward models show`."""
    packages: ClassVar[tuple[str, ...]] = ()
    """Python distributions that loading needs, for `onward doctor`."""
    loading_only_files: ClassVar[tuple[str, ...]] = ()
    """Name prefixes of mapped files that serving hardly reads once a model is loaded."""

    @abstractmethod
    def computes(self, files: ModelFiles) -> bool:
        """Return whether it computes models in files of this format."""

    @abstractmethod
    def refusal(self, files: ModelFiles) -> str:
        """Return the sentence for an operator who wants it to compute files that it does not compute."""

    @abstractmethod
    def load(self, files: ModelFiles, options: RuntimeOptions, progress: Progress) -> LoadedModel:
        """Load the model, without its tokenizer. Slow; blocks.

        Raises ModelFolderError (files, graph), MemoryTooSmall (KV cache), SetupError (options that do not fit).
        """
