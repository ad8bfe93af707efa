"""The Llama network and its initial weights."""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from training.presets import ModelShape

INITIAL_DEVIATION = 0.02


def llama_config(shape: ModelShape, end_of_text: int, pad: int) -> LlamaConfig:
    """Return transformers' configuration of the network. There is no separate start token."""
    return LlamaConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.feed_forward,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_size,
        max_position_embeddings=shape.context,
        rope_theta=shape.rope_theta,
        rms_norm_eps=1e-5,
        initializer_range=INITIAL_DEVIATION,
        tie_word_embeddings=True,
        bos_token_id=end_of_text,
        eos_token_id=end_of_text,
        pad_token_id=pad,
        attn_implementation="sdpa",
    )


def build_network(shape: ModelShape, end_of_text: int, pad: int, seed: int) -> LlamaForCausalLM:
    """Return a float32 network whose residual branches start at zero, which stabilises the start of training."""
    torch.manual_seed(seed)
    network = LlamaForCausalLM(llama_config(shape, end_of_text, pad))
    with torch.no_grad():
        for layer in network.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    network.generation_config.do_sample = False
    return network


def parameter_count(network: torch.nn.Module) -> int:
    """Return the number of weights; the tied embedding counts once."""
    return sum(parameter.numel() for parameter in network.parameters())
