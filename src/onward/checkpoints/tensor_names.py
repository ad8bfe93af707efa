"""Names of tensors in Hugging Face's files, by GGUF's architecture, and what GGUF calls them."""

from __future__ import annotations

import re

_LLAMA = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}  # fmt: skip
_AFTER = {"post_attention_layernorm": "post_attention_norm", "post_feedforward_layernorm": "post_ffw_norm"}
_LAYERS: dict[str, dict[str, str]] = {
    "gemma3": {**_LLAMA, **_AFTER, "pre_feedforward_layernorm": "ffn_norm"},
    "olmo2": {**_LLAMA, **_AFTER},
    "phi3": {**_LLAMA, "self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up"},
    "starcoder2": {**_LLAMA, "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"},
    "gpt2": {
        "ln_1": "attn_norm", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output", "ln_2": "ffn_norm",
        "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down",
    },
    "gptneox": {
        "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "attention.query_key_value": "attn_qkv",
        "attention.dense": "attn_output", "mlp.dense_h_to_4h": "ffn_up", "mlp.dense_4h_to_h": "ffn_down",
    },
}  # fmt: skip
"""Of a layer; others have Llama's."""
_WHOLE = {
    "embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output", "wte": "token_embd",
    "wpe": "position_embd", "ln_f": "output_norm", "embed_in": "token_embd", "final_layer_norm": "output_norm",
    "embed_out": "output",
}  # fmt: skip
_NAME = re.compile(r"(?:(?:model|transformer|gpt_neox)\.)?(?:(?:layers|h)\.(?P<layer>\d{1,5})\.)?(?P<rest>[\w.]+)")
SKIPPED = (
    ".rotary_emb.inv_freq",
    ".self_attn.position_ids",
    ".attn.bias",
    ".attn.masked_bias",
    ".attention.bias",
    ".attention.masked_bias",
)
"""Ends of the names of tensors that older files have and that follow from the configuration."""


def gguf_name(name: str, architecture: str) -> str:
    """Return GGUF's name of a tensor; the name itself where there is none."""
    found = _NAME.fullmatch(name)
    if found is None:
        return name
    layer, (part, _, kind) = found["layer"], found["rest"].rpartition(".")
    table = _WHOLE if layer is None else _LAYERS.get(architecture, _LLAMA)
    known = table.get(part)
    if known is None:
        return name
    return f"{known}.{kind}" if layer is None else f"blk.{int(layer)}.{known}.{kind}"
