"""One model file, whatever its format: parameters, tensors by GGUF's names, tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from onward.checkpoints.parameters import Parameters
from onward.checkpoints.tensor import Tensor
from onward.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What is needed to compute a model. `paths` are the files it is read from."""

    paths: tuple[Path, ...]
    parameters: Parameters
    tensors: Mapping[str, Tensor]
    num_tokens: int | None = None
    """How many rows embeddings have to have; None: as many as they have."""
    is_tied: bool | None = None
    """Whether the embeddings are the output layer, too; None: where the file has no other one."""
    notes: tuple[str, ...] = ()
    """Sentences for the operator about what the files state."""
    predictions: Mapping[str, Tensor] = field(default_factory=dict)
    """Tensors of layers that predict several tokens at once, which only draft: as in the file (predictions)."""

    def tensor(self, name: str) -> Tensor:
        """Return a tensor that the architecture requires. Raises CheckpointError."""
        found = self.tensors.get(name)
        if found is None:
            raise CheckpointError(f"{self.paths[0]} has no tensor {name!r}: it is not a complete model.")
        return found
