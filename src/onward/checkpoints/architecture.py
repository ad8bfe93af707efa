"""What differs between decoder architectures, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Activation = Literal["silu", "gelu", "gelu_tanh", "clamped_silu", "relu", "relu_squared", "xielu"]
NormKind = Literal["rms", "layer"]
EMBEDDING_IN, EMBEDDING_OUT = "embd_in", "embd_out"
"""Matrices between embeddings and hidden values of another size."""
XIELU = ("alpha_p", "alpha_n", "beta", "eps")
"""Names of an xIELU's numbers, in files."""


@dataclass(frozen=True, slots=True)
class QueryGrowth:
    """Queries are multiplied by 1 + amount * log(1 + (position + offset) // length)."""

    amount: float
    length: int
    offset: int = 0


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
    growth: QueryGrowth | None = None


@dataclass(frozen=True, slots=True)
class Heads:
    """Sizes of a layer's attention."""

    num_heads: int
    num_kv_heads: int
    head_size: int
    """Of queries and keys."""
    value_size: int


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Keys and values that are made of a few numbers of each position (MLA), and of a part of keys that is rotated and
    that all heads have in common."""

    rank: int
    """How many numbers keys and values are made of."""
    epsilon: float
    """Of the norms of what keys, values and queries are made of."""
    query_rank: int = 0
    """How many numbers queries are made of; 0: of all that a layer reads."""


@dataclass(frozen=True, slots=True)
class Mixture:
    """Feed-forward layers of several experts, of which each token uses those with the largest logits of a router."""

    count: int
    used: int
    feed_forward: int
    """Inner size of an expert."""
    layers: frozenset[int]
    """The layers with experts; others have ordinary feed-forward layers."""
    is_normalised: bool
    """Whether the weights of the experts used are e**logit over the sum of theirs, instead of over that of all."""
    scale: float = 1.0
    """The weights are multiplied by it."""
    is_sigmoid: bool = False
    """Whether the weights are sigmoids of logits, instead of e**logit."""
    has_bias: bool = False
    """Whether experts are chosen by their weights plus a bias."""
    shared_feed_forward: int = 0
    """Inner size of the expert that every token uses in addition; 0: there is none."""
    is_gated: bool = True
    """Whether experts multiply two products, as ordinary feed-forward layers with a gate."""
    groups: int = 1
    """Successive experts are in so many groups of the same size, of which a token uses `used_groups`: those with the
    best experts, or, where weights are sigmoids, with the largest sums of what their two best experts are chosen by."""
    used_groups: int = 1
    is_by_logit: bool = False
    """Whether experts are chosen by logits, which do not round to 1, though their sigmoids are the weights."""
    weighs_inputs: bool = False
    """Whether weights multiply what experts read, instead of what they return."""
    result_scale: float = 1.0
    """What experts and the shared one return together is multiplied by it."""
    is_beside_dense: bool = False
    """Whether a layer with experts also has an ordinary feed-forward layer, and norms for the result of each."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """What those matrices of an expert are called that read a layer's input."""
        return ("gate", "up") if self.is_gated else ("up",)


@dataclass(frozen=True, slots=True)
class AltUp:
    """Several hidden states, of which a layer computes the first one and predicts the others (AltUp), and a product of
    two small matrices beside attention (LAuReL)."""

    count: int
    laurel_rank: int
    """Numbers between the two matrices."""


@dataclass(frozen=True, slots=True)
class DeltaNet:
    """Layers with a gated delta rule instead of attention, and a short convolution before it: they keep a state of each
    sequence, of a fixed size."""

    layers: frozenset[int]
    num_key_heads: int
    num_heads: int
    key_size: int
    value_size: int
    length: int
    """Positions that the convolution reads, its own included."""
    is_tiled: bool
    """Whether every `num_key_heads`-th head has the same keys, as in GGUF files, else those that follow each other."""

    @property
    def keys(self) -> int:
        """Numbers of a row's queries, and of its keys."""
        return self.num_key_heads * self.key_size

    @property
    def values(self) -> int:
        return self.num_heads * self.value_size

    @property
    def width(self) -> int:
        """Numbers that are convolved."""
        return 2 * self.keys + self.values

    @property
    def state_bytes(self) -> int:
        """Of a sequence, in float32: what the convolutions read, and the matrices of heads."""
        return 4 * len(self.layers) * (self.width * self.length + self.num_heads * self.key_size * self.value_size)

    @property
    def numbers_taken_in(self) -> int:
        """Of a row and layer: what is convolved, and two gates of each head."""
        return self.width + 2 * self.num_heads


