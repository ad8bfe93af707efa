"""The memory of kept streams is bounded, whoever reads them and however slowly."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from onward.errors import NotFound, RequestCancelled
from onward.server.running import Running
from onward.server.streams.kept import KeptStreams
from onward.server.streams.log import LOG_BYTES, StreamLog, event_size
from tests.server.fakes import in_loop

EVENT = (b"x" * 1000,)
SIZE = event_size(EVENT)


def streams(max_events: int, num_logs: int = 1) -> KeptStreams:
    return KeptStreams(60.0, num_logs * LOG_BYTES + max_events * SIZE, Running())


class Filling:
    """A stream that is filled with events until it is cancelled or has `count` of them."""

    def __init__(self, kept: KeptStreams, count: int, id: str = "cmpl-1", client: str = "someone") -> None:
        self.kept = kept
        self.log = StreamLog(id, None, client, "m")
        self.outcome = ""
        self.most_bytes = 0
        kept.start(self.log, self._fill(count))

    async def _fill(self, count: int) -> None:
        try:
            for _ in range(count - 1):
                await self.kept.append(self.log, EVENT)
                self.most_bytes = max(self.most_bytes, self.kept.num_bytes)
            self.kept.end(self.log, EVENT)
            self.outcome = "ended"
        except RequestCancelled:
            self.outcome = "given up"


async def read_all(filling: Filling) -> int:
    """Read a stream to its end, as one connection; return the number of events."""
    read = 0
    with filling.kept.connected(filling.log):
        async with aclosing(filling.log.read(0)) as batches:
            async for events in batches:
                read += len(events)
                await asyncio.sleep(0)
    return read


async def idle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@in_loop
async def test_a_stream_that_nobody_reads_is_given_up_when_memory_is_full() -> None:
    kept = streams(max_events=5)
    filling = Filling(kept, 10)
    await idle()
    assert filling.outcome == "given up"
    assert (kept.num_streams, kept.num_bytes, kept.num_abandoned) == (0, 0, 1)


@in_loop
async def test_a_stream_that_is_read_loses_its_beginning_and_nothing_else() -> None:
    kept = streams(max_events=5)
    filling = Filling(kept, 50)
    assert (await read_all(filling), filling.outcome) == (50, "ended")
    assert filling.most_bytes <= kept.max_bytes
    assert filling.log.first > 1


@in_loop
async def test_a_reader_that_is_never_behind_does_not_let_a_stream_grow() -> None:
    kept = streams(max_events=5)
    log, go = StreamLog("cmpl-1", None, "someone", "m"), asyncio.Semaphore(0)

    async def fill() -> None:
        for _ in range(50):
            await go.acquire()
            await kept.append(log, EVENT)
            assert kept.num_bytes <= kept.max_bytes

    kept.start(log, fill())
    with kept.connected(log):
        async with aclosing(log.read(0)) as batches:
            for _ in range(50):
                go.release()
                assert len(await anext(batches)) == 1
                await idle()


@in_loop
async def test_work_waits_for_a_slow_reader() -> None:
    kept = streams(max_events=5)
    filling = Filling(kept, 50)
    with kept.connected(filling.log):
        async with aclosing(filling.log.read(0)) as batches:
            first = await anext(batches)
            await idle()
            assert filling.log.last == 5
            assert len(first) + len(await anext(batches)) <= 10
            await idle()
            assert not filling.outcome


@in_loop
async def test_an_event_larger_than_the_memory_reaches_its_reader() -> None:
    kept = KeptStreams(60.0, LOG_BYTES, Running())
    filling = Filling(kept, 3)
    assert (await read_all(filling), filling.outcome) == (3, "ended")


@in_loop
async def test_streams_that_have_ended_make_room_the_oldest_first() -> None:
    kept = streams(max_events=6, num_logs=3)
    for id in ("a", "b", "c"):
        filling = Filling(kept, 3, id)
        await idle()
        assert filling.outcome == "ended"
    with pytest.raises(NotFound):
        kept.find("a", None)
    assert kept.find("b", None) and kept.find("c", None)


@pytest.mark.parametrize(
    ("streams_of", "left"),
    [  # client and number of events of each stream, in order; memory for 12 events
        ([("a", 3), ("b", 3), ("b", 3), ("b", 6)], "0 2 3"),  # b displaces its own
        ([("b", 3), ("a", 3), ("b", 3), ("b", 3), ("b", 3)], "1 2 3 4"),
        ([("b", 3), ("b", 3), ("b", 3), ("a", 6)], "1 2 3"),  # of b, which holds more than its share
        ([("a", 6), ("b", 6), ("c", 3)], "1 2"),
        ([("a", 9), ("b", 3), ("b", 6)], "1 2"),
    ],
)
@in_loop
async def test_a_client_within_its_share_of_the_memory_loses_nothing_to_others(
    streams_of: list[tuple[str, int]], left: str
) -> None:
    kept = streams(max_events=12, num_logs=4)
    for number, (client, count) in enumerate(streams_of):
        Filling(kept, count, str(number), client)
        await idle()
    assert " ".join(kept._streams) == left
    assert kept.num_bytes == sum(each.log.num_bytes for each in kept._streams.values()) <= kept.max_bytes


@in_loop
async def test_bytes_are_counted_exactly() -> None:
    kept = streams(max_events=100)
    logs = [Filling(kept, 3, str(number)).log for number in range(4)]
    await idle()
    assert kept.num_bytes == sum(log.num_bytes for log in logs) == 4 * (LOG_BYTES + 3 * SIZE)
    for log in logs:
        kept.cancel(log)
        kept.cancel(log)
    assert kept.num_bytes == 0
