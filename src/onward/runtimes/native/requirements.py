"""What the native runtime does not compute yet, in a sentence's words. Reads parameters and names, no weights."""

from __future__ import annotations

from onward.checkpoints.adapter import read_changes
from onward.checkpoints.architecture import Architecture
from onward.checkpoints.architectures import architecture_of
from onward.checkpoints.checkpoint import Checkpoint
from onward.runtimes.options import RuntimeOptions

FLOATS = frozenset({"F32", "F16", "BF16"})
"""Types of weights that are not quantised."""
EMBEDDING = "token_embd.weight"


def auto_problem(checkpoint: Checkpoint, options: RuntimeOptions) -> str:
    """Return why the native runtime cannot compute a checkpoint, "" if it can. Raises CheckpointError."""
    return native_problem(architecture_of(checkpoint, options.context_length), checkpoint, options)


def native_problem(found: Architecture, checkpoint: Checkpoint, options: RuntimeOptions) -> str:
    """Return why the native runtime cannot compute a checkpoint, "" if it can."""
    if options.weights in ("int8", "int4") and any(
        tensor.type.name not in FLOATS for tensor in checkpoint.tensors.values()
    ):
        return f"its weights are quantised already, and are computed as they are: {options.weights} is for other files"
    if options.adapter is not None and EMBEDDING in read_changes(checkpoint, options.adapter)[1]:
        return "the adapter changes its embeddings"
    has_head_norms = any(".attn_q_norm." in name for name in checkpoint.tensors)
    if found.norm == "layer" and has_head_norms:
        return "it does not compute layer norms of queries and keys yet"
    return ""
