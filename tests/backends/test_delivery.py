"""Events on their way to an event loop: in order, none lost, and by one call where the loop falls behind."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

import pytest

from onward.backends import delivery
from onward.backends.delivery import BLOCKED_PENDING_STEPS, MAX_PENDING_STEPS, YIELD_SECONDS, Delivery
from onward.engine.events import Event, Failed


class Reader:
    def __init__(self) -> None:
        self.fed: list[list[int]] = []
        self.abandoned = 0

    def feed(self, events: list[Event]) -> None:
        self.fed.append([event.job for event in events])

    def abandon(self) -> None:
        self.abandoned += 1


class Loop:
    """An event loop that runs what it was asked to when the test says so."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []
        self.closed = False

    def call_soon_threadsafe(self, call: Callable[[], None]) -> None:
        if self.closed:
            raise RuntimeError("Event loop is closed")
        self.calls.append(call)

    def is_closed(self) -> bool:
        return self.closed

    def run(self) -> None:
        calls, self.calls = self.calls, []
        for call in calls:
            call()


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    slept: list[float] = []
    monkeypatch.setattr(delivery.time, "sleep", slept.append)
    return slept


def event(number: int) -> Event:
    return Failed(number, "")


def test_events_of_a_step_come_by_one_call_each_reader_its_own() -> None:
    loop, one, two = Loop(), Reader(), Reader()
    Delivery(loop).post({one: [event(1), event(3)], two: [event(2)]}.items())
    assert len(loop.calls) == 1 and not one.fed
    loop.run()
    assert (one.fed, two.fed) == ([[1, 3]], [[2]])


def test_steps_that_end_before_the_call_begins_join_it() -> None:
    loop, one, two = Loop(), Reader(), Reader()
    way = Delivery(loop)
    for number in range(3):
        way.post({one: [event(number)], two: [event(10 + number)]}.items())
    assert len(loop.calls) == 1
    loop.run()
    assert (one.fed, two.fed) == ([[0], [1], [2]], [[10], [11], [12]]), "each step by itself"
    way.post({one: [event(3)]}.items())
    assert len(loop.calls) == 1, "what comes afterwards calls again"
    loop.run()
    assert one.fed[3:] == [[3]]


def test_what_is_posted_while_readers_are_fed_is_not_forgotten() -> None:
    loop, late = Loop(), Reader()
    way = Delivery(loop)

    class Posting(Reader):
        def feed(self, events: list[Event]) -> None:
            way.post({late: [event(7)]}.items())

    way.post({Posting(): [event(1)]}.items())
    loop.run()
    assert not late.fed and len(loop.calls) == 1
    loop.run()
    assert late.fed == [[7]]


def test_an_engine_far_ahead_of_a_loop_lets_it_have_a_moment_each_step(slept: list[float]) -> None:
    loop, reader = Loop(), Reader()
    way = Delivery(loop)
    for number in range(MAX_PENDING_STEPS):
        way.post({reader: [event(number)]}.items())
    assert slept == []
    for number in range(3):
        way.post({reader: [event(number)]}.items())
    assert slept == [YIELD_SECONDS] * 3
    loop.run()
    way.post({reader: [event(0)]}.items())
    assert slept == [YIELD_SECONDS] * 3


def test_a_loop_that_is_blocked_for_long_delays_nobody(slept: list[float]) -> None:
    loop, reader = Loop(), Reader()
    way = Delivery(loop)
    for number in range(BLOCKED_PENDING_STEPS + 100):
        way.post({reader: [event(number)]}.items())
    assert len(slept) == BLOCKED_PENDING_STEPS - 1 - MAX_PENDING_STEPS
    loop.run()
    assert len(reader.fed) == BLOCKED_PENDING_STEPS + 100


@pytest.mark.parametrize("called_before", [True, False])
def test_readers_of_a_closed_loop_are_abandoned_and_nothing_is_kept(called_before: bool) -> None:
    loop, one, two = Loop(), Reader(), Reader()
    way = Delivery(loop)
    if called_before:
        way.post({one: [event(1)]}.items())
    loop.closed = True
    way.post({one: [event(2)], two: [event(3), event(4)]}.items())
    assert (one.abandoned, two.abandoned) == (1, 1)
    way.post({two: [event(5)]}.items())
    assert (one.abandoned, two.abandoned) == (1, 2), "nothing is kept"
    assert not one.fed


def test_nothing_is_lost_or_reordered_between_a_thread_and_a_real_loop() -> None:
    steps = 5000

    async def work() -> list[int]:
        reader, way = Reader(), Delivery(asyncio.get_running_loop())

        def post() -> None:
            for number in range(steps):
                way.post({reader: [event(number)]}.items())
                if number % 700 == 0:
                    time.sleep(0.002)

        engine = threading.Thread(target=post)
        engine.start()
        while engine.is_alive():
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        return [number for fed in reader.fed for number in fed]

    assert asyncio.run(work()) == list(range(steps))
