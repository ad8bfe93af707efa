"""The interface of a runtime, which computes the models whose files it understands, and the options of loading a model.
Cheap to import."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from onward.errors import SetupError
from onward.runtimes.kv_plan import MAX_DEFAULT_SEQUENCES
from onward.values import Precision, RuntimeName, WeightForm

if TYPE_CHECKING:
    from onward.engine.model import AdapterLoader, ModelRunner, Predictor
    from onward.model_files.base import ModelFiles, Progress


@dataclass(frozen=True, slots=True)
class RuntimeOptions:
    """Options of every runtime. One that cannot do what an option asks for refuses it; an option on which nothing
    depends has no effect."""

    runtime: RuntimeName = "auto"
    """What has to compute the model; "auto": what computes its format."""
    threads: int = 0
    """Compute threads; 0: all physical cores, or as many as a container's CPU quota allows."""
    precision: Precision = "fast"
    """ "exact": compute and cache in float32, activations not quantised; "fast": the runtime's best trade-off."""
    weights: WeightForm = "auto"
    """In which form floating-point weights of GGUF and safetensors files are held; "auto": the best trade-off."""
    kv_memory: int | None = None
    """Bytes for the KV cache; None: the runtime's default share of the free memory."""
    cache_dir: Path | None = None
    """Where hashes and check results are kept between starts; None: nowhere."""
    context_length: int | None = None
    """Tokens per sequence; None: as many as the model was made for."""
    must_fit: bool = False
    """Whether weights that do not fit into the memory are refused, instead of being read from the file at each step."""
    max_rows: int = MAX_DEFAULT_SEQUENCES
    """Sequences that are computed together, for which a model whose sequences have states has some."""
    draft_context: int | None = None
    """For a model that only drafts: tokens of the one sequence that it computes, whose model has so many."""
    has_predictor: bool = False
    """Whether layers of the model that predict several tokens at once are loaded, too, where it has such layers
    and the runtime computes them."""

    def require_possible(self) -> None:
        """Raise SetupError for options that contradict each other."""
        if self.precision == "exact" and self.weights in ("int8", "int4"):
            raise SetupError(
                f"--precision exact keeps weights as they are, and --weights {self.weights} changes them: leave out "
                "one."
            )

    @property
    def max_sequences(self) -> int:
        """How many sequences of full length the KV cache has room for at most, where no size is asked for."""
        return MAX_DEFAULT_SEQUENCES if self.draft_context is None else 1

    def context_within(self, stated: int, model: str) -> int:
        """Return the tokens per sequence for a model made for `stated`. Raises SetupError if more were asked for."""
        if self.draft_context is not None:
            return min(self.draft_context, stated)
        if self.context_length is None or self.context_length <= stated:
            return self.context_length or stated
        raise SetupError(
            f"A context of {self.context_length} tokens was requested, but {model} was made for {stated}: request "
            f"{stated} or fewer."
        )


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
    predictor: Predictor | None = None
    """Its layers that predict several tokens at once, where they were asked for. Closed before `model`."""


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
