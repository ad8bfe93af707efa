"""Rotary positions as config.json states them (transformers' modeling_rope_utils.py), by GGUF's names.

Logarithms and powers are rounded correctly, from decimal numbers: those of a C library, and of numpy, differ in their
last bits between machines, and so would every logit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Context, Decimal, localcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onward.checkpoints.parameters import Parameters
from onward.errors import CheckpointError

_FACTORS, _LONG_FACTORS = "rope.scaling.factors", "rope.scaling.long_factors"
ROPE_FACTORS = "rope_freqs.weight"
"""By what frequencies are divided, as a tensor."""
SHORT_FACTORS, LONG_FACTORS = "rope_factors_short.weight", "rope_factors_long.weight"
"""LongRoPE's factors, as tensors: for the context of the first training, and for longer ones."""
UNROTATED = 1e30
"""A factor of dimensions that do not rotate, as GGUF files have it."""
MAX_HEAD_SIZE = 1 << 12
"""In dimensions: eight times those of any model. Each two of them have a factor, and kernels are compiled for the size,
which takes a time that grows with its square."""
PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459230781640628620899")
DECIMALS = Context(prec=60)
"""Raises ArithmeticError for what has no value, such as the logarithm of a negative number."""


def log(number: float) -> float:
    """Return the natural logarithm, correctly rounded. Raises ArithmeticError."""
    return float(Decimal(number).ln(DECIMALS))


def position_scale(parameters: Parameters) -> float:
    """Return by what positions are divided; `rope.scale_linear` is the older name. Raises CheckpointError."""
    name = "rope.scaling.factor" if parameters.has("rope.scaling.factor") else "rope.scale_linear"
    found = parameters.real(name, 1.0) or 1.0
    if found <= 0:
        raise CheckpointError(f"{parameters.where} states {found} as {name!r}, which no model can have.")
    return found


