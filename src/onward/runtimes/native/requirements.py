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
    differences = {
        "embeddings of positions": found.rope is None,
        "two kinds of positions": found.local_rope is not None,
        "layers without positions": bool(found.ropeless_layers),
        "layer norms": found.norm != "rms",
        "norms after layers": found.has_norms_after or not found.has_norms_before,
        "parallel layers": found.is_parallel,
        f"the activation {found.activation}": found.activation != "silu",
        "scaled residuals": found.residual_scale != 1.0,
        "windows": bool(found.window_layers),
        "norms of queries and keys": _has(checkpoint, ".attn_q_norm."),
        "feed-forward layers without a gate": not _has(checkpoint, ".ffn_gate."),
        "norms with a bias": any(name.endswith("norm.bias") for name in checkpoint.tensors),
    }
    unknown = [name for name, is_there in differences.items() if is_there]
    listed = " and ".join([", ".join(unknown[:-1]), unknown[-1]] if len(unknown) > 1 else unknown)
    return f"it does not compute {listed} yet" if unknown else ""


def _has(checkpoint: Checkpoint, part: str) -> bool:
    return any(part in name for name in checkpoint.tensors)
