"""How a model is to be loaded, whatever its runtime. Cheap to import."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from onward.errors import SetupError
from onward.runtimes.kv_plan import MAX_DEFAULT_SEQUENCES
from onward.values import Precision, RuntimeName, WeightForm


@dataclass(frozen=True, slots=True)
class RuntimeOptions:
    """Options of every runtime; one that cannot honour an option ignores it and says so in its documentation."""

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
