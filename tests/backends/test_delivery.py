"""Delivery of events to an event loop: in order, without loss, and in one call where the loop has fallen behind."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

import pytest

from onward.backends.delivery import BLOCKED_PENDING_STEPS, MAX_PENDING_STEPS, YIELD_SECONDS, Delivery
from onward.engine.events import Event, Failed


class Answer:
    """A receiver that notes what it is fed."""

    def __init__(self) -> None:
        self.fed: list[list[int]] = []
        self.abandoned = 0

    def feed(self, events: list[Event]) -> None:
        self.fed.append([event.job for event in events])

    def abandon(self) -> None:
        self.abandoned += 1


class Loop:
    """An event loop that runs its scheduled calls when the test calls `run`."""

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
    monkeypatch.setattr(time, "sleep", slept.append)
    return slept


def event(number: int) -> Event:
    return Failed(number, "stopped", "")


def test_the_events_of_a_step_are_delivered_in_one_call_to_the_answer_of_each() -> None:
    loop, one, two = Loop(), Answer(), Answer()
    Delivery(loop).post({one: [event(1), event(3)], two: [event(2)]}.items())
    assert len(loop.calls) == 1 and not one.fed
    loop.run()
    assert (one.fed, two.fed) == ([[1, 3]], [[2]])


def test_steps_that_end_before_the_call_begins_are_delivered_by_it() -> None:
    loop, one, two = Loop(), Answer(), Answer()
    delivery = Delivery(loop)
    for number in range(3):
        delivery.post({one: [event(number)], two: [event(10 + number)]}.items())
    assert len(loop.calls) == 1
    loop.run()
    assert (one.fed, two.fed) == ([[0], [1], [2]], [[10], [11], [12]]), "each step by itself"
    delivery.post({one: [event(3)]}.items())
    assert len(loop.calls) == 1, "a step that is posted afterwards schedules another call"
    loop.run()
    assert one.fed[3:] == [[3]]


def test_a_step_that_is_posted_during_delivery_is_delivered_by_another_call() -> None:
    loop, late = Loop(), Answer()
    delivery = Delivery(loop)

    class Posting(Answer):
        def feed(self, events: list[Event]) -> None:
            delivery.post({late: [event(7)]}.items())

    delivery.post({Posting(): [event(1)]}.items())
    loop.run()
    assert not late.fed and len(loop.calls) == 1
    loop.run()
    assert late.fed == [[7]]


def test_an_engine_far_ahead_of_a_loop_yields_to_it_every_step(slept: list[float]) -> None:
    loop, answer = Loop(), Answer()
    delivery = Delivery(loop)
    for number in range(MAX_PENDING_STEPS):
        delivery.post({answer: [event(number)]}.items())
    assert slept == []
    for number in range(3):
        delivery.post({answer: [event(number)]}.items())
    assert slept == [YIELD_SECONDS] * 3
    loop.run()
    delivery.post({answer: [event(0)]}.items())
    assert slept == [YIELD_SECONDS] * 3


def test_a_loop_that_has_been_blocked_for_long_does_not_delay_the_engine(slept: list[float]) -> None:
    loop, answer = Loop(), Answer()
    delivery = Delivery(loop)
    for number in range(BLOCKED_PENDING_STEPS + 100):
        delivery.post({answer: [event(number)]}.items())
    assert len(slept) == BLOCKED_PENDING_STEPS - 1 - MAX_PENDING_STEPS
    loop.run()
    assert len(answer.fed) == BLOCKED_PENDING_STEPS + 100


@pytest.mark.parametrize("called_before", [True, False])
def test_answers_of_a_closed_loop_are_abandoned_and_their_events_dropped(called_before: bool) -> None:
    loop, one, two = Loop(), Answer(), Answer()
    delivery = Delivery(loop)
    if called_before:
        delivery.post({one: [event(1)]}.items())
    loop.closed = True
    delivery.post({one: [event(2)], two: [event(3), event(4)]}.items())
    assert (one.abandoned, two.abandoned) == (1, 1)
    delivery.post({two: [event(5)]}.items())
    assert (one.abandoned, two.abandoned) == (1, 2), "what was posted before is dropped"
    assert not one.fed


def test_no_event_is_lost_or_reordered_between_a_thread_and_a_real_loop() -> None:
    steps = 2000

    async def receive() -> list[int]:
        answer, delivery = Answer(), Delivery(asyncio.get_running_loop())

        def post() -> None:
            for number in range(steps):
                delivery.post({answer: [event(number)]}.items())
                if number % 700 == 0:
                    time.sleep(0.002)

        engine = threading.Thread(target=post)
        engine.start()
        while engine.is_alive():
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        return [number for fed in answer.fed for number in fed]

    assert asyncio.run(receive()) == list(range(steps))
