"""The architectures that can be computed: from the parameters of a checkpoint to an Architecture.

Adding one means adding its function here. What a function does not know of is refused by name, never ignored.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace

from onward.checkpoints.checkpoint import Checkpoint
from onward.errors import CheckpointError
from onward.runtimes.openvino.graphs.architecture import Architecture, Rope

_UNSUPPORTED = {
    "attn_logit_softcapping": "soft-capped attention",
    "final_logit_softcapping": "soft-capped logits",
    "logit_scale": "scaled logits",
    "residual_scale": "scaled residuals",
    "embedding_scale": "scaled embeddings",
    "attention.scale": "a scale of attention of its own",
    "expert_count": "a mixture of experts",
    "ssm.state_size": "state-space layers",
    "attention.kv_lora_rank": "latent attention",
    "attention.q_lora_rank": "latent attention",
    "attention.alibi_bias_max": "ALiBi positions",
    "attention.clamp_kqv": "clamped queries",
}
"""Parameters that change what is computed, and what they stand for. Zero means that they are not used."""
_BLOCK = re.compile(
    r"blk\.(?P<layer>\d{1,5})\."
    r"((attn_q|attn_k|attn_v|attn_output|ffn_gate|ffn_up|ffn_down)\.(weight|bias)"
    r"|(attn_norm|attn_q_norm|attn_k_norm|post_attention_norm|ffn_norm|post_ffw_norm)\.weight)"
)
_OTHER_TENSORS = {"token_embd.weight", "output_norm.weight", "output.weight", "output.bias", "rope_freqs.weight"}
"""With those of the blocks, all tensors that graphs are made from."""
_GEMMA3_PATTERN = 6


def architecture_of(checkpoint: Checkpoint) -> Architecture:
    """Return the architecture of a checkpoint. Raises CheckpointError for one that Onward does not compute."""
    parameters = checkpoint.parameters
    make = _TABLE.get(parameters.architecture)
    if make is None:
        raise CheckpointError(
            f"{parameters.where} has the architecture {parameters.architecture!r}, which Onward does not compute. It "
            f"computes {', '.join(sorted(_TABLE))}."
        )
    for name, meaning in _UNSUPPORTED.items():
        if parameters.has(name) and parameters.real(name):
            raise CheckpointError(f"{parameters.where} uses {meaning} ({name!r}), which Onward does not compute.")
    if parameters.whole(f"{parameters.architecture}.attention.causal") is False:
        raise CheckpointError(f"{parameters.where} is a model of embeddings: it cannot continue a text.")
    return _checked(make(checkpoint), checkpoint)


def _llama(checkpoint: Checkpoint) -> Architecture:
    return replace(_common(checkpoint), has_interleaved_rope=True)


def _gemma3(checkpoint: Checkpoint) -> Architecture:
    """Gemma 3 (modeling_gemma3.py): five layers with a window, then one without; scaled embeddings; two rope bases."""
    parameters, common = checkpoint.parameters, _common(checkpoint)
    window = parameters.integer("attention.sliding_window", 0)
    local = range(common.num_layers) if window else range(0)
    is_27b = common.num_layers == 62  # its scale is of hidden size per head; the others' is of the head's size
    return replace(
        common,
        activation="gelu_tanh",
        embedding_scale=math.sqrt(common.hidden),
        window=window,
        window_layers=frozenset(layer for layer in local if (layer + 1) % _GEMMA3_PATTERN),
        local_rope=Rope(common.head_size, parameters.real("rope.freq_base_swa", 10_000.0)),
        attention_scale=(common.hidden / common.num_heads) ** -0.5 if is_27b else None,
    )


def _common(checkpoint: Checkpoint) -> Architecture:
    """Return what all architectures state in the same way, as Llama would use it."""
    parameters = checkpoint.parameters
    hidden = parameters.integer("embedding_length", minimum=1)
    heads = parameters.integer("attention.head_count", minimum=1)
    head_size = parameters.integer("attention.key_length", hidden // heads, minimum=1)
    if parameters.integer("attention.value_length", head_size) != head_size:
        raise CheckpointError(
            f"{parameters.where} has keys and values of different sizes, which Onward does not compute."
        )
    return Architecture(
        name=parameters.architecture,
        num_layers=parameters.integer("block_count", minimum=1),
        hidden=hidden,
        num_heads=heads,
        num_kv_heads=parameters.integer("attention.head_count_kv", heads, minimum=1),
        head_size=head_size,
        context_length=parameters.integer("context_length", minimum=1),
        epsilon=parameters.real("attention.layer_norm_rms_epsilon"),
        rope=_rope(checkpoint, parameters.integer("rope.dimension_count", head_size, minimum=2)),
    )


def _rope(checkpoint: Checkpoint, size: int) -> Rope:
    parameters = checkpoint.parameters
    kind = parameters.text("rope.scaling.type", "none")
    if kind not in ("none", "linear"):
        raise CheckpointError(
            f"{parameters.where} scales its positions by {kind!r} ('rope.scaling.type'), which Onward does not compute."
        )
    scale = parameters.real("rope.scaling.factor", 1.0) if kind == "linear" else 1.0
    factors = checkpoint.tensors.get("rope_freqs.weight")
    return Rope(
        size,
        parameters.real("rope.freq_base", 10_000.0),
        scale or 1.0,
        None if factors is None else factors.floats().reshape(-1),
    )


def _checked(found: Architecture, checkpoint: Checkpoint) -> Architecture:
    """Return the architecture. Raises CheckpointError for sizes that contradict each other or the tensors."""
    rope_size = found.rope.size
    if found.num_heads % found.num_kv_heads or rope_size > found.head_size or rope_size % 2:
        raise CheckpointError(f"{checkpoint.parameters.where} states sizes of heads that no model can have.")
    window = checkpoint.parameters.integer("attention.sliding_window", 0)
    if 0 < window < found.context_length and window != found.window:
        raise CheckpointError(
            f"{checkpoint.parameters.where} attends to {window} tokens at a time ('attention.sliding_window'), which "
            f"Onward does not compute for {found.name!r}."
        )
    _require_known(found, checkpoint)
    expected = {
        "attn_q": found.num_heads * found.head_size,
        "attn_k": found.num_kv_heads * found.head_size,
        "attn_v": found.num_kv_heads * found.head_size,
    }
    for layer in range(found.num_layers):
        for name, rows in expected.items():
            tensor = checkpoint.tensor(f"blk.{layer}.{name}.weight")
            if tensor.shape != (rows, found.hidden):
                raise CheckpointError(
                    f"{checkpoint.parameters.where}: {tensor.name!r} has the shape {list(tensor.shape)} instead of "
                    f"{[rows, found.hidden]}."
                )
    return found


def _require_known(found: Architecture, checkpoint: Checkpoint) -> None:
    """Raise CheckpointError for a tensor that the graph would leave out: the result would be another model's."""
    for name in checkpoint.tensors:
        block = _BLOCK.fullmatch(name)
        is_known = int(block["layer"]) < found.num_layers if block else name in _OTHER_TENSORS
        if not is_known:
            raise CheckpointError(
                f"{checkpoint.parameters.where} has a tensor {name[:80]!r}, which Onward does not compute for "
                f"{found.name!r}."
            )


_TABLE: dict[str, Callable[[Checkpoint], Architecture]] = {
    "llama": _llama,
    "qwen2": _common,
    "qwen3": _common,
    "gemma3": _gemma3,
}
