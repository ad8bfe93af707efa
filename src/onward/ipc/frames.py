"""Frames over a pair of file descriptors: a length of four bytes, then as many bytes."""

from __future__ import annotations

import logging
import os
import queue
import select
import struct
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import TypeVar

import msgspec

T = TypeVar("T")
log = logging.getLogger("onward.engine")

MAX_FRAME_BYTES = 256_000_000
"""Longest frame that is accepted. Submissions and reports that would be longer are split (`messages`)."""
MAX_DIRECT_BYTES = 32_768
"""Longest frame that is written on the thread that sends it: into a socket that is ready to be written, so many bytes
are written without waiting."""
READ_BYTES = 65_536
_LENGTH = struct.Struct("<I")


class BrokenFrame(Exception):
    """What was read is not a frame. The message says why."""


class BrokenMessage(Exception):
    """The payload of a frame is not a message of this version."""


def decoded(decoder: msgspec.msgpack.Decoder[T], payload: bytes, name: str) -> T:
    """Return the message in a payload. Raises BrokenMessage, which calls it by a name."""
    try:
        return decoder.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BrokenMessage(f"{name} cannot be read: {error}") from None


def frame(payload: bytes) -> bytes:
    """Return a frame with this payload. Raises BrokenFrame over MAX_FRAME_BYTES."""
    if len(payload) > MAX_FRAME_BYTES:
        raise BrokenFrame(f"a frame of {len(payload)} bytes is longer than the {MAX_FRAME_BYTES} that are accepted")
    return _LENGTH.pack(len(payload)) + payload


class FrameReader:
    """Reads frames from a blocking file descriptor, which it does not own. Used on one thread."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._buffer = bytearray()
        self._received: deque[bytes] = deque()
        self._poll = None if sys.platform == "win32" else select.poll()
        if self._poll is not None:
            self._poll.register(fd, select.POLLIN)

    @property
    def can_wait(self) -> bool:
        """Whether `receive` observes its limit: not on Windows, where pipes cannot be polled."""
        return self._poll is not None

    def receive(self, seconds: float) -> bytes | None:
        """Return the next payload, None if the other side has closed. Raises TimeoutError where nothing arrives for so
        long, and as `__iter__`. Do not mix the two."""
        while not self._received:
            if self._poll is not None and not self._poll.poll(seconds * 1000.0):
                raise TimeoutError
            data = os.read(self._fd, READ_BYTES)
            if not data:
                return None
            self._buffer += data
            self._received.extend(self._take_frames())
        return self._received.popleft()

    def __iter__(self) -> Iterator[bytes]:
        """Yield payloads until the other side closes. Raises BrokenFrame: for a length over MAX_FRAME_BYTES, and for an
        end inside a frame. An error of the descriptor counts as the end."""
        while True:
            yield from self._take_frames()
            try:
                data = os.read(self._fd, READ_BYTES)
            except OSError:
                data = b""
            if not data:
                if self._buffer:
                    raise BrokenFrame("the connection ended inside a frame")
                return
            self._buffer += data

    def _take_frames(self) -> Iterator[bytes]:
        """Yield the payloads of all complete frames in the buffer."""
        start, buffer = 0, self._buffer
        while len(buffer) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(buffer, start)
            if length > MAX_FRAME_BYTES:
                raise BrokenFrame(f"a frame claims {length} bytes; {MAX_FRAME_BYTES} are accepted")
            end = start + _LENGTH.size + length
            if len(buffer) < end:
                break
            yield bytes(memoryview(buffer)[start + _LENGTH.size : end])
            start = end
        del buffer[:start]


def write_frame(fd: int, payload: bytes) -> None:
    """Write a frame to a blocking descriptor. Raises OSError, BrokenFrame."""
    _write_all(fd, frame(payload))


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


Encode = Callable[[], list[bytes]]
"""Returns the payloads of one or more frames."""


class FrameWriter:
    """Writes frames without ever blocking the caller: small ones at once where the descriptor is ready, everything else
    on a thread of its own, which starts when it is first needed. Frames keep their order.

    May be used on any thread. The descriptor must be blocking; it is not owned. After an error nothing is written: the
    reader of the other direction notices the end.
    """

    def __init__(self, fd: int, *, name: str = "frames") -> None:
        self._fd = fd
        self._name = name
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[Encode | None] = queue.SimpleQueue()
        self._num_queued = 0
        """Calls of `write` that the thread has not finished. Modified under the lock."""
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._poll = None if sys.platform == "win32" else select.poll()
        if self._poll is not None:
            self._poll.register(fd, select.POLLOUT)

    def write(self, encode: Encode, *, is_large: bool = False) -> None:
        """Write the frames that `encode` returns. With `is_large` it is called on the writer's thread."""
        with self._lock:
            if self._is_closed:
                return
            if not is_large and not self._num_queued:
                payloads = encode()
                if self._write_now(payloads):
                    return
                encode = _constant(payloads)
            self._num_queued += 1
            self._queue.put(encode)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"onward-{self._name}", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Stop writing, and end the thread once what it is writing has been written or has failed."""
        with self._lock:
            self._is_closed = True
            self._queue.put(None)

    def join(self) -> None:
        """Wait for the thread to end. Called after `close`, once the other side has ended."""
        if self._thread is not None:
            self._thread.join()

    def _write_now(self, payloads: list[bytes]) -> bool:
        """Write one small frame if that does not block. Returns whether it was written. Called with the lock held."""
        if self._poll is None or len(payloads) != 1 or len(payloads[0]) > MAX_DIRECT_BYTES:
            return False
        if not self._is_writable():
            return False
        self._write([payloads[0]])
        return True

    def _is_writable(self) -> bool:
        assert self._poll is not None
        return any(events & select.POLLOUT for _, events in self._poll.poll(0))

    def _write(self, payloads: list[bytes]) -> None:
        try:
            for payload in payloads:
                write_frame(self._fd, payload)
        except (OSError, BrokenFrame) as error:
            log.debug("the frames of %s end: %s", self._name, error)
            self._is_closed = True

    def _run(self) -> None:
        while (encode := self._queue.get()) is not None:
            if not self._is_closed:
                self._write(encode())
            with self._lock:
                self._num_queued -= 1


def _constant(payloads: list[bytes]) -> Encode:
    return lambda: payloads
