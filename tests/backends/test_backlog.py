"""The backlog: waiting requests are bounded per client, in number, memory and time; nobody is refused for what others
sent."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from onward.api.openai.decode import check_request
from onward.api.openai.reply import fold_whole
from onward.backends.backlog import JOB_BYTES, TOKEN_BYTES, UNKNOWN_RETRY_SECONDS, Backlog, BacklogTicket
from onward.completions.request import CompletionRequest
from onward.engine.job import Job
from onward.engine.model import Hook, Row
from onward.errors import Overloaded
from tests.engine.harness import make_job, slow_down
from tests.server.fakes import in_loop, skip
from tests.toy_backend import make_backend, toy_engine
from tests.waiting import PATIENCE_SECONDS, until


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def jobs(number: int, choices: int = 1) -> list[Job]:
    return [make_job([97] * 10, choices=choices) for _ in range(number)]


def test_a_client_is_refused_for_what_it_sent_and_for_nothing_else() -> None:
    """A client with nine requests of n=128 must not make the server refuse others while rows are free."""
    backlog = Backlog(max_waiting=1024)
    for _ in range(8):
        backlog.enter("one", jobs(1, choices=128), 0)
    with pytest.raises(Overloaded):
        backlog.enter("one", jobs(1), 0)
    assert backlog.enter("another", jobs(1), 0).waiting


def test_one_request_may_exceed_the_limit_and_free_rows_count() -> None:
    backlog = Backlog(max_waiting=2)
    backlog.enter("one", jobs(500), 0)
    with pytest.raises(Overloaded):
        backlog.enter("one", jobs(1), 497)
    backlog.enter("one", jobs(1), 499)


def test_without_a_queue_only_free_rows_are_filled() -> None:
    backlog = Backlog(max_waiting=0)
    backlog.enter("one", jobs(1), 2)
    backlog.enter("one", jobs(1), 2)
    with pytest.raises(Overloaded):
        backlog.enter("one", jobs(1), 2)


def test_memory_is_bounded_and_no_client_uses_more_than_it_leaves() -> None:
    size = JOB_BYTES + 10 * TOKEN_BYTES
    backlog = Backlog(max_waiting=10**6, max_waiting_bytes=10 * size)
    accepted = {client: _fill(backlog, client) for client in ("one", "two", "three")}
    assert accepted == {"one": 5, "two": 3, "three": 1}
    assert backlog.num_bytes == 9 * size


def _fill(backlog: Backlog, client: str) -> int:
    for number in range(100):
        try:
            backlog.enter(client, jobs(1), 0)
        except Overloaded:
            return number
    raise AssertionError("nothing is refused")


def test_a_request_larger_than_the_memory_is_accepted_while_nothing_waits() -> None:
    """It is within the limits of one request; those bound it."""
    backlog = Backlog(max_waiting_bytes=100)
    backlog.enter("one", jobs(1), 0)
    with pytest.raises(Overloaded):
        backlog.enter("two", jobs(1), 0)


def test_choices_leave_when_they_start_or_the_request_ends() -> None:
    backlog = Backlog()
    mine = jobs(3, choices=2)
    ticket = backlog.enter("one", mine, 0)
    assert backlog.num_waiting == 6 and ticket.waiting and not ticket.has_started
    for _ in range(2):
        ticket.start(mine[0].id)
        assert backlog.num_waiting == 5 and ticket.has_started
    ticket.start(mine[0].id, 1)
    assert backlog.num_waiting == 4 and backlog.num_bytes > 0
    ticket.start(mine[1].id)
    ticket.start(mine[2].id)
    assert (backlog.num_waiting, backlog.num_bytes) == (2, 0)
    ticket.leave()
    ticket.leave()
    assert (backlog.num_waiting, ticket.waiting) == (0, False)


def test_retry_after_is_how_long_the_backlog_takes() -> None:
    clock = Clock()
    backlog = Backlog(max_waiting=10, clock=clock)
    assert backlog.retry_after("one") == UNKNOWN_RETRY_SECONDS
    running = jobs(21)
    ticket = backlog.enter("one", running, 0)
    for job in running[:20]:
        clock.now += 0.5
        ticket.start(job.id)
    backlog.enter("one", jobs(20), 21)
    with pytest.raises(Overloaded) as refused:
        backlog.enter("one", jobs(1), 0)
    assert refused.value.headers["retry-after"] == "11"  # 21 at two per second
    backlog.enter("two", jobs(1), 0)
    assert backlog.retry_after("one") == 21  # two clients share them
    assert backlog.retry_after("nobody") == 1


def test_idle_times_do_not_count_for_retry_after() -> None:
    """Otherwise a client that obeys it would leave the server idle, and be told to wait longer each time."""
    clock = Clock()
    backlog = Backlog(clock=clock)
    for _ in range(5):
        pair = jobs(2)
        ticket = backlog.enter("one", pair, 0)
        for job in pair:
            clock.now += 0.125
            ticket.start(job.id)
        clock.now += 1000
    backlog.enter("one", jobs(24), 0)
    assert backlog.retry_after("one") == 3


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["enter", "start", "leave"]), st.integers(0, 3), st.integers(1, 4)), max_size=60
    )
)
def test_no_sequence_of_requests_makes_the_backlog_miscount(steps: list[tuple[str, int, int]]) -> None:
    backlog = Backlog(max_waiting=20, max_waiting_bytes=50_000)
    tickets: list[tuple[BacklogTicket, Iterator[Job]]] = []
    for action, which, number in steps:
        if action == "enter":
            entering = jobs(number, choices=which + 1)
            try:
                tickets.append((backlog.enter(str(which), entering, 0), iter(entering)))
            except Overloaded:
                assert backlog.num_waiting
        elif tickets:
            ticket, remaining = tickets[which % len(tickets)]
            if action == "leave":
                ticket.leave()
            elif job := next(remaining, None):
                ticket.start(job.id)
    for ticket, _ in tickets:
        ticket.leave()
    assert backlog.num_waiting == backlog.num_bytes == 0


# --- in a backend ------------------------------------------------------------------------------------------------


def make_request(max_tokens: int) -> CompletionRequest:
    return check_request({"model": "toy", "prompt": "a", "max_tokens": max_tokens, "seed": 1, "ignore_eos": True})


def test_a_refused_client_leaves_others_alone_and_is_accepted_later() -> None:
    async def run() -> None:
        backend = make_backend(max_waiting=2, max_rows=1)
        slow_down(toy_engine(backend))
        answers = [await backend.complete(make_request(max_tokens=40), client="one") for _ in range(2)]
        with pytest.raises(Overloaded):
            while len(answers) < 9:
                answers.append(await backend.complete(make_request(max_tokens=40), client="one"))
        small = await fold_whole(await backend.complete(make_request(max_tokens=2), client="two"), make_request(2))
        assert small.usage is not None and small.usage.completion_tokens == 2
        for answer in answers:
            await fold_whole(answer, make_request(2))
        await fold_whole(await backend.complete(make_request(max_tokens=2), client="one"), make_request(2))
        assert backend.served["toy"].backlog.num_waiting == 0
        await backend.aclose()

    asyncio.run(run())


@in_loop
async def test_a_request_that_waits_too_long_ends_and_others_continue(monkeypatch: pytest.MonkeyPatch) -> None:
    backend, go_on, num_steps = make_backend(max_wait=1000.0, max_rows=1), threading.Event(), itertools.count(1)
    model, backlog = toy_engine(backend).model, backend.served["toy"].backlog
    evaluate = model.evaluate

    def held(rows: Sequence[Row], before_compute: Hook) -> NDArray[np.float32]:
        before_compute()
        assert next(num_steps) == 1 or go_on.wait(PATIENCE_SECONDS)
        return evaluate(rows)

    monkeypatch.setattr(model, "evaluate", held)
    first = await backend.complete(make_request(max_tokens=9), client="one")
    await until(lambda: backlog.num_waiting == 0)
    second = await backend.complete(make_request(max_tokens=5), client="one")
    await skip(1001)
    with pytest.raises(Overloaded, match="waited for the model") as refused:
        await fold_whole(second, make_request(2))
    assert int(refused.value.headers["retry-after"]) >= 1
    go_on.set()
    whole = await fold_whole(first, make_request(2))
    assert whole.usage is not None and whole.usage.completion_tokens == 9
    assert backlog.num_waiting == 0
    await backend.aclose()