def rope_metadata(stated: Mapping[str, Any], sizes: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return base, rotated dimensions and scaling. `sizes`: what is known already, by GGUF's names.

    Factors of the frequencies are lists of numbers under names that `factor_lists` knows. Raises CheckpointError.
    """
    found: dict[str, Any] = {}
    scaling, local = _scaling(stated, where)
    base = scaling.get("rope_theta", sizes.get("rope.freq_base"))
    if base is not None:
        found["rope.freq_base"] = base
    if local is not None:
        found["rope.freq_base_swa"] = local
    share = scaling.get("partial_rotary_factor", stated.get("partial_rotary_factor", stated.get("rotary_pct", 1.0)))
    size = _head_size(sizes)
    if size is not None and size > MAX_HEAD_SIZE:
        raise CheckpointError(f"{where} states larger heads than any model has.")
    is_proportional = scaling.get("rope_type") == "proportional"
    if size is not None and isinstance(share, int | float) and share != 1 and not is_proportional:
        if not 0 <= share <= 1:
            raise CheckpointError(
                f"{where} rotates {share} of each head ('partial_rotary_factor'), which no model can."
            )
        found["rope.dimension_count"] = int(size * share)
    rotated = found.get("rope.dimension_count", size)
    if (growth := scaling.get("llama_4_scaling_beta")) is not None:
        found["attention.temperature_scale"] = growth
    return found | _scaled(scaling, stated, base, rotated, where)


def _scaling(stated: Mapping[str, Any], where: str) -> tuple[dict[str, Any], Any]:
    """Return the rules of positions, and the base of layers with a window where it differs. transformers 5 has both in
    `rope_parameters`, by kind of layer for some models; earlier versions have `rope_scaling`."""
    rules = stated.get("rope_parameters") or stated.get("rope_scaling") or {}
    if not isinstance(rules, dict):
        raise CheckpointError(f"{where} has rules of positions ('rope_scaling') that are not an object.")
    if isinstance(whole := rules.get("full_attention"), dict):
        local = rules.get("sliding_attention")
        if not isinstance(local, dict):
            return whole, None
        if (kind := local.get("rope_type", "default")) != "default":
            raise CheckpointError(
                f"{where} scales positions of layers with a window by {str(kind)[:40]!r}, which Onward does not "
                "compute."
            )
        return whole, local.get("rope_theta")
    return rules, None


def _head_size(sizes: Mapping[str, Any]) -> int | None:
    stated = sizes.get("attention.key_length")
    if type(stated) is int:
        return stated
    hidden, heads = sizes.get("embedding_length"), sizes.get("attention.head_count")
    return hidden // heads if type(hidden) is int and type(heads) is int and heads > 0 else None


def _scaled(
    scaling: dict[str, Any], stated: Mapping[str, Any], base: Any, rotated: int | None, where: str
) -> dict[str, Any]:
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    try:
        match kind:
            case "default" | "mrope" | None:  # Qwen2-VL's name: one position for each of an image's dimensions
                return {}
            case "dynamic" if not scaling.get("alpha"):  # which scales beyond the context that is stated only
                return {}
            case "dynamic":  # Hunyuan's
                return {"rope.scaling.alpha": float(scaling["alpha"])}
            case "linear":
                return {"rope.scaling.type": "linear", "rope.scaling.factor": float(scaling["factor"])}
            case "proportional" if rotated is not None:
                return {_FACTORS: proportional_factors(scaling, rotated)}
            case "llama3" if rotated is not None:
                return {_FACTORS: llama3_factors(scaling, float(base), rotated).tolist()}
            case "yarn":
                return _yarn(scaling, stated)
            case "longrope" | "su":
                return _long(scaling, stated)
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        raise CheckpointError(f"{where} scales its positions by {kind!r}, but not completely ({error}).") from None
    raise CheckpointError(f"{where} scales its positions by {str(kind)[:40]!r}, which Onward does not compute.")


def proportional_factors(scaling: Mapping[str, Any], size: int) -> list[float]:
    """Return by what each frequency of a head is divided: all, but for the first ones by so much that they are zero.
    Raises TypeError or ValueError for impossible numbers."""
    share, factor = float(scaling.get("partial_rotary_factor", 1.0)), float(scaling.get("factor", 1.0))
    if not (0 <= share <= 1 and 0 < factor < 1e6):
        raise ValueError("its numbers are impossible")
    turning = int(share * size // 2)
    return [factor] * turning + [UNROTATED] * (size // 2 - turning)


def llama3_factors(scaling: Mapping[str, Any], base: float, rotated: int) -> NDArray[np.float64]:
    """Return by what each frequency is divided, [rotated / 2]: long waves by `factor`, short ones by 1, those between
    by something between (Llama 3.1's rule; none are in Llama 4 Scout, whose `low` is `high`). Raises KeyError,
    TypeError, ValueError or ArithmeticError for incomplete and impossible rules."""
    factor, original = float(scaling["factor"]), float(scaling["original_max_position_embeddings"])
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    if not 0 < base < math.inf:
        raise ValueError("its base is impossible")
    if not (1 <= factor < 1e6 and 0 < low <= high < 1e6 and 0 < original < 1e12):
        raise ValueError("its numbers are impossible")
    with localcontext(DECIMALS):
        step = Decimal(base).ln() * 2 / rotated
        waves = np.array([float(2 * PI * (step * pair).exp()) for pair in range(rotated // 2)])
    turns = original / waves
    smooth = np.clip((turns - low) / (high - low), 0.0, 1.0) if low < high else np.where(turns > low, 1.0, 0.0)
    found: NDArray[np.float64] = 1.0 / ((1.0 - smooth) / factor + smooth)
    return found


def _yarn(scaling: dict[str, Any], stated: Mapping[str, Any]) -> dict[str, Any]:
    """YaRN's parameters, as llama.cpp's converter names them."""
    original = scaling.get("original_max_position_embeddings") or stated["max_position_embeddings"]
    longest = stated.get("max_position_embeddings", original)
    factor = float(scaling.get("factor") or longest / original)
    magnitude, share, less = (scaling.get(name) for name in ("attention_factor", "mscale", "mscale_all_dim"))
    if magnitude is None:
        magnitude = yarn_magnitude(factor, share) / yarn_magnitude(factor, less) if share and less else None
    return {
        "context_length": max(int(longest), int(original * factor)),
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": factor,
        "rope.scaling.original_context_length": int(original),
        "rope.scaling.yarn_attn_factor": yarn_magnitude(factor, 1.0) if magnitude is None else float(magnitude),
        "rope.scaling.yarn_beta_fast": float(scaling.get("beta_fast") or 32.0),
        "rope.scaling.yarn_beta_slow": float(scaling.get("beta_slow") or 1.0),
        "rope.scaling.truncate": scaling.get("truncate") is not False,
    }


def yarn_magnitude(factor: float, share: float) -> float:
    """Return by what queries and keys are multiplied in a context that is `factor` times as long (the paper's 3.4)."""
    return 0.1 * share * log(factor) + 1.0 if factor > 1 else 1.0


@dataclass(frozen=True, slots=True)
class Yarn:
    """YaRN (arXiv 2309.00071): waves that turn more than `fast` times within the `original` context keep their
    frequency, those that turn less than `slow` times are stretched by `factor`, and those between are mixed."""

    factor: float
    original: int
    fast: float = 32.0
    slow: float = 1.0
    share: float = 1.0
    """How much of the frequencies that are kept is kept; the rest is stretched as well."""
    is_rounded: bool = True
    """Whether the mix begins and ends at whole pairs of dimensions."""

    def factors(self, base: float, rotated: int) -> NDArray[np.float64]:
        """Return by what each frequency is divided, [rotated / 2]. Raises ValueError for impossible numbers."""
        is_possible = 1 <= self.factor < 1e6 and self.original > 0 and base > 1 and 0 < self.slow <= self.fast
        if not is_possible or rotated > MAX_HEAD_SIZE:
            raise ValueError("its numbers are impossible")
        if not 0 <= self.share <= 1:
            raise ValueError("its share ('yarn_ext_factor') is not between 0 and 1")
        low, high = (self._pair_that_turns(times, base, rotated) for times in (self.fast, self.slow))
        if self.is_rounded:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, rotated - 1)
        kept = self.share * (1.0 - np.clip((np.arange(rotated // 2) - low) / max(high - low, 1e-3), 0.0, 1.0))
        found: NDArray[np.float64] = 1.0 / ((1.0 - kept) / self.factor + kept)
        return found

    def _pair_that_turns(self, times: float, base: float, rotated: int) -> float:
        """Return which pair of dimensions, as a fraction of an index, turns so many times within the context."""
        with localcontext(DECIMALS):
            return float(rotated * (self.original / (Decimal(times) * 2 * PI)).ln() / (2 * Decimal(base).ln()))


def _long(scaling: dict[str, Any], stated: Mapping[str, Any]) -> dict[str, Any]:
    """LongRoPE's two lists of factors, and the context that the model was first trained for."""
    original = scaling.get("original_max_position_embeddings", stated.get("original_max_position_embeddings"))
    longest = stated["max_position_embeddings"]
    if original is None:
        raise KeyError("original_max_position_embeddings")
    factor = longest / original
    magnitude = scaling.get("attention_factor")
    if magnitude is None:
        magnitude = 1.0 if factor <= 1 else math.sqrt(1 + log(factor) / log(original))
    return {
        "rope.scaling.original_context_length": int(original),
        "rope.scaling.attn_factor": float(magnitude),
        _FACTORS: _numbers(scaling["short_factor"]),
        _LONG_FACTORS: _numbers(scaling["long_factor"]),
    }


def _numbers(factors: Any) -> list[float]:
    found = [float(each) for each in factors]
    if not all(0 < each < 1e6 for each in found):
        raise ValueError("a factor is impossible")
    return found


def factor_lists(parameters: Parameters) -> dict[str, list[object]]:
    """Return the lists of factors that `rope_metadata` found, by the names of such tensors. Raises CheckpointError."""
    short, long = (parameters.list_of(float, f"{parameters.architecture}.{name}") for name in (_FACTORS, _LONG_FACTORS))
    if short is None:
        return {}
    return {ROPE_FACTORS: short} if long is None else {SHORT_FACTORS: short, LONG_FACTORS: long}
