"""The prefix cache on a disk: blocks that memory has no room for, and at the end all others, so that a restart finds
them. They are read back when a prompt needs them, before it is queued.

Only full blocks are written: all of their tokens are a prompt's. The block at a prompt's end may have generated tokens
behind it, which nobody may be meant to see.

A thread writes; others read, straight into blocks that the engine has allocated and does not use yet. No step waits for
a disk.
"""

from __future__ import annotations

import logging
import queue
import sys
import threading
import time
from collections.abc import Callable
from collections.abc import Sequence as ReadOnly
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import msgspec
import numpy as np

from onward.engine.block_files import (
    RANK_NS,
    BlockFiles,
    Forgotten,
    Missing,
    Parts,
    Unusable,
    file_bytes,
    next_key,
    root_key,
)
from onward.engine.cache import KVCache
from onward.engine.job import Job
from onward.engine.prefix_tree import Node, PackedScores
from onward.engine.sequence import shareable_tokens
from onward.engine_load import EngineLoad
from onward.fair_pool import FairPool
from onward.settings import PREFIX_CACHE_SAVE_SECONDS

log = logging.getLogger("onward.engine")

READ_SECONDS = 5.0
"""How long a job waits for its blocks; then it computes those that are missing."""
REFRESH_SECONDS = 10.0
"""How long it may take until blocks of other processes are found."""
PAUSE_SECONDS = 60.0
"""How long nothing is written after a write has failed."""
MAX_QUEUED_BYTES = 64 << 20
"""Memory of blocks that wait to be written. Where a disk is slower, blocks are lost, which costs computing them."""
KEPT_FRACTION = 1 / 4
"""Of all blocks: how many reading leaves available."""


@dataclass(slots=True, eq=False)
class Restore:
    """Blocks that are being read for `job`. The cached blocks before them, `held`, are not evicted meanwhile.

    `scores` and `is_damaged` belong to the thread that reads, until it says that it has finished.
    """

    job: Job
    keys: list[bytes]
    held: list[int]
    blocks: list[int]
    parts: list[Parts]
    begun: float
    era: int
    scores: list[PackedScores | None] = field(default_factory=list)
    """Those of the blocks that were read."""
    is_damaged: bool = False
    """Whether a file was found that is not a block."""
    jobs: list[Job] = field(default_factory=list)
    """Those that wait for it."""


