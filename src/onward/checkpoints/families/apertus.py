"""Apertus (modular_apertus.py; Swiss AI, arXiv 2509.14233): Llama with norms of queries and keys, and without gates:
between two matrices is xIELU, with numbers of each layer's own."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal, localcontext
from typing import Any

from onward.checkpoints.architecture import XIELU, Architecture
from onward.checkpoints.checkpoint import Checkpoint
from onward.checkpoints.declaration import Declaration, ModelType
from onward.checkpoints.families.common import RMS, common
from onward.checkpoints.parameters import LISTS, MAX_SCALE
from onward.checkpoints.rope_scaling import DECIMALS
from onward.checkpoints.tensor import few_floats
from onward.errors import CheckpointError

_SCALING = {
    "rope_type": "llama3", "rope_theta": 12e6, "factor": 8.0, "original_max_position_embeddings": 8192,
    "low_freq_factor": 1.0, "high_freq_factor": 4.0,
}  # fmt: skip


def _apertus(checkpoint: Checkpoint) -> Architecture:
    found = common(checkpoint, activation="xielu")
    if found.activation != "xielu":
        return found
    layers = zip(*(_of_layers(checkpoint, name, found.num_layers) for name in XIELU), strict=True)
    # both alphas are stored as what softplus makes them of, and the one below 0 is beta larger than that
    xielu = [(_softplus(above), beta + _softplus(below), beta, eps) for above, below, beta, eps in layers]
    return replace(found, xielu=tuple(xielu))


def _softplus(number: float) -> float:
    """Return ln(1 + e**number), correctly rounded: what a C library finds differs between machines."""
    exact = Decimal(number)
    with localcontext(DECIMALS):
        return float(max(exact, Decimal(0)) + (1 + (-abs(exact)).exp()).ln())


def _of_layers(checkpoint: Checkpoint, name: str, count: int) -> list[float]:
    """Return one of the numbers of each layer: a GGUF file states them once or in a list, under names without the
    architecture's, and folders have tensors. Raises CheckpointError."""
    parameters, key = checkpoint.parameters, f"xielu.{name}"
    stated, first = parameters.whole(key), f"blk.0.ffn_act.{name}"
    found: list[Any]
    if isinstance(stated, LISTS):
        found = parameters.list_of(float, key, count) or []
    elif stated is not None:
        found = [stated] * count
    elif first in checkpoint.tensors:
        found = [_only_number(checkpoint, f"blk.{layer}.ffn_act.{name}") for layer in range(count)]
    else:
        raise CheckpointError(
            f"{parameters.where} has neither {key!r} nor a tensor {first!r}: it is not a complete model."
        )
    for number in found:
        if not isinstance(number, float) or not abs(number) <= MAX_SCALE:
            raise CheckpointError(
                f"{parameters.where} states {str(number)[:40]!r} as {key!r}, which no model can have."
            )
    return found


def _only_number(checkpoint: Checkpoint, name: str) -> float:
    tensor, where = checkpoint.tensor(name), checkpoint.parameters.where
    numbers = few_floats(tensor, where).reshape(-1)
    if len(numbers) != 1:
        raise CheckpointError(f"{where}: {name!r} has the shape {list(tensor.shape)} instead of [1].")
    return float(numbers[0])


ARCHITECTURES: dict[str, Declaration] = {
    "apertus": Declaration(
        decoder=_apertus,
        keys=frozenset({RMS}),
        is_gated=False,
        head_norms="always",
        is_untied=True,
        names={
            "attention_layernorm": "attn_norm", "feedforward_layernorm": "ffn_norm",
            **{f"mlp.act_fn.{name}": f"ffn_act.{name}" for name in XIELU},
        },
        model_types={
            "apertus": ModelType(
                defaults={
                    "hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 32,
                    "num_attention_heads": 32, "max_position_embeddings": 65_536, "rms_norm_eps": 1e-5,
                    "hidden_act": "xielu", "rope_theta": 12e6, "rope_scaling": _SCALING,
                },
                attention_bias="attention_bias",
            ),
        },
    ),
}  # fmt: skip
