"""The threads that read blocks of the prefix cache from a disk, into memory of their own. What they read, and is not in
the cache yet, is bounded."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from onward.engine.block_files import BlockFiles, Missing, Unusable
from onward.engine.job import Job
from onward.engine.prefix_tree import PackedScores
from onward.fair_pool import FairPool

log = logging.getLogger("onward.engine")

MAX_READ_BYTES = 128 << 20
"""Memory of what was read and is not in the cache yet, of all jobs together. A longer prompt is read in parts."""
MEMORY_POLL_SECONDS = 1.25
"""How often a thread that waits for memory looks whether a job still waits for it."""


class WaitingJob(NamedTuple):
    """A job that waits for blocks, at most until `deadline` (by `time.monotonic`)."""

    job: Job
    deadline: float


@dataclass(slots=True, eq=False)
class Restore:
    """Blocks of `job` that are being read: those after its first `num_before`, and the state after its first
    `num_before_state`, if that is not 0.

    From `blocks` on, what follows belongs to the thread that reads, until it says that it has finished.
    """

    job: Job
    num_before: int
    keys: list[bytes]
    era: int
    waiting: list[WaitingJob]
    """Those that wait for it. Replaced, never modified, except by additions."""
    num_before_state: int = 0
    state_key: bytes = b""
    state: NDArray[np.uint8] | None = None
    """What was read of it."""
    blocks: list[tuple[NDArray[np.uint8], PackedScores | None]] = field(default_factory=list)
    """Memory and scores of those that were read."""
    num_bytes: int = 0
    """Their share of MAX_READ_BYTES."""
    is_cut: bool = False
    """Whether there was no memory for more."""
    is_damaged: bool = False
    """Whether a file was found that is not a block."""
    reading_since: float = 0.0
    """When the thread began to read a block; 0 while it does not."""

    @property
    def wanted(self) -> list[bytes]:
        """The keys of all that is to be read, in order."""
        return [*self.keys, self.state_key] if self.num_before_state else self.keys


class BlockRestorer:
    """Reads blocks, and states of `state_bytes`. Engine thread, unless it says otherwise."""

    def __init__(self, files: BlockFiles, block_tokens: int, state_bytes: int) -> None:
        self._files, self._block_tokens, self._state_bytes = files, block_tokens, state_bytes
        self._threads = FairPool("onward-blocks", max_threads=2, max_per_owner=1)
        self._has_memory = threading.Condition()
        self.num_buffered_bytes = 0
        """Of MAX_READ_BYTES. Modified under the lock."""
        self._is_closed = False

    def start(self, restore: Restore, finished: Callable[[Restore], None]) -> bool:
        """Begin to read. `finished` is called on another thread; `release` must follow. Returns whether there is a
        thread for it."""
        try:
            self._threads.submit(str(restore.job.client), partial(self._read, restore, finished))
        except RuntimeError:  # the system has no more threads
            return False
        return True

    def release(self, restore: Restore) -> None:
        """Free the memory of what was read."""
        restore.blocks, restore.state = [], None
        with self._has_memory:
            self.num_buffered_bytes -= restore.num_bytes
            self._has_memory.notify_all()

    def close(self) -> None:
        """Have the threads end, without waiting for them."""
        with self._has_memory:
            self._is_closed = True
            self._has_memory.notify_all()
        self._threads.close()

    def _read(self, restore: Restore, finished: Callable[[Restore], None]) -> None:
        """Read blocks, and a state, until one is missing, there is no memory, or nobody waits any more. On another
        thread."""
        try:
            for key in restore.keys:
                found = self._read_file(restore, key, self._files.block_bytes)
                if found is None or not is_enough(found[1], restore.job, self._block_tokens):
                    return
                restore.blocks.append(found)
            if restore.num_before_state and (found := self._read_file(restore, restore.state_key, self._state_bytes)):
                restore.state = found[0]
        finally:
            restore.reading_since = 0.0
            finished(restore)

    def _read_file(
        self, restore: Restore, key: bytes, num_bytes: int
    ) -> tuple[NDArray[np.uint8], PackedScores | None] | None:
        """Return what a file has, None if there is no memory or it is not used. On another thread."""
        if not self._take_memory(restore, max(num_bytes, self._files.size_of(key))):
            restore.is_cut = bool(restore.blocks)
            return None
        content = np.empty(num_bytes, np.uint8)
        restore.reading_since = time.monotonic()
        try:
            return content, self._files.read(key, [content])
        except Unusable as problem:
            restore.is_damaged = not isinstance(problem, Missing)
            log.debug("prefix cache: %s is not used: %s", key.hex(), problem)
            self._files.drop([key])
        except OSError as problem:
            log.debug("prefix cache: %s cannot be read now: %s", key.hex(), problem)
            self._files.disregard([key])
        return None

    def _take_memory(self, restore: Restore, size: int) -> bool:
        """Take memory for a block. Where others have all of it, wait if the restore has none, as long as a job waits.
        On another thread. Returns whether there is some."""
        with self._has_memory:
            while restore.waiting and not self._is_closed:
                if not self.num_buffered_bytes or self.num_buffered_bytes + size <= MAX_READ_BYTES:
                    self.num_buffered_bytes += size
                    restore.num_bytes += size
                    return True
                if restore.blocks:
                    return False
                self._has_memory.wait(MEMORY_POLL_SECONDS)
        return False


def wants_scores(job: Job) -> bool:
    """Whether the prompt's tokens are to be scored (as `Sequence.wants_scores` of a new sequence)."""
    return job.score_top is not None and job.resume is None


def is_enough(scores: PackedScores | None, job: Job, block_tokens: int) -> bool:
    """Whether a full block with these scores is of use to a job."""
    if not wants_scores(job):
        return True
    assert job.score_top is not None
    has_all = scores is not None and len(scores) >= block_tokens
    return has_all and scores is not None and scores.has(job.score_top, with_ranks=job.score_ranks)
