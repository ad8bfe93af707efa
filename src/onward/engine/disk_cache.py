"""The prefix cache on a disk: blocks that memory has no room for, and on shutdown all others, so that a restart finds
them. They are read back when a prompt needs them, before it is queued.

Only full blocks are written: all of their tokens are a prompt's. The block at a prompt's end may also hold generated
tokens, which must not be found by others.

A thread writes; others read, into memory of their own, which is copied to blocks of the engine when it is complete. No
step waits for a disk, and a read that hangs holds no block.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable
from collections.abc import Sequence as ReadOnly
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from onward.engine.block_files import (
    RANK_NS,
    BlockFiles,
    Missing,
    Parts,
    Unusable,
    family_of,
    file_bytes,
    next_key,
    root_key,
)
from onward.engine.block_writer import BlockWriter
from onward.engine.cache import KVCache
from onward.engine.job import Job
from onward.engine.prefix_tree import Node, PackedScores
from onward.engine.sequence import shareable_tokens
from onward.engine_load import EngineLoad
from onward.fair_pool import FairPool
from onward.settings import PREFIX_CACHE_SAVE_SECONDS

log = logging.getLogger("onward.engine")

READ_SECONDS = 5.0
"""How long a job waits for its blocks; then it computes those that are missing. A disk that takes this long for one
block hangs: while it does, no job waits for it."""
MAX_READ_BYTES = 128 << 20
"""Memory of what was read and is not in the cache yet, of all jobs together. A longer prompt is read in parts."""
REFRESH_SECONDS = 10.0
"""How long it may take until blocks of other processes are found."""
KEPT_FRACTION = 1 / 4
"""Of all blocks: how many reading leaves available."""


class WaitingJob(NamedTuple):
    """A job that waits for blocks, at most until `deadline` (by `time.monotonic`)."""

    job: Job
    deadline: float


@dataclass(slots=True, eq=False)
class Restore:
    """Blocks of `job` that are being read: those after its first `num_before`.

    From `blocks` on, what follows belongs to the thread that reads, until it says that it has finished.
    """

    job: Job
    num_before: int
    keys: list[bytes]
    era: int
    waiting: list[WaitingJob]
    """Those that wait for it. Replaced, never modified, except by additions."""
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


class DiskCache:
    """Implements `cache.NextTier`. Engine thread only.

    `identity`: what the bits of blocks depend on in addition to their tokens; `memory` returns the memory of a block.
    """

    def __init__(self, files: BlockFiles, identity: str, cache: KVCache, memory: Callable[[int], Parts]) -> None:
        self._files = files
        self._identity = f"{identity} {files.block_bytes} {sys.byteorder}"
        self._cache = cache
        self._memory = memory
        self._restores: list[Restore] = []
        self._readers = FairPool("onward-blocks", max_threads=2, max_per_owner=1)
        self._has_memory = threading.Condition()
        self._num_buffered_bytes = 0
        """Of MAX_READ_BYTES. Modified under the lock."""
        self._is_closed = False
        self._writer = BlockWriter(files)
        self._refresh_at = 0.0
        self._num_read = self._num_damaged = 0
        cache.next_tier = self

    def begin(self, job: Job, finished: Callable[[Restore], None], deadline: float | None = None) -> Restore | None:
        """Begin to read blocks of a job's prompt. Returns what the job waits for, None if there is nothing to read, no
        room, or no time: `deadline` is the one that the job has if it has waited before. `finished` is called on
        another thread: `finish` must follow."""
        self._look_around()
        now = time.monotonic()
        waiting = WaitingJob(job, now + READ_SECONDS if deadline is None else deadline)
        if now >= waiting.deadline or any(_hangs(restore, now) for restore in self._restores):
            return None
        path, keys = self._find(job)
        if not keys:
            return None
        for restore in self._restores:
            if keys[0] in restore.keys:
                restore.waiting.append(waiting)
                return restore
        del keys[max(0, self._room(path)) :]
        return self._start(Restore(job, len(path), keys, self._cache.era, [waiting]), finished) if keys else None

    def finish(self, restore: Restore) -> None:
        """Add the blocks that were read to the cache, unless some were discarded meanwhile."""
        self._look_around()
        self._restores.remove(restore)
        self._num_damaged += restore.is_damaged
        if restore.blocks and restore.era == self._cache.era:
            self._adopt(restore)
            keys = restore.keys[: len(restore.blocks)]
            self._writer.put(partial(self._files.touch, keys, time.time_ns()))
        restore.blocks = []
        with self._has_memory:
            self._num_buffered_bytes -= restore.num_bytes
            self._has_memory.notify_all()

    def overdue(self) -> list[Job]:
        """Return the jobs that have waited too long, each once. They need not wait any more."""
        now = time.monotonic()
        late: list[Job] = []
        for restore in self._restores:
            late += [each.job for each in restore.waiting if each.deadline <= now]
            restore.waiting = [each for each in restore.waiting if each.deadline > now]
        return late

    @property
    def poll_seconds(self) -> float | None:
        """How long to wait before `overdue` is asked again; None while nobody waits."""
        deadlines = [each.deadline for restore in self._restores for each in restore.waiting]
        return max(0.0, min(deadlines) - time.monotonic()) if deadlines else None

    def counted(self, load: EngineLoad) -> EngineLoad:
        """Return the load with what was read and written."""
        return msgspec.structs.replace(
            load,
            num_disk_tokens=self._num_read * self._cache.block_tokens,
            num_disk_read_bytes=self._num_read * self._files.block_bytes,
            num_disk_written_bytes=self._writer.num_written_bytes,
            num_damaged_files=self._num_damaged,
        )

    def evicted(self, node: Node) -> None:
        """See NextTier."""
        if not node.is_full or not self._writer.may_write:
            return
        key, size = self._key_of(node), file_bytes(self._files.block_bytes, node.scores)
        if self._files.size_of(key) >= size:
            self._writer.put(partial(self._files.touch, [key], time.time_ns()))
        elif self._writer.has_room(size):
            self._put_block(key, node, time.time_ns())

    def discarded(self, prompt: ReadOnly[int], salt: str, nodes: ReadOnly[Node]) -> None:
        """See NextTier. Blocks that are only on the disk are of the same family as the prompt's first."""
        families = {family_of(self._key_of(node)) for node in nodes if node.is_full}
        size = self._cache.block_tokens
        if len(prompt) >= size:
            families.add(family_of(next_key(root_key(self._identity, salt), prompt[:size])))
        if families:
            self._files.discard(families)
            self._writer.look_around()

    def save(self) -> None:
        """Write the blocks that are not on the disk, and note when the others were used, those used last first: for at
        most PREFIX_CACHE_SAVE_SECONDS, also where the disk hangs. No sequence may be left."""
        self._look_around()
        deadline = time.monotonic() + PREFIX_CACHE_SAVE_SECONDS
        now, total = time.time_ns(), 0
        nodes = [node for node in map(self._cache.tree.node, self._cache.pool.by_last_use()) if node.is_full]
        for rank, node in enumerate(nodes):
            key, size, ns = self._key_of(node), file_bytes(self._files.block_bytes, node.scores), now - rank * RANK_NS
            total += size
            if total > self._files.max_bytes or not self._writer.wait_for_room(size, deadline - time.monotonic()):
                break
            if self._files.size_of(key) >= size:
                self._writer.put(partial(self._files.touch, [key], ns))
            elif not self._writer.may_write or not self._put_block(key, node, ns):
                break
        if not self._writer.end(deadline - time.monotonic()):
            log.info("prefix cache: the disk is too slow to keep everything")

    def close(self) -> None:
        """Have the threads end, without waiting for them."""
        with self._has_memory:
            self._is_closed = True
            self._has_memory.notify_all()
        self._readers.close()
        self._writer.end(0.0)

    def _find(self, job: Job) -> tuple[list[Node], list[bytes]]:
        """Return the cached blocks that a job can use, and the keys of those after them that are on the disk."""
        tokens, size = job.prompt, self._cache.block_tokens
        limit = shareable_tokens(len(tokens)) // size
        path = self._cache.tree.match(tokens, limit, job.prefix_salt)
        keys: list[bytes] = []
        if len(path) == limit or not all(_is_enough(node.scores, job, size) for node in path):
            return path, keys
        key = self._key_of(path[-1]) if path else root_key(self._identity, job.prefix_salt)
        least = file_bytes(self._files.block_bytes, None) + _wants_scores(job)
        for begin in range(len(path) * size, limit * size, size):
            key = next_key(key, tokens[begin : begin + size])
            if self._files.size_of(key) < least:
                break
            keys.append(key)
        return path, keys

    def _room(self, path: ReadOnly[Node]) -> int:
        """Return how many blocks may be added after those of `path`."""
        pool = self._cache.pool
        num_idle = sum(pool.is_idle(node.block) for node in path)
        return pool.num_available - num_idle - int(pool.num_blocks * KEPT_FRACTION)

    def _start(self, restore: Restore, finished: Callable[[Restore], None]) -> Restore | None:
        try:
            self._readers.submit(str(restore.job.client), partial(self._read, restore, finished))
        except RuntimeError:  # the system has no more threads
            return None
        self._restores.append(restore)
        return restore

    def _read(self, restore: Restore, finished: Callable[[Restore], None]) -> None:
        """Read blocks until one is missing, there is no memory, or nobody waits any more. On another thread."""
        try:
            for key in restore.keys:
                if not self._take_memory(restore, max(self._files.block_bytes, self._files.size_of(key))):
                    restore.is_cut = bool(restore.blocks)
                    break
                block = np.empty(self._files.block_bytes, np.uint8)
                restore.reading_since = time.monotonic()
                try:
                    scores = self._files.read(key, [block])
                except Unusable as problem:
                    restore.is_damaged = not isinstance(problem, Missing)
                    log.debug("prefix cache: %s is not used: %s", key.hex(), problem)
                    self._files.drop([key])
                    break
                except OSError as problem:
                    log.debug("prefix cache: %s cannot be read now: %s", key.hex(), problem)
                    self._files.disregard([key])
                    break
                if not _is_enough(scores, restore.job, self._cache.block_tokens):
                    break
                restore.blocks.append((block, scores))
        finally:
            restore.reading_since = 0.0
            finished(restore)

    def _take_memory(self, restore: Restore, size: int) -> bool:
        """Take memory for a block. Where others have all of it, wait if the restore has none, as long as a job waits.
        On another thread. Returns whether there is some."""
        with self._has_memory:
            while restore.waiting and not self._is_closed:
                if not self._num_buffered_bytes or self._num_buffered_bytes + size <= MAX_READ_BYTES:
                    self._num_buffered_bytes += size
                    restore.num_bytes += size
                    return True
                if restore.blocks:
                    return False
                self._has_memory.wait(READ_SECONDS / 4)
        return False

    def _adopt(self, restore: Restore) -> None:
        """Copy what was read to blocks of the cache, as many as there is room for."""
        pool, job, start = self._cache.pool, restore.job, restore.num_before
        path = self._cache.tree.match(job.prompt, start + len(restore.blocks), job.prefix_salt)
        if len(path) < start:
            return  # those before them were evicted
        new = restore.blocks[len(path) - start :][: max(0, self._room(path))]
        table = [node.block for node in path]
        pool.share(table)
        table += pool.allocate(len(new))
        for target, (block, _) in zip(table[len(path) :], new, strict=True):
            begin = 0
            for part in self._memory(target):
                part[:] = block[begin : begin + part.nbytes]
                begin += part.nbytes
        nodes = self._cache.adopt(job.prompt, table, len(table), job.prefix_salt)
        for node, key, (_, scores) in zip(nodes[start:], restore.keys, restore.blocks, strict=False):
            node.disk_key = key
            node.scores = node.scores or scores
        self._num_read += len(new)
        pool.release(table)

    def _put_block(self, key: bytes, node: Node, ns: int) -> bool:
        """Have a copy of a block written. Returns whether it will be."""
        with suppress(MemoryError):
            return self._writer.put_block(key, np.concatenate(self._memory(node.block)), node.scores, ns)
        return False

    def _key_of(self, node: Node) -> bytes:
        """Return the key of a full block's file."""
        unknown: list[Node] = []
        while node.parent is not None and not node.disk_key:
            unknown.append(node)
            node = node.parent
        key = node.disk_key or root_key(self._identity, node.salt)
        for each in reversed(unknown):
            key = each.disk_key = next_key(key, each.key)
        return key

    def _look_around(self) -> None:
        """Drop all cached blocks if another process wants them forgotten. Now and then, have the blocks found that
        others have written."""
        if self._writer.new_word:
            self._cache.drop_all()
            self._writer.accept_word()
        if (now := time.monotonic()) >= self._refresh_at:
            self._refresh_at = now + REFRESH_SECONDS
            self._writer.look_around()


def _hangs(restore: Restore, now: float) -> bool:
    since = restore.reading_since
    return bool(since) and now - since > READ_SECONDS


def _wants_scores(job: Job) -> bool:
    """Whether the prompt's tokens are to be scored (as `Sequence.wants_scores` of a new sequence)."""
    return job.score_top is not None and job.resume is None


def _is_enough(scores: PackedScores | None, job: Job, block_tokens: int) -> bool:
    """Whether a full block with these scores is of use to a job."""
    if not _wants_scores(job):
        return True
    assert job.score_top is not None
    has_all = scores is not None and len(scores) >= block_tokens
    return has_all and scores is not None and scores.has(job.score_top, with_ranks=job.score_ranks)
