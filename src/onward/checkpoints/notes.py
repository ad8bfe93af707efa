"""What is wrong with the files of a model, and what its operator should know about them, a sentence each."""

from __future__ import annotations

from pathlib import Path

from onward.checkpoints.architectures import architecture_of
from onward.checkpoints.checkpoint import Checkpoint, read_checkpoint
from onward.checkpoints.mixtures import is_of_experts
from onward.checkpoints.tensor import Tensor
from onward.checkpoints.tokenizer import tokenizer_notes
from onward.errors import CheckpointError

_CHUNK_BYTES = 1 << 24


def problem_of(path: Path) -> str:
    """Return what keeps the model at a path from being computed, "" if nothing was found. Reads no weights."""
    try:
        checkpoint = read_checkpoint(path)
        architecture_of(checkpoint)
        _tokenizer_notes(checkpoint)
    except CheckpointError as problem:
        return str(problem)
    return ""


def notes_of(path: Path) -> list[str]:
    """Return the notes about a GGUF file, or a folder of safetensors files. Raises CheckpointError."""
    checkpoint = read_checkpoint(path)
    return [*checkpoint.notes, *_tokenizer_notes(checkpoint), *_output_layer(checkpoint)]


def expert_facts(checkpoint: Checkpoint) -> dict[str, int | str]:
    """Return how many parameters a mixture of experts has, and how many of them one token uses; {} for other models.
    Raises CheckpointError."""
    mixture = architecture_of(checkpoint).mixture
    if mixture is None:
        return {}
    sizes = {name: tensor.num_rows * tensor.shape[-1] for name, tensor in checkpoint.tensors.items()}
    of_experts = sum(size for name, size in sizes.items() if is_of_experts(name))
    total = sum(sizes.values())
    active = total - of_experts + of_experts * mixture.used // mixture.count
    return {"experts": mixture.count, "parameters": total, "active_parameters": active}


def _tokenizer_notes(checkpoint: Checkpoint) -> list[str]:
    """Return those of a tokenizer that is in the metadata. Raises CheckpointError."""
    has_tokenizer = checkpoint.parameters.whole("tokenizer.ggml.model") is not None
    return tokenizer_notes(checkpoint.parameters) if has_tokenizer else []


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