class DiskCache:
    """Implements `cache.NextTier`. Engine thread only.

    `identity`: what the bits of blocks depend on besides their tokens; `memory` returns the memory of a block.
    """

    def __init__(self, files: BlockFiles, identity: str, cache: KVCache, memory: Callable[[int], Parts]) -> None:
        self._files = files
        self._identity = f"{identity} {files.block_bytes} {sys.byteorder}"
        self._cache = cache
        self._memory = memory
        self._restores: list[Restore] = []
        self._era = 0
        """Raised when blocks are discarded: those that are being read are not added then."""
        self._readers = FairPool("onward-blocks", max_threads=2, max_per_owner=1)
        self._writer = _Writer(files)
        self._refresh_at = 0.0
        self._num_read = self._num_damaged = 0
        cache.next_tier = self

    def begin(self, job: Job, finished: Callable[[Restore], None]) -> Restore | None:
        """Begin to read blocks of a job's prompt. Returns what the job has to wait for, None if there is nothing to
        read, or no room. `finished` is called on another thread: `finish` must follow."""
        self._look_around()
        tokens, size = job.prompt, self._cache.block_tokens
        limit = shareable_tokens(len(tokens)) // size
        path = self._cache.tree.match(tokens, limit, job.salt)
        if len(path) == limit or not all(_is_enough(node.scores, job, size) for node in path):
            return None
        key = self._key_of(path[-1]) if path else root_key(self._identity, job.salt)
        least = file_bytes(self._files.block_bytes, None) + _wants_scores(job)
        keys: list[bytes] = []
        for begin in range(len(path) * size, limit * size, size):
            key = next_key(key, tokens[begin : begin + size])
            if self._files.size_of(key) < least:
                break
            keys.append(key)
        now = time.monotonic()
        if not keys or any(now - restore.begun > READ_SECONDS for restore in self._restores):
            return None  # there is nothing, or the disk hangs
        under_way = (restore for restore in self._restores if keys[0] in restore.keys)
        return next(under_way, None) or self._start(job, path, keys, finished)

    def finish(self, restore: Restore) -> None:
        """Add the blocks that were read to the cache, unless some were discarded meanwhile."""
        self._look_around()
        self._restores.remove(restore)
        table, count = [*restore.held, *restore.blocks], len(restore.scores)
        self._cache.restoring.remove(table)
        self._num_damaged += restore.is_damaged
        path = self._cache.tree.match(restore.job.prompt, len(restore.held), restore.job.salt)
        if restore.era == self._era and [node.block for node in path] == restore.held:
            nodes = self._cache.adopt(restore.job.prompt, table, len(restore.held) + count, restore.job.salt)
            for index, node in enumerate(nodes[len(restore.held) :]):
                node.disk_key = restore.keys[index]
                node.scores = node.scores or restore.scores[index]
            self._num_read += count
        self._cache.pool.release(table)

    def overdue(self) -> list[Job]:
        """Return the jobs that have waited too long, each once. They need not wait any more."""
        now = time.monotonic()
        late = [restore for restore in self._restores if now - restore.begun > READ_SECONDS]
        jobs = [job for restore in late for job in restore.jobs]
        for restore in late:
            restore.jobs = []
        return jobs

    @property
    def poll_seconds(self) -> float | None:
        """How long to wait before `overdue` is asked again; None while nobody waits."""
        return READ_SECONDS / 4 if any(restore.jobs for restore in self._restores) else None

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
            with suppress(MemoryError):
                self._writer.put_block(key, [np.concatenate(self._memory(node.block))], node.scores, size)

    def discarded(self, prompt: ReadOnly[int], salt: str, nodes: ReadOnly[Node]) -> None:
        """See NextTier."""
        self._era += 1
        size = self._cache.block_tokens
        keys = [self._key_of(node) for node in nodes if node.is_full]
        key = root_key(self._identity, salt)
        for begin in range(0, len(prompt) - size + 1, size):
            key = next_key(key, prompt[begin : begin + size])
            keys.append(key)
        self._writer.put(partial(self._files.drop, keys))

    def save(self) -> None:
        """Write the blocks that are not on the disk, those used last first, and note when all were used. Blocks, at
        most about PREFIX_CACHE_SAVE_SECONDS. No sequence may be left."""
        self._look_around()
        deadline = time.monotonic() + PREFIX_CACHE_SAVE_SECONDS
        if not self._writer.end(PREFIX_CACHE_SAVE_SECONDS):
            return
        now, total = time.time_ns(), 0
        nodes = [node for node in map(self._cache.tree.node, self._cache.pool.by_last_use()) if node.is_full]
        for rank, node in enumerate(nodes):
            total += file_bytes(self._files.block_bytes, node.scores)
            if total > self._files.max_bytes or not self._writer.may_write:
                return
            if time.monotonic() > deadline:
                log.info("prefix cache: the %d blocks that were used longest ago were not kept", len(nodes) - rank)
                return
            ns = now - rank * RANK_NS
            self._writer.write(self._key_of(node), [*self._memory(node.block)], node.scores, ns, self._files.word)

    def close(self) -> None:
        """End the threads. What was not written is lost."""
        self._readers.close()
        self._writer.end(0.0)

    def _start(
        self, job: Job, path: list[Node], keys: list[bytes], finished: Callable[[Restore], None]
    ) -> Restore | None:
        pool, held = self._cache.pool, [node.block for node in path]
        room = pool.num_available - sum(map(pool.is_idle, held)) - int(pool.num_blocks * KEPT_FRACTION)
        if room <= 0:
            return None
        del keys[room:]
        pool.share(held)
        blocks = pool.allocate(len(keys))
        parts = [self._memory(block) for block in blocks]
        restore = Restore(job, keys, held, blocks, parts, time.monotonic(), self._era)
        self._restores.append(restore)
        self._cache.restoring.append([*held, *blocks])
        try:
            self._readers.submit(str(job.client), partial(self._read, restore, finished))
        except RuntimeError:  # the system has no more threads
            self.finish(restore)
            return None
        return restore

    def _read(self, restore: Restore, finished: Callable[[Restore], None]) -> None:
        """Read blocks until one is missing, or the time is over. On another thread."""
        try:
            for key, parts in zip(restore.keys, restore.parts, strict=True):
                if time.monotonic() - restore.begun > READ_SECONDS:
                    break
                try:
                    scores = self._files.read(key, parts)
                except Unusable as problem:
                    restore.is_damaged = not isinstance(problem, Missing)
                    log.debug("prefix cache: %s is not used: %s", key.hex(), problem)
                    self._files.drop([key])
                    break
                if not _is_enough(scores, restore.job, self._cache.block_tokens):
                    break
                restore.scores.append(scores)
            num_read = len(restore.scores)
        finally:
            finished(restore)
        self._files.touch(restore.keys[:num_read], time.time_ns())

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
            self._era += 1
            self._cache.drop_all()
            self._writer.accept_word()
        if (now := time.monotonic()) >= self._refresh_at:
            self._refresh_at = now + REFRESH_SECONDS
            self._writer.put(self._writer.look_around)


