"""Memory that kernels read and write: allocated by Python, addressed by compiled code, bounds checked in between."""

from __future__ import annotations

import mmap
import sys
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


def untouched(size: int) -> NDArray[np.uint8]:
    """Return zeroed memory of `size` bytes, none of it resident yet; on Linux by huge pages, where there are any."""
    length = max(size, mmap.PAGESIZE)
    if sys.platform != "linux":
        return np.frombuffer(mmap.mmap(-1, length), np.uint8)
    memory = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # the kernel has no huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)


def address(array: NDArray[np.generic]) -> int:
    """Return where an array's first byte is. The caller keeps the array alive."""
    return int(array.ctypes.data)


@dataclass(frozen=True, slots=True)
class Rows:
    """`count` rows of `stride` bytes each."""

    memory: NDArray[np.uint8]
    count: int
    stride: int

    @classmethod
    def allocate(cls, count: int, row_bytes: int) -> Rows:
        """Return rows of at least this many bytes, each in lines of 64."""
        return cls.exactly(count, -(-row_bytes // 64) * 64)

    @classmethod
    def spread(cls, count: int, row_bytes: int) -> Rows:
        """Return rows of at least this many bytes, of which products read several together: 8 lines more than a
        multiple of 16 apart, so that the same 8 lines of eight rows have 64 places of their own in a first-level
        cache (64 sets, everywhere). Rows 2,048 bytes apart have 16. The memory ends with the last row."""
        lines = -(-row_bytes // 64)
        stride = 64 * (lines + (8 - lines) % 16)
        return cls(untouched((count - 1) * stride + 64 * lines), count, stride)

    @classmethod
    def exactly(cls, count: int, stride: int) -> Rows:
        """Return rows of exactly this many bytes."""
        return cls(untouched(count * stride), count, stride)

    @property
    def address(self) -> int:
        return address(self.memory)

    def without(self, row_bytes: int) -> Rows:
        """Return the same rows without so many bytes at the beginning of each."""
        return Rows(self.memory[row_bytes:], self.count, self.stride)

    def require(self, rows: int, row_bytes: int) -> None:
        """Raise ValueError if a kernel that writes or reads this much would leave this memory."""
        end = (self.count - 1) * self.stride + row_bytes
        if rows > self.count or row_bytes > self.stride or end > self.memory.nbytes:
            raise ValueError(
                f"{rows} rows of {row_bytes} bytes are not within {self.count} rows of {self.stride} bytes."
            )


@dataclass(frozen=True, slots=True)
class Vector:
    """Numbers that every row is added to or multiplied with: float32, zero from its end up to a multiple of 32."""

    values: NDArray[np.float32]
    length: int

    @classmethod
    def of(cls, values: NDArray[np.float32]) -> Vector:
        padded = np.zeros(-(-values.size // 32) * 32, np.float32)
        padded[: values.size] = values
        return cls(padded, values.size)

    @property
    def address(self) -> int:
        return address(self.values)
