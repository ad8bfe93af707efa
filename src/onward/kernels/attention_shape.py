"""The sizes of a layer's attention, and where keys and values of a block lie.

A layer's part of a block has `BLOCK_TOKENS` positions, all heads side by side: for each key-value head its keys,
transposed [head size][BLOCK_TOKENS], then for each its values, [BLOCK_TOKENS][value size]. A decode step so reads whole
blocks, in the order of their addresses. Sizes are rounded up to a multiple of 16; what is added is zero.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace
from typing import Any

from onward.kernels.isa import Isa
from onward.kernels.values import F16, F32, LANES

BLOCK_TOKENS = 32
"""Positions of a KV block."""
STEP_KEYS = 64
"""Keys that the softmax takes at a time, aligned to position 0."""
SEGMENT_KEYS = 1024
"""Keys whose sums are computed apart and merged in ascending order, aligned to position 0: so that several threads may
share one long sequence without changing a bit."""


@dataclass(frozen=True)
class AttentionShape:
    """What attention kernels are compiled for. `rotated`: how many dimensions of a head rotate."""

    num_heads: int
    num_kv_heads: int
    head_size: int
    rotated: int
    is_wide: bool = False
    """Whether keys and values are kept as float32, instead of float16."""
    has_window: bool = False
    has_cap: bool = False
    has_sinks: bool = False
    own_value_size: int = 0
    """Size of a head's values, where it is not that of its keys."""
    has_common_part: bool = False
    """Whether the dimensions of keys that rotate are the same in all heads, and are given apart from the others."""
    has_chunks: bool = False
    """Whether windows begin at the multiples of their size, instead of moving with each position."""

    @property
    def name(self) -> str:
        """What the functions of this shape are called by."""
        return "_".join(str(int(each)) for each in astuple(self))

    @property
    def unrotated(self) -> AttentionShape:
        """What attention itself is compiled for: queries and keys are rotated before."""
        return replace(self, rotated=0, has_common_part=False)

    @property
    def value_size(self) -> int:
        return self.own_value_size or self.head_size

    @property
    def own_key_size(self) -> int:
        """Dimensions of keys that each head has its own of."""
        return self.head_size - self.rotated if self.has_common_part else self.head_size

    @property
    def padded(self) -> int:
        """The head size in memory."""
        return -(-self.head_size // LANES) * LANES

    @property
    def padded_values(self) -> int:
        """The size of a head's values in memory."""
        return -(-self.value_size // LANES) * LANES

    @property
    def group(self) -> int:
        """Query heads per key-value head."""
        return self.num_heads // self.num_kv_heads

    @property
    def kv_type(self) -> Any:
        return F32 if self.is_wide else F16

    @property
    def kv_size(self) -> int:
        """Bytes of a number in the cache."""
        return 4 if self.is_wide else 2

    @property
    def head_bytes(self) -> int:
        """Bytes of one head's keys in a block."""
        return self.padded * BLOCK_TOKENS * self.kv_size

    @property
    def value_bytes(self) -> int:
        """Bytes of one head's values in a block."""
        return self.padded_values * BLOCK_TOKENS * self.kv_size

    @property
    def values_offset(self) -> int:
        """Where the values of a block begin."""
        return self.num_kv_heads * self.head_bytes

    @property
    def block_bytes(self) -> int:
        """Bytes of one layer's block."""
        return self.num_kv_heads * (self.head_bytes + self.value_bytes)

    def kept_bytes(self, width: int) -> int:
        """Return the bytes of a layer's block that has `width` numbers of each position."""
        return BLOCK_TOKENS * width * self.kv_size

    @property
    def query_stride(self) -> int:
        """Bytes of a row of rotated queries."""
        return self.num_heads * self.padded * 4

    @property
    def partial_bytes(self) -> int:
        """Bytes of what is kept of a segment, for one row and head."""
        return self.padded_values * 4 + 64

    @property
    def tile_rows(self) -> int:
        """Query rows of a tile at most: about 192 lines."""
        return max(8, min(64, 192 // self.group))


@dataclass(frozen=True)
class Registers:
    """How many lines and key vectors the kernels hold in registers. No bit depends on it."""

    lines: int
    vectors: int

    @classmethod
    def of(cls, isa: Isa) -> Registers:
        return {16: cls(2, 1), 32: cls(6, 1), 64: cls(8, 2)}[isa.width]
