"""Calls that go to a replica together."""

from __future__ import annotations

import asyncio

import pytest

from onward.engines.cluster import channels
from onward.engines.cluster.channels import Batches
from onward.engines.cluster.messages import Calls, ReplicaRoute
from onward.engines.cluster.transport import ReplicaLost
from tests.waiting import until


class Replica:
    """Implements `channels.Caller`; calls end when `ended` is set, badly if there is a `failure`."""

    def __init__(self) -> None:
        self.begun: list[list[int]] = []
        self.cancelled: list[list[int]] = []
        self.num_torn = 0
        self.ended = asyncio.Event()
        self.failure: ReplicaLost | None = None

    async def run(self, calls: Calls, route: ReplicaRoute) -> None:
        self.begun.append([call for call, _ in calls])
        try:
            await self.ended.wait()
        except asyncio.CancelledError:
            self.num_torn += 1
            raise
        if self.failure is not None:
            raise self.failure

    async def cancel(self, calls: list[int], route: ReplicaRoute) -> None:
        self.cancelled.append(calls)


def begin(monkeypatch: pytest.MonkeyPatch) -> tuple[Replica, Batches, list[tuple[int, str]]]:
    monkeypatch.setattr(channels, "BATCH_SECONDS", 0.02)
    replica, failures = Replica(), list[tuple[int, str]]()
    return (
        replica,
        Batches(replica, ReplicaRoute("a", "face"), lambda call, why: failures.append((call, str(why)))),
        failures,
    )


def test_the_first_call_goes_at_once_and_what_begins_meanwhile_goes_together(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        replica, calls, _ = begin(monkeypatch)
        calls.begin(1, b"")
        await until(lambda: len(replica.begun) == 1)
        for call in range(2, 6):
            calls.begin(call, b"")
        await until(lambda: len(replica.begun) == 2)
        assert replica.begun == [[1], [2, 3, 4, 5]]
        calls.close()

    asyncio.run(run())


def test_a_cancelled_call_that_was_not_sent_never_is(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        replica, calls, _ = begin(monkeypatch)
        for call in (1, 2, 3):
            calls.begin(call, b"")
        calls.cancel(2)
        await until(lambda: len(replica.begun) == 1)
        calls.cancel(1)
        calls.cancel(3)
        await until(lambda: replica.cancelled)
        assert (replica.begun, replica.cancelled) == ([[1, 3]], [[1, 3]])
        calls.close()

    asyncio.run(run())


def test_a_loss_reaches_all_calls_of_its_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        replica, calls, failures = begin(monkeypatch)
        replica.failure = ReplicaLost("it died")
        calls.begin(1, b"")
        calls.begin(2, b"")
        replica.ended.set()
        await until(lambda: len(failures) == 2)
        assert failures == [(1, "it died"), (2, "it died")]

    asyncio.run(run())


def test_a_call_whose_end_does_not_arrive_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "END_SECONDS", 0.01)

    async def run() -> None:
        replica, calls, failures = begin(monkeypatch)
        replica.ended.set()
        calls.begin(1, b"")
        await until(lambda: failures)
        assert failures == [(1, "its last events did not arrive")]

    asyncio.run(run())


def test_closing_cancels_what_runs_and_sends_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        replica, calls, failures = begin(monkeypatch)
        calls.begin(1, b"")
        await until(lambda: len(replica.begun) == 1)
        calls.begin(2, b"")
        calls.close()
        await asyncio.sleep(0.05)
        assert (replica.begun, replica.num_torn, failures) == ([[1]], 1, [])

    asyncio.run(run())
