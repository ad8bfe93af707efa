"""References to KV blocks: which are free, in use by sequences, or cached and in nobody's use."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable


class BlockPool:
    """Counts references to KV blocks. A block is free, in use by one or more sequences, or idle.

    An idle block is not in use, but cached: the prefix tree can still find it. It counts as available, and is evicted,
    least recently used first, when the free list is empty: `on_evict` is called with it before it is allocated again.
    Engine thread only.
    """

    def __init__(self, num_blocks: int, on_evict: Callable[[int], None]) -> None:
        self.num_blocks = num_blocks
        self._on_evict = on_evict
        self._references = [0] * num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))
        self._cached: set[int] = set()
        self._idle: OrderedDict[int, None] = OrderedDict()

    @property
    def num_available(self) -> int:
        """Blocks that can be allocated now, idle ones included."""
        return len(self._free) + len(self._idle)

    @property
    def num_used(self) -> int:
        """Blocks in use by sequences."""
        return self.num_blocks - self.num_available

    @property
    def num_cached(self) -> int:
        """Blocks in the prefix tree, in use or idle."""
        return len(self._cached)

    def allocate(self, num_blocks: int) -> list[int]:
        """Return `num_blocks` blocks with one reference each. Raises IndexError if fewer are available."""
        if num_blocks > self.num_available:
            raise IndexError(f"{num_blocks} blocks requested, {self.num_available} available")
        return [self._take() for _ in range(num_blocks)]

    def share(self, blocks: Iterable[int]) -> None:
        """Add a reference to each block. Idle blocks are in use again."""
        for block in blocks:
            self._references[block] += 1
            self._idle.pop(block, None)

    def release(self, blocks: list[int]) -> None:
        """Remove a reference to each block of a block table, from the last to the first: so the end of a cached prefix
        is evicted before its beginning."""
        for block in reversed(blocks):
            self._references[block] -= 1
            if self._references[block] == 0:
                if block in self._cached:
                    self._idle[block] = None
                else:
                    self._free.append(block)

    def is_idle(self, block: int) -> bool:
        """Whether the block is cached and not in use: sharing it leaves one block less available."""
        return block in self._idle

    def mark_cached(self, block: int) -> bool:
        """Note that the prefix tree contains this block, which is in use. Returns whether that is new."""
        new = block not in self._cached
        self._cached.add(block)
        return new

    def touch(self, block: int) -> None:
        """Note that a cached block was used: if it is idle, it is now the last to be evicted."""
        if block in self._idle:
            self._idle.move_to_end(block)

    def by_last_use(self) -> list[int]:
        """Return the idle blocks, those that were used last first: a prefix from its beginning."""
        return list(reversed(self._idle))

    def remove(self, block: int) -> None:
        """Note that the prefix tree no longer contains a block. It is free at once if it is idle, else when its last
        reference is released."""
        self._cached.discard(block)
        if block in self._idle:
            del self._idle[block]
            self._free.append(block)

    def check(self, tables: Iterable[list[int]], cached: set[int]) -> None:
        """Raise AssertionError if the reference counts differ from the sequences' block tables, or the cached blocks
        from `cached`, those of the prefix tree. For tests: takes time linear in the number of blocks."""
        counted = [0] * self.num_blocks
        for table in tables:
            for block in table:
                counted[block] += 1
        assert counted == self._references, "reference counts differ from the block tables"
        assert cached == self._cached, "the prefix tree and the pool have different cached blocks"
        idle = {block for block in cached if not counted[block]}
        assert set(self._idle) == idle, "idle blocks are not the cached ones without references"
        free = {block for block in range(self.num_blocks) if not counted[block]} - idle
        assert set(self._free) == free and len(self._free) == len(free), "the free list is wrong"

    def _take(self) -> int:
        if self._free:
            block = self._free.pop()
        else:
            block, _ = self._idle.popitem(last=False)
            self._cached.discard(block)
            self._on_evict(block)
        self._references[block] = 1
        return block
