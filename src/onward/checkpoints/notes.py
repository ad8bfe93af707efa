"""What is wrong with the files of a model, and what its operator should know about them, a sentence each."""

from __future__ import annotations

import numpy as np

from onward.checkpoints.architectures import architecture_of
from onward.checkpoints.checkpoint import Checkpoint
from onward.checkpoints.mapped import copied
from onward.checkpoints.mixtures import is_of_experts
from onward.checkpoints.tensor import Tensor
from onward.checkpoints.tokenizer import tokenizer_notes
from onward.checkpoints.types import FLOAT8, NVFP4
from onward.machine import bytes_in_words

_CHUNK_BYTES = 1 << 24


def require_contents(checkpoint: Checkpoint) -> list[str]:
    """Return the notes about a tokenizer that is in the metadata. Reads no weights. Raises CheckpointError for what
    keeps the model from being computed."""
    architecture_of(checkpoint)
    has_tokenizer = checkpoint.parameters.whole("tokenizer.ggml.model") is not None
    return tokenizer_notes(checkpoint.parameters) if has_tokenizer else []


def size_facts(checkpoint: Checkpoint) -> dict[str, int | str]:
    """Return how many parameters a mixture of experts has, and how many of them one token uses; of models whose
    sequences have states, how large those are; of models with layers that only draft, how many bytes of the files
    those are; of weights in FP8, how much memory they take as integers of 8 bits (which is the default), of 4 bits, and
    as they are; {} for others. Raises CheckpointError."""
    architecture = architecture_of(checkpoint)
    recurrent = architecture.delta or architecture.state_space
    found: dict[str, int | str] = {} if recurrent is None else {"state_bytes": recurrent.state_bytes}
    if any(tensor.type == FLOAT8 for tensor in checkpoint.tensors.values()):
        found["memory_bytes"] = _bytes_as_integers(checkpoint, 8)
        found["int4_memory_bytes"] = _bytes_as_integers(checkpoint, 4)
        found["exact_memory_bytes"] = _bytes_as_they_are(checkpoint)
    if drafting := sum(tensor.num_bytes for tensor in checkpoint.predictions.values()):
        found["drafting_bytes"] = drafting
    mixture = architecture.mixture
    if mixture is None:
        return found
    sizes = {name: tensor.num_rows * tensor.shape[-1] for name, tensor in checkpoint.tensors.items()}
    of_experts = sum(size for name, size in sizes.items() if is_of_experts(name))
    total = sum(sizes.values())
    active = total - of_experts + of_experts * mixture.used // mixture.count
    return {"experts": mixture.count, "parameters": total, "active_parameters": active, **found}


def _bytes_as_integers(checkpoint: Checkpoint, bits: int) -> int:
    """Return the memory of all weights with so many bits each, and a scale of 16 bits per 32, but for those in
    NVFP4."""
    return sum(
        _nvfp4_bytes(tensor) if tensor.type == NVFP4 else tensor.num_rows * tensor.shape[-1] * (4 * bits + 2) // 32
        for tensor in checkpoint.tensors.values()
    )


def _nvfp4_bytes(tensor: Tensor) -> int:
    """Return the memory of a tensor in NVFP4, each of whose blocks gets its factor."""
    return tensor.num_bytes // NVFP4.block_bytes * (NVFP4.block_bytes + 4)


def _bytes_as_they_are(checkpoint: Checkpoint) -> int:
    """Return the memory of all weights in their types, those in FP8 with a scale of 32 bits per 32."""
    tensors = checkpoint.tensors.values()
    of_codes = sum(tensor.num_bytes // 8 for tensor in tensors if tensor.type == FLOAT8)
    return of_codes + sum(_nvfp4_bytes(tensor) if tensor.type == NVFP4 else tensor.num_bytes for tensor in tensors)


def float8_notes(checkpoint: Checkpoint) -> list[str]:
    """Return a note about weights in FP8: what becomes of them, and how much memory they take."""
    if not any(tensor.type == FLOAT8 for tensor in checkpoint.tensors.values()):
        return []
    as_integers, as_they_are = _bytes_as_integers(checkpoint, 8), _bytes_as_they_are(checkpoint)
    return [
        f"{checkpoint.parameters.where} has weights in FP8: --precision fast holds them as 8-bit integers "
        f"({bytes_in_words(as_integers)}), exact as they are ({bytes_in_words(as_they_are)}). "
        "Activations, keys and values are not rounded to FP8."
    ]


def output_layer_notes(checkpoint: Checkpoint) -> list[str]:
    """Return a note where embeddings should be the output layer, too, but are not (transformers 5 uses both)."""
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
    if one.scales is not None and other.scales is not None:
        blocks = ((each.rows, each.inputs) for each in (one.scales, other.scales))
        if len(set(blocks)) > 1 or not _are_equal(one.scales.stored, other.scales.stored):
            return False
    both = (one.block_scales, other.block_scales), (one.factors, other.factors)
    if any(not np.array_equal(left, right) for left, right in both if left is not None and right is not None):
        return False
    first, second = one.data.reshape(-1), other.data.reshape(-1)
    pairs = ((first[begin:], second[begin:]) for begin in range(0, first.size, _CHUNK_BYTES))
    return all((copied(left[:_CHUNK_BYTES]) == copied(right[:_CHUNK_BYTES])).all() for left, right in pairs)
