"""Who holds which KV block: reference counts, the free list, and idle blocks that only the prefix tree knows."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable


class BlockPool:
    """Counts references to KV blocks. A block is free, held (by one sequence or more), or idle.

    An idle block is held by no sequence but still known to the prefix tree; it counts as available and is
    given up, least recently used first, when the free list is empty. `forget` is called with a block that is
    given up, before it gets a new owner. Engine thread only.
    """

    def __init__(self, count: int, forget: Callable[[int], None]) -> None:
        self.count = count
        self._forget = forget
        self._references = [0] * count
        self._free = list(range(count - 1, -1, -1))
        self._known: set[int] = set()
        self._idle: OrderedDict[int, None] = OrderedDict()

    @property
    def available(self) -> int:
        """Blocks that `allocate` can give now."""
        return len(self._free) + len(self._idle)

    @property
    def used(self) -> int:
        """Blocks that sequences hold."""
        return self.count - self.available

    @property
    def cached(self) -> int:
        """Blocks that the prefix tree knows, held or idle."""
        return len(self._known)

    def allocate(self, count: int) -> list[int]:
        """Take `count` blocks, each with one reference. Ask `available` first: raises IndexError beyond it."""
        if count > self.available:
            raise IndexError(f"{count} blocks wanted, {self.available} available")
        return [self._take() for _ in range(count)]

    def share(self, blocks: Iterable[int]) -> None:
        """Add a reference to each block; idle ones become held again."""
        for block in blocks:
            self._references[block] += 1
            self._idle.pop(block, None)

    def release(self, blocks: list[int]) -> None:
        """Drop a reference to each block of a table. The last ones go first, so that of a prefix chain the
        far end is given up before what leads to it."""
        for block in reversed(blocks):
            self._references[block] -= 1
            if self._references[block] == 0:
                if block in self._known:
                    self._idle[block] = None
                else:
                    self._free.append(block)

    def is_idle(self, block: int) -> bool:
        """Whether the block is kept for reuse only: taking it makes one block less available."""
        return block in self._idle

    def remember(self, block: int) -> bool:
        """The prefix tree now knows this (held) block; whether that is new."""
        new = block not in self._known
        self._known.add(block)
        return new

    def touch(self, block: int) -> None:
        """A block that the prefix tree knows was read: an idle one is now the last to be given up."""
        if block in self._idle:
            self._idle.move_to_end(block)

    def drop(self, block: int) -> None:
        """Give up a block that the prefix tree knows: at once if it is idle, else when its last holder releases it."""
        self._known.discard(block)
        self._forget(block)
        if block in self._idle:
            del self._idle[block]
            self._free.append(block)

    def check(self, tables: Iterable[list[int]], known: set[int]) -> None:
        """Compare all counts with the sequences' block tables and the tree's blocks; AssertionError if they
        disagree. Tests call it after every scenario; cost is linear in blocks."""
        counted = [0] * self.count
        for table in tables:
            for block in table:
                counted[block] += 1
        assert counted == self._references, "reference counts differ from the block tables"
        assert known == self._known, "the prefix tree and the pool know different blocks"
        idle = {block for block in known if not counted[block]}
        assert set(self._idle) == idle, "idle blocks are not those known and unheld"
        free = {block for block in range(self.count) if not counted[block]} - idle
        assert set(self._free) == free and len(self._free) == len(free), "the free list is wrong"

    def _take(self) -> int:
        if self._free:
            block = self._free.pop()
        else:
            block, _ = self._idle.popitem(last=False)
            self._known.discard(block)
            self._forget(block)
        self._references[block] = 1
        return block
