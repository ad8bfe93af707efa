"""What keeps a checkpoint from being computed: parameters and tensors that nothing would use, and wrong sizes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Set

from onward.checkpoints.architecture import Architecture
from onward.checkpoints.checkpoint import Checkpoint
from onward.checkpoints.parameters import Parameters
from onward.checkpoints.rope_scaling import LONG_FACTORS, SHORT_FACTORS
from onward.errors import CheckpointError

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
    "attention.max_alibi_bias": "ALiBi positions",
    "attention.clamp_kqv": "clamped queries",
}
"""Parameters that change what is computed, and what they stand for. Zero means that they are not used."""
_BLOCK = re.compile(
    r"blk\.(?P<layer>\d{1,5})\.(attn_q|attn_k|attn_v|attn_output|ffn_gate|ffn_up|ffn_down"
    r"|attn_norm|attn_q_norm|attn_k_norm|post_attention_norm|ffn_norm|post_ffw_norm)\.(weight|bias)"
)
_OTHER_TENSORS = {
    "token_embd.weight", "output_norm.weight", "output_norm.bias", "output.weight", "output.bias", "rope_freqs.weight",
}  # fmt: skip
"""With those of the blocks, all tensors that graphs of every architecture are made from."""
_PLACES = "position_embd.weight"


def require_computable(parameters: Parameters, known: Set[str]) -> None:
    """Raise CheckpointError for parameters that change what is computed, but those that the architecture knows."""
    for name, meaning in _UNSUPPORTED.items():
        if name not in known and parameters.has(name) and parameters.real(name):
            raise CheckpointError(f"{parameters.where} uses {meaning} ({name!r}), which Onward does not compute.")
    if parameters.whole(f"{parameters.architecture}.attention.causal") is False:
        raise CheckpointError(f"{parameters.where} is a model of embeddings: it cannot continue a text.")


def checked(found: Architecture, checkpoint: Checkpoint) -> Architecture:
    """Return the architecture. Raises CheckpointError for sizes that contradict each other or the tensors."""
    where, rope = checkpoint.parameters.where, found.rope
    rotated = rope.size if rope else 0
    if found.num_heads % found.num_kv_heads or rotated > found.head_size or rotated % 2:
        raise CheckpointError(f"{where} states sizes of heads that no model can have.")
    if rope and rope.factors is not None and len(rope.factors) != rotated // 2:
        raise CheckpointError(f"{where} has {len(rope.factors)} factors of positions instead of {rotated // 2}.")
    window = checkpoint.parameters.integer("attention.sliding_window", 0)
    if 0 < window < found.context_length and window != found.window:
        raise CheckpointError(
            f"{where} attends to {window} tokens at a time ('attention.sliding_window'), which Onward does not compute "
            f"for {found.name!r}."
        )
    _require_known(found, checkpoint)
    for name, shape in _shapes(found):
        tensor = checkpoint.tensor(name)
        if tensor.shape != shape:
            raise CheckpointError(f"{where}: {name!r} has the shape {list(tensor.shape)} instead of {list(shape)}.")
    return found


def _shapes(found: Architecture) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Return the shapes of tensors that every file of the architecture has."""
    if found.rope is None:
        yield _PLACES, (found.context_length, found.hidden)
    queries, keys = found.num_heads * found.head_size, found.num_kv_heads * found.head_size
    for layer in range(found.num_layers):
        for name, rows in {"attn_q": queries, "attn_k": keys, "attn_v": keys}.items():
            yield f"blk.{layer}.{name}.weight", (rows, found.hidden)
        for name in _norms(found):
            yield f"blk.{layer}.{name}.weight", (found.hidden,)


def _norms(found: Architecture) -> list[str]:
    before = ["attn_norm"] if found.is_parallel else ["attn_norm", "ffn_norm"]
    after = ["post_attention_norm", "post_ffw_norm"]
    return (before if found.has_norms_before else []) + (after if found.has_norms_after else [])


def _require_known(found: Architecture, checkpoint: Checkpoint) -> None:
    """Raise CheckpointError for a tensor that the graph would leave out: the result would be another model's."""
    others = _OTHER_TENSORS | ({_PLACES} if found.rope is None else set())
    others |= {SHORT_FACTORS, LONG_FACTORS} if found.rope else set()
    unread = set() if found.has_norms_before else {"attn_norm", "ffn_norm"}
    unread |= set() if found.has_norms_after else {"post_attention_norm", "post_ffw_norm"}
    for name in checkpoint.tensors:
        block = _BLOCK.fullmatch(name)
        if block:
            is_known = int(block["layer"]) < found.num_layers and name.split(".")[2] not in unread
        else:
            is_known = name in others
        if not is_known:
            raise CheckpointError(
                f"{checkpoint.parameters.where} has a tensor {name[:80]!r}, which Onward does not compute for "
                f"{found.name!r}."
            )
