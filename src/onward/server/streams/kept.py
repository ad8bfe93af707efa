"""The streams that a server keeps, bounded in time and memory, and their metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from onward.api.openai.response import Completion
from onward.errors import ApiError, NotFound, RequestCancelled
from onward.server.running import Running
from onward.server.streams.log import LoggedEvent, StreamLog, event_size

_ROOM = 64
"""When memory is full, at least 1/64 of it is freed."""


@dataclass(slots=True)
class _Kept:
    """A log, the work that fills it, how many connections wait for it, and the timer that runs while none does."""

    log: StreamLog
    work: asyncio.Task[None]
    num_connections: int = 0
    timer: asyncio.TimerHandle | None = None


@dataclass(slots=True)
class _Client:
    """The streams of a client, the oldest first, and what they count for."""

    streams: dict[str, _Kept] = field(default_factory=dict)
    num_bytes: int = 0


class KeptStreams:
    """Keeps each stream until `window_seconds` after its last connection has gone, and works on it until then.

    All logs together hold at most `max_bytes`, of which each client that has streams may use an equal share while
    others need theirs. When they are full, streams that have ended are forgotten, of the client with the most bytes
    first and its oldest first, but never those of another client that is within its share; then streams that are read
    lose what was read already, and wait for their readers. A stream without a reader for which there is no memory is
    cancelled. Streams without a connection count as `running` until they have ended, so that a drain waits for them.
    Belongs to one event loop.
    """

    def __init__(self, window_seconds: float, max_bytes: int, running: Running) -> None:
        self.window_seconds = window_seconds
        self.max_bytes = max_bytes
        self.num_resumed = 0
        self.num_abandoned = 0
        """Streams that were cancelled because nobody came back for them in time, or memory ran out."""
        self._running = running
        self._streams: dict[str, _Kept] = {}
        self._num_bytes = 0
        self._by_client: dict[str, _Client] = {}

    @property
    def num_streams(self) -> int:
        """Number of streams that are kept, running or ended."""
        return len(self._streams)

    @property
    def num_bytes(self) -> int:
        """Bytes that the kept streams count for."""
        return self._num_bytes

    def start(self, log: StreamLog, work: Coroutine[object, object, None]) -> None:
        """Keep a new log and start the work that fills it with `append` and ends it. Call `connected` right after."""
        task = asyncio.create_task(work)
        self._streams[log.id] = kept = _Kept(log, task)
        self._by_client.setdefault(log.client, _Client()).streams[log.id] = kept
        self._count(log, log.num_bytes)
        self._running.begin()  # until `connected`, and then whenever there is no connection
        task.add_done_callback(lambda _: self._work_ended(kept))

    def find(self, id: str, owner: str | None) -> StreamLog:
        """Return the log of the stream. Raises NotFound, for streams of other owners too."""
        kept = self._streams.get(id)
        if kept is None or kept.log.owner != owner:
            raise NotFound(
                f"There is no stream {id[:64]!r} to resume. A stream can be resumed if it was requested with "
                "'stream_options.resumable', with the same API key, and for the time and the memory that the server's "
                "--resume-window and --resume-memory allow."
            )
        return kept.log

    @contextmanager
    def connected(self, log: StreamLog) -> Iterator[None]:
        """Keep the stream alive while a connection waits for it."""
        kept = self._streams[log.id]
        self._connect(kept)
        try:
            yield
        finally:
            self._disconnect(kept)

    def _connect(self, kept: _Kept) -> None:
        kept.num_connections += 1
        if kept.timer is not None:
            kept.timer.cancel()
            kept.timer = None
        if kept.num_connections == 1 and not kept.log.is_ended:
            self._running.end()  # the connection is counted in its place

    def _disconnect(self, kept: _Kept) -> None:
        kept.num_connections -= 1
        if kept.num_connections or self._streams.get(kept.log.id) is not kept:
            return
        if not kept.log.is_ended:
            self._running.begin()
        kept.timer = asyncio.get_running_loop().call_later(self.window_seconds, self._expire, kept)

    def _expire(self, kept: _Kept) -> None:
        if not kept.log.is_ended:
            self.num_abandoned += 1
        self.cancel(kept.log)

    def cancel(self, log: StreamLog) -> None:
        """Cancel the stream if it is running, and forget it."""
        kept = self._streams.pop(log.id, None)
        if kept is None:
            return
        self._count(log, -log.num_bytes)
        client = self._by_client[log.client]
        del client.streams[log.id]
        if not client.streams:
            del self._by_client[log.client]
        if kept.timer is not None:
            kept.timer.cancel()
        if not log.is_ended:
            self._stop_counting(kept)
            log.cancel()
        if kept.work is not asyncio.current_task():
            kept.work.cancel()

    def _work_ended(self, kept: _Kept) -> None:
        """Called once the work is done: it has ended the log, unless it was cancelled."""
        if not kept.log.is_ended:
            self.cancel(kept.log)

    def end(
        self, log: StreamLog, last: LoggedEvent, *, error: ApiError | None = None, completion: Completion | None = None
    ) -> None:
        """Add the last event and end the log. From then on a drain waits only for its connections."""
        if (kept := self._streams.get(log.id)) is not None and not log.is_ended:
            self._add(log, last)
            self._stop_counting(kept)
            log.end(error=error, completion=completion)

    def _stop_counting(self, kept: _Kept) -> None:
        if not kept.num_connections:
            self._running.end()

    async def append(self, log: StreamLog, event: LoggedEvent) -> None:
        """Add an event when there is memory for it. Raises RequestCancelled if there is none and nobody reads."""
        while (
            self._num_bytes + event_size(event) > self.max_bytes
            and not self._free_memory(log)
            and not log.is_read_to_the_end  # an event larger than all memory
        ):
            if not log.is_read:
                self.num_abandoned += 1
                self.cancel(log)
                raise RequestCancelled("There is no memory to keep this stream.")
            await log.wait_for_change()
        self._add(log, event)

    def _add(self, log: StreamLog, event: LoggedEvent) -> None:
        log.append(event)
        self._count(log, event_size(event))

    def _count(self, log: StreamLog, num_bytes: int) -> None:
        self._num_bytes += num_bytes
        self._by_client[log.client].num_bytes += num_bytes

    def _free_memory(self, log: StreamLog) -> bool:
        """Forget streams that have ended and have no connection, else what was read of `log`. Return whether memory was
        freed."""
        if self._forget_ended(log.client):
            return True
        before = log.num_bytes
        dropped = log.drop_read_events()
        self._count(log, log.num_bytes - before)
        return dropped

    def _forget_ended(self, client: str) -> bool:
        """Make room for a stream of `client`, a little more than it needs, because this looks at all clients."""
        share = self.max_bytes // len(self._by_client)
        enough = self.max_bytes - self.max_bytes // _ROOM
        forgotten = False
        for name, each in sorted(self._by_client.items(), key=lambda item: -item[1].num_bytes):
            for kept in list(each.streams.values()):
                if name != client and each.num_bytes <= share:
                    break
                if kept.log.is_ended and not kept.num_connections:
                    self.cancel(kept.log)
                    forgotten = True
                    if self._num_bytes <= enough:
                        return True
        return forgotten

    def metrics(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("onward_streams_kept", "Resumable streams that are kept.", self.num_streams)
        yield GaugeMetricFamily("onward_streams_kept_bytes", "Memory that kept streams hold.", self.num_bytes)
        yield CounterMetricFamily("onward_streams_resumed", "Connections that resumed a stream.", self.num_resumed)
        yield CounterMetricFamily(
            "onward_streams_abandoned",
            "Resumable streams that were cancelled because no client came back in time, or memory ran out.",
            self.num_abandoned,
        )
