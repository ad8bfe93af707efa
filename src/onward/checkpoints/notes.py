"""What the operator of a model should know about its files, a sentence each."""

from __future__ import annotations

from pathlib import Path

from onward.checkpoints.checkpoint import Checkpoint, read_checkpoint
from onward.checkpoints.tensor import Tensor

_CHUNK_BYTES = 1 << 24


def notes_of(path: Path) -> list[str]:
    """Return the notes about a GGUF file, or a folder of safetensors files. Raises CheckpointError."""
    checkpoint = read_checkpoint(path)
    return [*checkpoint.notes, *_output_layer(checkpoint)]


def _output_layer(checkpoint: Checkpoint) -> list[str]:
    """Say so where embeddings should be the output layer, too, but are not (transformers 5 uses both as they are)."""
    embedding, output = (checkpoint.tensors.get(f"{name}.weight") for name in ("token_embd", "output"))
    if not checkpoint.is_tied or embedding is None or output is None or _are_equal(embedding, output):
        return []
    return [
        f"{checkpoint.parameters.where} states that its embeddings are its output layer ('tie_word_embeddings'), but "
        "has another output layer, which is used: set it to false in config.json if that is meant."
    ]


def _are_equal(one: Tensor, other: Tensor) -> bool:
    if one.type != other.type or one.shape != other.shape:
        return False
    pairs = ((one.data[begin:], other.data[begin:]) for begin in range(0, one.data.size, _CHUNK_BYTES))
    return all((left[:_CHUNK_BYTES] == right[:_CHUNK_BYTES]).all() for left, right in pairs)
