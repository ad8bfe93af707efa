"""Sequences that have run before and wait to run again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from onward.engine.sequence import Sequence


class ReturningSequences:
    """Preempted sequences, which have no blocks, and suspended ones, which have theirs. None has a row. The first of
    each returns first. `release_blocks` releases those of a sequence. Engine thread only.
    """

    def __init__(self, release_blocks: Callable[[Sequence], None]) -> None:
        self.preempted: deque[Sequence] = deque()
        self.suspended: deque[Sequence] = deque()
        self._release_blocks = release_blocks

    def __len__(self) -> int:
        return len(self.preempted) + len(self.suspended)

    def __iter__(self) -> Iterator[Sequence]:
        yield from self.preempted
        yield from self.suspended

    def drop_last(self) -> bool:
        """Release the blocks of the suspended sequence that would return last: it is preempted now. Returns whether
        there was one."""
        if not self.suspended:
            return False
        sequence = self.suspended.pop()
        self._release_blocks(sequence)
        self.preempted.append(sequence)
        return True

    def cancel(self, matches: Callable[[Sequence], bool]) -> None:
        """Remove the sequences that match, and release their blocks."""
        for sequences in (self.preempted, self.suspended):
            for sequence in [each for each in sequences if matches(each)]:
                sequences.remove(sequence)
                self._release_blocks(sequence)
