"""What the native runtime does not compute yet, in a sentence's words. Reads parameters and names, no weights."""

from __future__ import annotations

from onward.checkpoints.architecture import Architecture
from onward.checkpoints.architectures import architecture_of
from onward.checkpoints.checkpoint import Checkpoint
from onward.runtimes.options import RuntimeOptions


def auto_problem(checkpoint: Checkpoint, options: RuntimeOptions) -> str:
    """Return why the native runtime cannot compute a checkpoint, "" if it can. Raises CheckpointError."""
    return native_problem(architecture_of(checkpoint, options.context_length), checkpoint, options)


def native_problem(found: Architecture, checkpoint: Checkpoint, options: RuntimeOptions) -> str:
    """Return why the native runtime cannot compute a checkpoint, "" if it can."""
    if options.adapter is not None:
        return "it does not take LoRA adapters yet"
    if options.weights not in ("auto", "exact"):
        return f"it does not store weights as {options.weights} yet"
    has_head_norms = any(".attn_q_norm." in name for name in checkpoint.tensors)
    if found.norm == "layer" and has_head_norms:
        return "it does not compute layer norms of queries and keys yet"
    return ""
