"""One model file, whatever its format: parameters, tensors by GGUF's names, tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from onward.checkpoints.gguf import read_gguf
from onward.checkpoints.parameters import Parameters
from onward.checkpoints.tensor import Tensor
from onward.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What is needed to compute a model. `paths` are the files it is read from."""

    paths: tuple[Path, ...]
    parameters: Parameters
    tensors: Mapping[str, Tensor]

    def tensor(self, name: str) -> Tensor:
        """Return a tensor that the architecture requires. Raises CheckpointError."""
        found = self.tensors.get(name)
        if found is None:
            raise CheckpointError(f"{self.paths[0]} has no tensor {name!r}: it is not a complete model.")
        return found


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a GGUF file. Raises CheckpointError."""
    found = read_gguf(path)
    return Checkpoint(found.paths, Parameters(found.metadata, str(path)), found.tensors)
