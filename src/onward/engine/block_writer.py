"""The thread that writes blocks of the prefix cache to a disk. Nobody waits for it, and what waits for it is bounded:
where a disk is slower, blocks are lost, which costs computing them."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
from numpy.typing import NDArray

from onward.engine.block_files import BlockFiles, Forgotten, file_bytes
from onward.engine.prefix_tree import PackedScores

log = logging.getLogger("onward.engine")

PAUSE_SECONDS = 60.0
"""How long nothing is written after a write has failed."""
MAX_QUEUED_BYTES = 64 << 20
"""Memory of blocks that wait to be written; one state may wait in addition."""
MAX_QUEUED = 10_000
"""How much may wait, blocks and whatever else there is to do."""


class BlockWriter:
    """Writes blocks, and states whose files have `state_bytes`, on a thread, which starts when it is first needed.
    Engine thread, unless it says otherwise."""

    def __init__(self, files: BlockFiles, state_bytes: int = 0) -> None:
        self._files, self._state_bytes = files, state_bytes
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._changed = threading.Condition()
        """Notified when something has been done."""
        self._num_queued_bytes = 0
        """Of blocks in the queue. Modified under the lock."""
        self.num_written_bytes = 0
        self.new_word = b""
        """That of the folder, if its blocks were forgotten since `accept_word` was called last."""
        self._is_failing = self._has_ended = False
        self._resumes_at = 0.0

    @property
    def may_write(self) -> bool:
        """Whether it is worth trying. Any thread."""
        return not self.new_word and time.monotonic() >= self._resumes_at

    def has_room(self, size: int) -> bool:
        """Whether a file of this size may be queued: a state also after its block, of which it may take hundreds of
        times the size."""
        most = MAX_QUEUED_BYTES + self._state_bytes
        fits = not self._num_queued_bytes or self._num_queued_bytes + size <= most
        return fits and self._queue.qsize() < MAX_QUEUED

    def wait_for_room(self, size: int, seconds: float) -> bool:
        """Wait until a block of this size may be queued; return False if there is no room after so many seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self.has_room(size), max(0.0, seconds))

    def put(self, work: Callable[[], None]) -> bool:
        """Have something done on the thread. Returns whether it will be: not where the system has no thread, or where
        too much waits."""
        if self._has_ended or self._queue.qsize() >= MAX_QUEUED:
            return False
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="onward-block-writer", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                return False
            self._thread = thread
        self._queue.put(work)
        return True

    def put_block(self, key: bytes, block: NDArray[np.uint8], scores: PackedScores | None, ns: int) -> bool:
        """Have a block, or a state, written that was used at `ns`, and whose memory belongs to the thread now. Returns
        as `put`."""
        size = file_bytes(block.nbytes, scores)
        self._count(size)
        if self.put(partial(self._write_queued, key, block, scores, ns, self._files.word)):
            return True
        self._count(-size)
        return False

    def look_around(self) -> None:
        """Have what was discarded removed, and what other processes have written found, or what they have forgotten."""
        self.put(partial(self._look_around, self._files.discarded))

    def accept_word(self) -> None:
        """Note that no block is left in memory from before the folder's blocks were forgotten."""
        self._files.word, self.new_word = self.new_word, b""

    def end(self, seconds: float) -> bool:
        """End the thread when it has done everything. Returns whether it has, after at most so many seconds."""
        self._has_ended = True
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(max(0.0, seconds))
        return self._thread is None or not self._thread.is_alive()

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            try:
                work()
            except Exception:
                log.exception("the prefix cache on disk failed")
            with self._changed:
                self._changed.notify_all()

    def _look_around(self, discarded: Mapping[bytes, int]) -> None:
        """`discarded`: all families before this was queued: what was queued before it is not written afterwards."""
        try:
            self._files.remove_discarded(discarded)
            self._files.refresh(self._files.word)
        except Forgotten as forgotten:
            self.new_word = forgotten.word
        except OSError as error:
            log.debug("prefix cache: %s", error)

    def _write_queued(
        self, key: bytes, block: NDArray[np.uint8], scores: PackedScores | None, ns: int, word: bytes
    ) -> None:
        try:
            if self.may_write and word == self._files.word:
                self._write(key, block, scores, ns, word)
        finally:
            self._count(-file_bytes(block.nbytes, scores))

    def _write(self, key: bytes, block: NDArray[np.uint8], scores: PackedScores | None, ns: int, word: bytes) -> None:
        """Write a block that was used at `ns`, unless it is there."""
        try:
            if self._files.size_of(key) >= file_bytes(block.nbytes, scores):
                self._files.touch([key], ns)
                return
            self.num_written_bytes += self._files.write(key, [block], scores, ns, word)
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

    def _count(self, num_bytes: int) -> None:
        """Count bytes of blocks that are queued, or are not any more. Any thread."""
        with self._changed:
            self._num_queued_bytes += num_bytes
