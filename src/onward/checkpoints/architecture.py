"""What differs between decoder architectures, as data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Activation = Literal["silu", "gelu", "gelu_tanh", "clamped_silu"]
NormKind = Literal["rms", "layer"]


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary positions of some of a head's dimensions: `size` of them, the first ones."""

    size: int
    base: float
    position_scale: float = 1.0
    """Positions are divided by it (linear scaling)."""
    factors: NDArray[np.float32] | None = None
    """Frequencies are divided by them, float32 [size / 2] (the scalings of Llama 3 and of Phi 3)."""
    magnitude: float = 1.0
    """Queries and keys are multiplied by it."""
    query_growth: float = 0.0
    """Queries are multiplied by 1 + growth * log(1 + position // `growth_length`), too."""
    growth_length: int = 1


@dataclass(frozen=True, slots=True)
class Mixture:
    """Feed-forward layers of several experts, of which each token uses those with the largest logits of a router."""

    count: int
    used: int
    feed_forward: int
    """Inner size of an expert."""
    layers: frozenset[int]
    """Those with experts; others have feed-forward layers as usual."""
    is_normalised: bool
    """Whether the weights of the experts used are e**logit over the sum of theirs, instead of over that of all."""
    scale: float = 1.0
    """The weights are multiplied by it."""
    shared_feed_forward: int = 0
    """Inner size of an expert that each token uses besides; 0: there is none."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """A decoder: sizes, and where it departs from Llama. Which norms and biases there are, the tensors say."""

    name: str
    num_layers: int
    hidden: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    feed_forward: int
    """Inner size of feed-forward layers."""
    context_length: int
    epsilon: float
    rope: Rope | None
    """None: positions have embeddings, which are added to those of the tokens."""
    local_rope: Rope | None = None
    """For layers with a window, where it differs."""
    ropeless_layers: frozenset[int] = field(default_factory=frozenset)
    """Layers that know nothing of positions but their order."""
    norm: NormKind = "rms"
    has_norms_before: bool = True
    """Whether attention and feed-forward layers read normalised values."""
    has_norms_after: bool = False
    """Whether what they add is normalised."""
    is_parallel: bool = False
    """Whether both read the same values, instead of one after the other. Their norm may be one."""
    activation: Activation = "silu"
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    """What attention and feed-forward layers add is multiplied by it."""
    logit_scale: float = 1.0
    has_sinks: bool = False
    """Whether each head attends to a key without a value, too, whose score is a weight."""
    attention_scale: float | None = None
    """None: the inverse square root of `head_size`."""
    attention_cap: float | None = None
    """Scores become cap * tanh(score / cap)."""
    logit_cap: float | None = None
    """Logits become cap * tanh(logit / cap)."""
    window: int = 0
    """Tokens that a layer with a window attends to, itself included."""
    window_layers: frozenset[int] = field(default_factory=frozenset)
    convolution_layers: frozenset[int] = field(default_factory=frozenset)
    """Layers with a gated short convolution in attention's place (LFM2)."""
    convolution_length: int = 0
    """Positions that it reads, its own included."""
    mixture: Mixture | None = None
    """None: no layer has experts."""
