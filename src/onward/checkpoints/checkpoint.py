"""One model file, whatever its format: parameters, tensors by GGUF's names, tokenizer."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from onward.checkpoints import latent, qwen35
from onward.checkpoints.arrange import PAIRED_IN_GGUF, arranged
from onward.checkpoints.cursor import Strings
from onward.checkpoints.folder import read_folder
from onward.checkpoints.gguf import read_gguf
from onward.checkpoints.metadata_keys import understood
from onward.checkpoints.mixtures import joined_experts
from onward.checkpoints.parameters import Parameters
from onward.checkpoints.tensor import Tensor
from onward.errors import CheckpointError

_LAYER = re.compile(r"blk\.([0-9]{1,4})\.")


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


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a GGUF file, or a folder of safetensors files. Raises CheckpointError."""
    if path.is_dir():
        found = read_folder(path)
        notes = found.notes + _prediction_notes(found.predictions, path)
        tensors = joined_experts(found.tensors, str(path))
        return Checkpoint(
            found.paths, found.parameters, tensors, found.num_tokens, found.is_tied, notes, found.predictions
        )
    file = read_gguf(path)
    metadata, notes = understood(file.metadata, str(path))
    parameters = Parameters(metadata, str(path))
    has_pairs = parameters.architecture in PAIRED_IN_GGUF
    predicting = _predicting(parameters, file.tensors)
    if parameters.architecture in latent.NUMBERED_ON:
        count = parameters.num_own_layers()
        parameters = Parameters({**metadata, f"{parameters.architecture}.block_count": count}, str(path))
    tensors, predictions = (
        arranged(parameters, each, has_pairs=has_pairs)
        for each in (
            {name: tensor for name, tensor in file.tensors.items() if name not in predicting},
            {name: tensor for name, tensor in file.tensors.items() if name in predicting},
        )
    )
    tokens = parameters.whole("tokenizer.ggml.tokens")
    return Checkpoint(
        file.paths,
        parameters,
        joined_experts(tensors, str(path)),
        num_tokens=len(tokens) if isinstance(tokens, Strings) and len(tokens) else None,
        notes=notes + _prediction_notes(predictions, path),
        predictions=predictions,
    )


def _predicting(parameters: Parameters, names: Iterable[str]) -> frozenset[str]:
    """Return which of the tensors of a GGUF file are those of layers that predict several tokens. Raises
    CheckpointError."""
    if parameters.architecture not in qwen35.NAMES | latent.NUMBERED_ON:
        return frozenset()
    layers = range(parameters.num_own_layers(), parameters.num_layers())
    return frozenset(name for name in names if (found := _LAYER.match(name)) and int(found[1]) in layers)


def _prediction_notes(predictions: Mapping[str, Tensor], path: Path) -> tuple[str, ...]:
    """Return a note about layers that only draft, if there are some."""
    note = f"{path} has layers that predict several tokens at once (MTP): only --draft mtp uses them."
    return (note,) if predictions else ()
