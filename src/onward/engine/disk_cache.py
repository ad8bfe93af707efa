"""The prefix cache on a disk: blocks that memory has no room for, and on shutdown all others, so that a restart finds
them. They are read back when a prompt needs them, before it is queued.

Only full blocks are written: all of their tokens are a prompt's. The block at a prompt's end may also hold generated
tokens, which must not be found by others.

Where sequences have states, snapshots are written too: on shutdown all, before that those from which prompts have
continued, because each takes as much as many blocks. Blocks are read up to one, and it with them.

A thread writes; others read, into memory of their own, which is copied to blocks of the engine when it is complete. No
step waits for a disk, and a read that hangs holds no block.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from collections.abc import Sequence as ReadOnly
from contextlib import suppress
from functools import partial
from typing import NamedTuple, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from onward.engine.block_files import (
    RANK_NS,
    BlockFiles,
    family_of,
    file_bytes,
    next_key,
    root_key,
    state_key,
)
from onward.engine.block_reader import BlockRestorer, Restore, WaitingJob, is_enough, wants_scores
from onward.engine.block_writer import BlockWriter
from onward.engine.cache import KVCache
from onward.engine.job import Job
from onward.engine.model import ModelRunner, RecurrentModel
from onward.engine.prefix_tree import Node, PackedScores
from onward.engine.sequence import shareable_tokens
from onward.engine.states import NONE
from onward.engine_load import EngineLoad
from onward.settings import PREFIX_CACHE_SAVE_SECONDS

log = logging.getLogger("onward.engine")

READ_SECONDS = 5.0
"""How long a job waits for its blocks; then it computes those that are missing. A disk that takes this long for one
block hangs: while it does, no job waits for it."""
REFRESH_SECONDS = 10.0
"""How long it may take until blocks of other processes are found."""
KEPT_FRACTION = 1 / 4
"""Of all blocks: how many reading leaves available."""


class CacheEntry(NamedTuple):
    """What may lie on the disk of a node: its block, or its snapshot. `copy` returns its bytes."""

    key: bytes
    num_bytes: int
    scores: PackedScores | None
    copy: Callable[[], NDArray[np.uint8]]

    @property
    def file_bytes(self) -> int:
        return file_bytes(self.num_bytes, self.scores)


class DiskCache:
    """Implements `cache.NextTier`. Engine thread only.

    `identity`: what the bits of blocks depend on in addition to their tokens; `model`: whose memory the blocks are.
    """

    def __init__(self, files: BlockFiles, identity: str, cache: KVCache, model: ModelRunner) -> None:
        self._files = files
        self._identity = f"{identity} {files.block_bytes} {sys.byteorder}"
        self._cache, self._memory, self._states = cache, model.block_memory, cache.states
        self._model = cast(RecurrentModel, model)  # where there are states
        self._state_bytes = self._model.state_memory(0).nbytes if self._states is not None else 0
        self._restores: list[Restore] = []
        self._reader = BlockRestorer(files, cache.block_tokens, self._state_bytes)
        self._writer = BlockWriter(files, file_bytes(self._state_bytes, None) if self._states is not None else 0)
        self._refresh_at = 0.0
        self._num_read = self._num_read_bytes = self._num_damaged = 0
        """Blocks that were read, all bytes, and files that were not what they should be."""
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
        found = Restore(job, len(path), keys, self._cache.era, [waiting])
        if self._states is not None:
            self._end_with_state(found, path)
        if not found.wanted:
            return None
        for restore in self._restores:
            if found.wanted[0] in restore.wanted:
                restore.waiting.append(waiting)
                return restore
        room = max(0, self._room(path))
        if found.num_before_state and room < len(keys):
            return None  # a part without the state is of no use
        del found.keys[room:]
        if not found.wanted or not self._reader.start(found, finished):
            return None
        self._restores.append(found)
        return found

    def finish(self, restore: Restore) -> None:
        """Add the blocks that were read to the cache, unless some were discarded meanwhile."""
        self._look_around()
        self._restores.remove(restore)
        self._num_damaged += restore.is_damaged
        if (restore.blocks or restore.state is not None) and restore.era == self._cache.era:
            self._adopt(restore)
            self._place_state(restore)
            keys = restore.wanted[: len(restore.blocks) + (restore.state is not None)]
            self._writer.put(partial(self._files.touch, keys, time.time_ns()))
        self._reader.release(restore)

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
            num_disk_read_bytes=self._num_read_bytes,
            num_disk_written_bytes=self._writer.num_written_bytes,
            num_damaged_files=self._num_damaged,
        )

    def evicted(self, node: Node) -> None:
        """See NextTier."""
        if node.is_full and self._writer.may_write:
            self._offer(self._block_of(node))
            if self._states is not None and self._states.is_used(node):
                self._offer(self._snapshot_of(node))

    def displaced(self, node: Node) -> None:
        """See NextTier."""
        if self._writer.may_write:
            self._offer(self._snapshot_of(node))

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
        """Write the blocks and snapshots that are not on the disk, and note when the others were used, those used last
        first: for at most PREFIX_CACHE_SAVE_SECONDS, also where the disk hangs. No sequence may be left."""
        self._look_around()
        deadline = time.monotonic() + PREFIX_CACHE_SAVE_SECONDS
        now, total = time.time_ns(), 0
        for rank, entry in enumerate(self._all_entries()):
            size = entry.file_bytes
            total += size
            if total > self._files.max_bytes or not self._writer.wait_for_room(size, deadline - time.monotonic()):
                break
            if not self._put(entry, now - rank * RANK_NS):
                break
        if not self._writer.end(deadline - time.monotonic()):
            log.info("prefix cache: the disk is too slow to keep everything")

    def close(self) -> None:
        """Have the threads end, without waiting for them."""
        self._reader.close()
        self._writer.end(0.0)

    def _find(self, job: Job) -> tuple[list[Node], list[bytes]]:
        """Return the cached blocks that a job can use, and the keys of those after them that are on the disk."""
        tokens, size = job.prompt, self._cache.block_tokens
        limit = shareable_tokens(len(tokens)) // size
        path = self._cache.tree.match(tokens, limit, job.prefix_salt)
        keys: list[bytes] = []
        if len(path) == limit or not all(is_enough(node.scores, job, size) for node in path):
            return path, keys
        key = self._key_of(path[-1]) if path else root_key(self._identity, job.prefix_salt)
        least = file_bytes(self._files.block_bytes, None) + wants_scores(job)
        for begin in range(len(path) * size, limit * size, size):
            key = next_key(key, tokens[begin : begin + size])
            if self._files.size_of(key) < least:
                break
            keys.append(key)
        return path, keys

    def _end_with_state(self, found: Restore, path: ReadOnly[Node]) -> None:
        """Choose the deepest state on the disk after blocks that are in memory, at `path`, or on the disk. Leave out
        what follows it, and all where memory has one that is as deep."""
        assert self._states is not None
        scores, block_tokens = wants_scores(found.job), self._cache.block_tokens
        if not all(is_enough(node.scores, found.job, block_tokens) for node in path):
            return
        keys, size = [*map(self._key_of, path), *found.keys], file_bytes(self._state_bytes, None)
        for count in range(len(keys) - scores, self._states.num_reusable(path, wants_scores=scores), -1):
            if self._files.size_of(key := state_key(keys[count - 1])) == size:
                found.num_before_state, found.state_key = count, key
                break
        end = found.num_before_state + scores if found.num_before_state else 0
        del found.keys[max(0, end - len(path)) :]

    def _room(self, path: ReadOnly[Node]) -> int:
        """Return how many blocks may be added after those of `path`."""
        pool = self._cache.pool
        num_idle = sum(pool.is_idle(node.block) for node in path)
        return pool.num_available - num_idle - int(pool.num_blocks * KEPT_FRACTION)

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
        self._num_read_bytes += len(new) * self._files.block_bytes
        pool.release(table)

    def _place_state(self, restore: Restore) -> None:
        """Make a snapshot of the state that was read, if the blocks before it are in the cache."""
        job, count = restore.job, restore.num_before_state
        path = self._cache.tree.match(job.prompt, count, job.prefix_salt)
        if self._states is None or restore.state is None or len(path) < count:
            return
        state = self._states.place(path[-1], is_used=True)
        if state != NONE:
            self._model.set_state(state, restore.state, count * self._cache.block_tokens)
            self._num_read_bytes += self._state_bytes

    def _block_of(self, node: Node) -> CacheEntry:
        def copy() -> NDArray[np.uint8]:
            return np.concatenate(self._memory(node.block))

        return CacheEntry(self._key_of(node), self._files.block_bytes, node.scores, copy)

    def _snapshot_of(self, node: Node) -> CacheEntry:
        def copy() -> NDArray[np.uint8]:
            return self._model.state_memory(node.state).copy()

        return CacheEntry(state_key(self._key_of(node)), self._state_bytes, None, copy)

    def _all_entries(self) -> Iterator[CacheEntry]:
        """Yield all full blocks and snapshots, those used last first."""
        for node in map(self._cache.tree.node, self._cache.pool.by_last_use()):
            if node.is_full:
                yield self._block_of(node)
                if node.state != NONE:
                    yield self._snapshot_of(node)

    def _offer(self, entry: CacheEntry) -> None:
        """Have something written if there is room for it."""
        if self._files.size_of(entry.key) >= entry.file_bytes or self._writer.has_room(entry.file_bytes):
            self._put(entry, time.time_ns())

    def _put(self, entry: CacheEntry, ns: int) -> bool:
        """Have a copy written of what was used at `ns`, or, if it is there, that noted. Returns whether it will be."""
        if self._files.size_of(entry.key) >= entry.file_bytes:
            self._writer.put(partial(self._files.touch, [entry.key], ns))
            return True
        if self._writer.may_write:
            with suppress(MemoryError):
                return self._writer.put_block(entry.key, entry.copy(), entry.scores, ns)
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
