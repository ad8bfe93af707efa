"""What differs between decoder architectures, as data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Activation = Literal["silu", "gelu_tanh"]


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary positions of some of a head's dimensions: `size` of them, the first ones."""

    size: int
    base: float
    position_scale: float = 1.0
    """Positions are divided by it (linear scaling)."""
    factors: NDArray[np.float32] | None = None
    """Frequencies are divided by them, float32 [size / 2] (Llama 3's scaling)."""

    def inverse_frequencies(self) -> NDArray[np.float64]:
        """Return the angle per position of each pair of dimensions, float64 [size / 2]."""
        inverse = 1.0 / (self.base ** (np.arange(0, self.size, 2, dtype=np.float64) / self.size))
        inverse /= self.position_scale
        return inverse if self.factors is None else inverse / self.factors.astype(np.float64)


@dataclass(frozen=True, slots=True)
class Architecture:
    """A decoder: sizes, and where it departs from Llama. Which norms and biases there are, the tensors say."""

    name: str
    num_layers: int
    hidden: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    context_length: int
    epsilon: float
    rope: Rope
    local_rope: Rope | None = None
    """For layers with a window, where it differs."""
    has_interleaved_rope: bool = False
    """Whether the file has the two dimensions of a pair side by side: rows of queries and keys are reordered."""
    activation: Activation = "silu"
    embedding_scale: float = 1.0
    attention_scale: float | None = None
    """None: the inverse square root of `head_size`."""
    window: int = 0
    """Tokens that a layer with a window attends to, itself included."""
    window_layers: frozenset[int] = field(default_factory=frozenset)
