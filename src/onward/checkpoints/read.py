"""Reads model files of any format as checkpoints."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from onward.checkpoints.arrange import arranged
from onward.checkpoints.checkpoint import Checkpoint
from onward.checkpoints.cursor import Strings
from onward.checkpoints.declaration import Predicting
from onward.checkpoints.folder import read_folder
from onward.checkpoints.gguf import read_gguf
from onward.checkpoints.metadata_keys import understood
from onward.checkpoints.mixtures import joined_experts
from onward.checkpoints.parameters import Parameters
from onward.checkpoints.table import declared
from onward.checkpoints.tensor import Tensor, require_possible_shapes

_LAYER = re.compile(r"blk\.([0-9]{1,4})\.")


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
    require_possible_shapes(file.tensors.values(), str(path))
    own = declared(parameters.architecture)
    predicting = _predicting(parameters, own.predicting, file.tensors)
    if own.predicting is not None and own.predicting.are_numbered_on:
        count = parameters.num_own_layers()
        parameters = Parameters({**metadata, f"{parameters.architecture}.block_count": count}, str(path))
    tensors, predictions = (
        arranged(parameters, each, has_pairs=own.has_pairs_in_gguf)
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


def _predicting(parameters: Parameters, predicting: Predicting | None, names: Iterable[str]) -> frozenset[str]:
    """Return which of the tensors of a GGUF file are those of layers that predict several tokens. Raises
    CheckpointError."""
    if predicting is None or not predicting.are_in_gguf:
        return frozenset()
    layers = range(parameters.num_own_layers(), parameters.num_layers())
    return frozenset(name for name in names if (found := _LAYER.match(name)) and int(found[1]) in layers)


def _prediction_notes(predictions: Mapping[str, Tensor], path: Path) -> tuple[str, ...]:
    """Return a note about layers that only draft, if there are some; those of ERNIE have no names of GGUF's."""
    if not predictions:
        return ()
    is_computed = all(name.startswith("blk.") for name in predictions)
    use = "only --draft mtp uses them" if is_computed else "Onward does not compute them for this architecture"
    return (f"{path} has layers that predict several tokens at once (MTP): {use}.",)
