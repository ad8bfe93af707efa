"""The rotation of positions that a checkpoint states: its rule, factors and magnitude."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from onward.checkpoints.architecture import Architecture, Rope
from onward.checkpoints.checkpoint import Checkpoint
from onward.checkpoints.parameters import Parameters
from onward.checkpoints.rope_scaling import (
    LONG_FACTORS,
    ROPE_FACTORS,
    SHORT_FACTORS,
    Yarn,
    position_scale,
    yarn_magnitude,
)
from onward.checkpoints.tensor import few_floats
from onward.errors import CheckpointError


def rope_of(checkpoint: Checkpoint, size: int, base: float) -> Rope:
    """Return the rotation, whose scaling is linear where the file states a factor and no rule, and whose magnitude
    counts for every rule (llama.cpp's llama_model_base::load_hparams and llama_context)."""
    parameters = checkpoint.parameters
    kind = parameters.text("rope.scaling.type", "linear")
    stated = checkpoint.tensors.get(ROPE_FACTORS)
    factors = None if stated is None else few_floats(stated, parameters.where).reshape(-1)
    if kind == "yarn":
        found = _yarn(parameters, size, base)
        return found if factors is None else replace(found, factors=_both(found, factors, parameters.where))
    if kind not in ("none", "linear", "longrope"):
        raise CheckpointError(
            f"{parameters.where} scales its positions by {kind!r} ('rope.scaling.type'), which Onward does not compute."
        )
    scale = 1.0 if kind == "none" else position_scale(parameters)
    return Rope(size, base, scale, factors, parameters.real("rope.scaling.attn_factor", 1.0))


def _both(rope: Rope, factors: NDArray[np.float32], where: str) -> NDArray[np.float32]:
    if rope.factors is None or rope.factors.shape != factors.shape:
        raise CheckpointError(f"{where} has {len(factors)} factors of positions instead of {rope.size // 2}.")
    return rope.factors * factors


def _yarn(parameters: Parameters, size: int, base: float) -> Rope:
    """YaRN, by llama.cpp's names. Raises CheckpointError."""
    factor = position_scale(parameters)
    share = parameters.real("rope.scaling.yarn_ext_factor", 1.0)
    if share < 0:  # llama.cpp's way to say that the file leaves it open
        share = 1.0
    rule = Yarn(
        factor,
        parameters.integer(
            "rope.scaling.original_context_length", parameters.integer("context_length", minimum=1), minimum=1
        ),
        parameters.real("rope.scaling.yarn_beta_fast", 32.0),
        parameters.real("rope.scaling.yarn_beta_slow", 1.0),
        share,
        is_rounded=parameters.switch("rope.scaling.truncate", True),
    )
    try:
        factors = rule.factors(base, size)
    except ValueError as error:
        raise CheckpointError(f"{parameters.where} scales its positions by YaRN, but {error}.") from None
    multiplier = parameters.real("rope.scaling.yarn_log_multiplier", 0.0)
    if multiplier < 0:
        raise CheckpointError(
            f"{parameters.where} states {multiplier:g} as 'rope.scaling.yarn_log_multiplier', which no model can have."
        )
    whole = yarn_magnitude(factor, 1.0) / yarn_magnitude(factor, multiplier)
    magnitude = parameters.real("rope.scaling.yarn_attn_factor", whole if share else 1.0)
    magnitude *= parameters.real("rope.scaling.attn_factor", 1.0)
    return Rope(size, base, factors=factors.astype(np.float32), magnitude=magnitude)


def has_long_positions(checkpoint: Checkpoint, context_length: int | None) -> bool:
    """Return whether a context of so many tokens needs LongRoPE's long factors. Raises CheckpointError."""
    original = first_context(checkpoint)
    return original is not None and (context_length or 0) > original


def with_long_positions(found: Architecture, checkpoint: Checkpoint, context_length: int | None) -> Architecture:
    """Return the architecture with LongRoPE's factors for a context, if it has them. Raises CheckpointError."""
    original = first_context(checkpoint)
    if original is None or found.rope is None:
        return found
    is_long = has_long_positions(checkpoint, context_length)
    if found.rope.factors is not None:
        raise CheckpointError(f"{checkpoint.parameters.where} scales its positions in two ways.")
    both = {name: checkpoint.tensor(name) for name in (SHORT_FACTORS, LONG_FACTORS)}
    factors = {name: few_floats(tensor, checkpoint.parameters.where).reshape(-1) for name, tensor in both.items()}
    rope = replace(found.rope, factors=factors[LONG_FACTORS if is_long else SHORT_FACTORS])
    return replace(found, rope=rope, context_length=found.context_length if is_long else original)


def first_context(checkpoint: Checkpoint) -> int | None:
    """Return the tokens up to which LongRoPE's short factors are used, None for a model that has one set of positions.
    Raises CheckpointError."""
    parameters = checkpoint.parameters
    if not {SHORT_FACTORS, LONG_FACTORS} & set(checkpoint.tensors):
        return None
    longest = parameters.integer("context_length", minimum=1)
    return min(longest, parameters.integer("rope.scaling.original_context_length", longest, minimum=1))