class _Writer:
    """Writes blocks on a thread, which starts when it is first needed. Engine thread, unless it says otherwise."""

    def __init__(self, files: BlockFiles) -> None:
        self._files = files
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._num_queued_bytes = 0
        """Of blocks in the queue. Modified under the lock."""
        self.num_written_bytes = 0
        self.new_word = b""
        """That of the folder, if its blocks were forgotten since `accept_word` was called last."""
        self._is_failing = self._has_ended = False
        self._resumes_at = 0.0

    @property
    def may_write(self) -> bool:
        """Whether it is worth trying."""
        return not self.new_word and time.monotonic() >= self._resumes_at

    def has_room(self, size: int) -> bool:
        """Whether a block of this size may be queued."""
        return not self._num_queued_bytes or self._num_queued_bytes + size <= MAX_QUEUED_BYTES

    def put(self, work: Callable[[], None]) -> None:
        """Have something done on the thread, if the system has one."""
        if self._has_ended:
            return
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="onward-block-writer", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                return
            self._thread = thread
        self._queue.put(work)

    def put_block(self, key: bytes, parts: Parts, scores: PackedScores | None, size: int) -> None:
        """Have a block written, whose memory belongs to the thread now."""
        with self._lock:
            self._num_queued_bytes += size
        self.put(partial(self._write_queued, key, parts, scores, size, time.time_ns(), self._files.word))

    def write(self, key: bytes, parts: Parts, scores: PackedScores | None, ns: int, word: bytes) -> None:
        """Write a block that was used at `ns`, unless it is there. On the thread, or when that has ended."""
        try:
            if self._files.size_of(key) >= file_bytes(self._files.block_bytes, scores):
                self._files.touch([key], ns)
                return
            self.num_written_bytes += self._files.write(key, parts, scores, ns, word)
            self._is_failing = False
        except Forgotten as forgotten:
            self.new_word = forgotten.word
        except OSError as error:
            self._resumes_at = time.monotonic() + PAUSE_SECONDS
            if not self._is_failing:
                log.warning(
                    "the prefix cache cannot be written to %s (%s): prompts stay in memory only",
                    self._files.folder,
                    error.strerror or error,
                )
            self._is_failing = True

    def look_around(self) -> None:
        """Find what other processes have written, or have made this one forget. On the thread."""
        try:
            self._files.refresh(self._files.word)
        except Forgotten as forgotten:
            self.new_word = forgotten.word

    def accept_word(self) -> None:
        """Note that no block is left in memory from before the folder's blocks were forgotten."""
        self._files.word, self.new_word = self.new_word, b""

    def end(self, seconds: float) -> bool:
        """End the thread when it has done everything. Returns whether it has, after at most so many seconds."""
        self._has_ended = True
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(seconds)
        return self._thread is None or not self._thread.is_alive()

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            try:
                work()
            except Exception:
                log.exception("the prefix cache on disk failed")

    def _write_queued(
        self, key: bytes, parts: Parts, scores: PackedScores | None, size: int, ns: int, word: bytes
    ) -> None:
        if self.may_write:
            self.write(key, parts, scores, ns, word)
        with self._lock:
            self._num_queued_bytes -= size


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
