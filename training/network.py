"""The Llama network and its starting weights."""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from training.presets import ModelShape

START_DEVIATION = 0.02


def llama_config(shape: ModelShape, end_of_text: int, pad: int) -> LlamaConfig:
    """transformers' configuration of the network; no separate start token exists."""
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
        initializer_range=START_DEVIATION,
        tie_word_embeddings=True,
        bos_token_id=end_of_text,
        eos_token_id=end_of_text,
        pad_token_id=pad,
        attn_implementation="sdpa",
    )


def build_network(shape: ModelShape, end_of_text: int, pad: int, seed: int) -> LlamaForCausalLM:
    """A network in float32 whose residual branches start at zero, so that training starts calm."""
    torch.manual_seed(seed)
    network = LlamaForCausalLM(llama_config(shape, end_of_text, pad))
    with torch.no_grad():
        for layer in network.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    network.generation_config.do_sample = False
    return network


def parameter_count(network: torch.nn.Module) -> int:
    """Number of weights, the tied embedding counted once."""
    return sum(parameter.numel() for parameter in network.parameters())
