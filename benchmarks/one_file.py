"""One GGUF file as a family of models: both servers read it."""

from __future__ import annotations

from pathlib import Path

from benchmarks.pairs import Family
from benchmarks.peer_build import PeerError
from onward.checkpoints.checkpoint import read_checkpoint
from onward.errors import CheckpointError


def family_of(gguf: Path) -> Family:
    """Return the family of a file, which both servers use as it is. Raises PeerError if it cannot be read."""
    try:
        tokens = read_checkpoint(gguf).parameters.whole("tokenizer.ggml.tokens")
    except CheckpointError as problem:
        raise PeerError(str(problem)) from None
    vocabulary = len(tokens) if isinstance(tokens, list) else 0
    return Family(gguf.stem, vocabulary, {"file": str(gguf)}, {"file": gguf}, (1, 8, 32), {1: 4, 8: 2, 32: 2}, 5)