@dataclass(frozen=True, slots=True)
class StateSpace:
    """Layers with a state space (Mamba 2), in place of attention or parallel to it, after a short convolution: they
    keep a state of each sequence, of a fixed size."""

    layers: frozenset[int]
    num_heads: int
    head_size: int
    state_size: int
    """Numbers that are kept for each number of a head."""
    groups: int
    """Heads of one group have the same inputs and outputs of the state."""
    norm_groups: int
    """Parts of what all heads return that are normalised by themselves, where there is a norm."""
    length: int
    """Positions that the convolution reads, its own included."""
    is_parallel_to_attention: bool = False
    """Whether these layers have attention, too, which reads the same."""

    @property
    def inner(self) -> int:
        """Numbers of all heads."""
        return self.num_heads * self.head_size

    @property
    def width(self) -> int:
        """Numbers that are convolved: those of the heads, inputs and outputs."""
        return self.inner + 2 * self.groups * self.state_size

    @property
    def state_bytes(self) -> int:
        """Of a sequence, in float32: what the convolutions read, and the states of heads."""
        return 4 * len(self.layers) * (self.width * self.length + self.inner * self.state_size)

    @property
    def numbers_taken_in(self) -> int:
        """Of a row and layer: what is convolved, and the time of each head."""
        return self.width + self.num_heads


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
    """Layers without positions (NoPE): they see only the order of tokens."""
    ropeless_growth: QueryGrowth | None = None
    """Of their queries."""
    norm: NormKind = "rms"
    has_norm_weights: bool = True
    """Whether norms of what layers read and add, and the last one, multiply by weights."""
    has_norms_before: bool = True
    """Whether attention and feed-forward layers read normalised values."""
    has_norms_of_sums: bool = False
    """Whether the sums of what layers read and add are normalised, in place of what they and the output layer read."""
    has_norms_after: bool = False
    """Whether what they add is normalised."""
    is_parallel: bool = False
    """Whether both read the same values, instead of one after the other."""
    has_two_norms: bool = False
    """Whether these have a norm for each."""
    activation: Activation = "silu"
    xielu: tuple[tuple[float, float, float, float], ...] = ()
    """Of each layer's activation, where that is xIELU: alpha above 0, alpha below, beta, and how close to 0 a negative
    number may come."""
    embedding_size: int = 0
    """Numbers of a token's embedding, where a matrix makes hidden values of them, and another one what the output layer
    reads of hidden values; 0: embeddings are the hidden values."""
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    """What attention and feed-forward layers add is multiplied by it."""
    logit_scale: float = 1.0
    multipliers: Mapping[str, tuple[tuple[int, float], ...]] = field(default_factory=dict)
    """By what products of a layer's matrices are multiplied, by the matrix ("attn_q"): so many rows by each number, in
    whole panels of 16 but for the last ones. No matrix of these has a bias."""
    has_sinks: bool = False
    """Whether each head also attends to a key without a value, whose score is a weight (an attention sink)."""
    attention_scale: float | None = None
    """None: the inverse square root of `head_size`."""
    projection_limit: float | None = None
    """Queries, keys and values that are larger, or smaller than its negative, become it."""
    attention_cap: float | None = None
    """Scores become cap * tanh(score / cap)."""
    logit_cap: float | None = None
    """Logits become cap * tanh(logit / cap)."""
    window: int = 0
    """Tokens that a layer with a window attends to, itself included."""
    window_layers: frozenset[int] = field(default_factory=frozenset)
    has_chunks: bool = False
    """Whether windows begin at the multiples of their size, instead of moving with each position (chunked attention).
    """
    mixerless_layers: frozenset[int] = field(default_factory=frozenset)
    """Layers with neither attention nor anything in its place: a feed-forward layer, or experts, alone."""
    convolution_layers: frozenset[int] = field(default_factory=frozenset)
    """Layers with a gated short convolution in place of attention (LFM2)."""
    convolution_length: int = 0
    """Positions that it reads, its own included."""
    delta: DeltaNet | None = None
    """None: sequences have no state."""
    value_size: int = 0
    """Of a head's values; 0: as of its keys."""
    latent: LatentAttention | None = None
    """None: keys and values are products of what layers read."""
    has_gated_attention: bool = False
    """Whether what attention returns is multiplied by the sigmoid of a product of its own."""
    state_space: StateSpace | None = None
    """None: no layer has one."""
    mixture: Mixture | None = None
    """None: no layer has experts."""
    local_heads: Heads | None = None
    """Of layers with a window, where they differ."""
    has_head_norms_after_rotation: bool = False
    """Whether norms of queries and keys, which have the same weights for all heads, follow their rotation."""
    has_plain_head_norms: bool = False
    """Whether queries and keys of layers with positions are divided by their root mean square, each head's by its own,
    after their rotation."""
    has_value_norms: bool = False
    """Whether each head's values are divided by their root mean square."""
    num_keyless_layers: int = 0
    """The last layers, which attend to keys and values of an earlier one: of the last one before them with a window if
    they have one, else of the last one without."""
    layer_feed_forward: tuple[int, ...] = ()
    """Inner size of each layer's feed-forward layer, where they differ."""
    gate_cutoffs: tuple[float | None, ...] = ()
    """Of each layer: by how many standard deviations gates have to exceed their mean; what they are beyond that counts,
    and 0 for those that do not. None: all count as they are."""
    altup: AltUp | None = None
    """None: there is one hidden state."""
    layer_input: int = 0
    """Numbers of a token's embedding for each layer, which it adds to what it returns; 0: there are none."""

    @property
    def embedding_matrices(self) -> dict[str, tuple[int, int]]:
        """Return the shapes of matrices between embeddings and hidden values, by their names."""
        size = self.embedding_size
        return {EMBEDDING_IN: (self.hidden, size), EMBEDDING_OUT: (size, self.hidden)} if size else {}

    def heads_of(self, layer: int) -> Heads:
        """Return the sizes of a layer's attention."""
        if self.local_heads is not None and layer in self.window_layers:
            return self.local_heads
        return Heads(self.num_heads, self.num_kv_heads, self.head_size, self.value_size or self.head_size)

    def delta_of(self, layer: int) -> DeltaNet | None:
        """Return the sizes of a layer's delta rule, None if it has none."""
        return self.delta if self.delta is not None and layer in self.delta.layers else None

    def state_space_of(self, layer: int) -> StateSpace | None:
        """Return the sizes of a layer's state space, None if it has none."""
        space = self.state_space
        return space if space is not None and layer in space.layers else None

    def has_attention(self, layer: int) -> bool:
        """Return whether a layer attends to keys, its own or those of another one."""
        if layer in self.convolution_layers | self.mixerless_layers or self.delta_of(layer) is not None:
            return False
        space = self.state_space_of(layer)
        return space is None or space.is_parallel_to_attention

    def rope_of(self, layer: int) -> Rope | None:
        """Return a layer's rotation, None if it has none."""
        if layer in self.ropeless_layers:
            return None
        return self.local_rope or self.rope if layer in self.window_layers else self.rope

    def growth_of(self, layer: int) -> QueryGrowth | None:
        """Return how a layer's queries grow, None if they do not."""
        rope = self.rope_of(layer)
        return self.ropeless_growth if rope is None else rope.growth

    def feed_forward_of(self, layer: int) -> int:
        """Return the inner size of a layer's feed-forward layer, 0 if it has none."""
        return self.layer_feed_forward[layer] if self.layer_feed_forward else self.feed_forward

    def is_feeding(self, layer: int) -> bool:
        """Return whether a layer has a feed-forward layer or experts."""
        return self.feed_forward_of(layer) > 0 or (self.mixture is not None and layer in self.mixture.layers)

    def keys_of(self, layer: int) -> int:
        """Return the layer whose keys and values a layer attends to."""
        first = self.num_layers - self.num_keyless_layers
        if layer < first:
            return layer
        is_local = layer in self.window_layers
        return max(each for each in range(first) if (each in self.window_layers) == is_local)

    @property
    def last_kept_layer(self) -> int:
        """The last layer of which later positions read something: of those after it, each row reads only its own
        values."""
        first = self.num_layers - self.num_keyless_layers
        return max(layer for layer in range(first) if layer not in self.mixerless_layers)
