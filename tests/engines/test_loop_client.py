"""Which events are delivered together."""

from __future__ import annotations

import queue
from collections.abc import Iterator

import pytest

from onward.engine.events import Decoded, Event, Failed, Prefilled
from onward.engine.job import Job
from onward.engines import loop_client
from onward.engines.loop_client import LoopClient
from onward.sampling.outputs import Sampled

WAIT_SECONDS = 60.0


class Client(LoopClient):
    """Emits what it is told to, in one turn of its event loop."""

    def __init__(self, num_running: int) -> None:
        super().__init__("test")
        self._num_running = num_running
        self.delivered: queue.Queue[list[Event]] = queue.Queue()
        self.start(lambda events: self.delivered.put(list(events)))
        self._thread.start()

    def emit(self, *events: Event) -> None:
        async def emit() -> None:
            for event in events:
                self._emit([event])

        self._thread.run(emit())

    def next(self) -> list[Event]:
        return self.delivered.get(timeout=WAIT_SECONDS)

    @property
    def is_given_up(self) -> bool:
        return False

    def _post(self, jobs: list[Job]) -> None: ...

    def _cancel(self, request: int) -> None: ...

    def _cancel_choice(self, job: int, choice: int) -> None: ...


@pytest.fixture
def client(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    num_running, seconds = request.param
    monkeypatch.setattr(loop_client, "GATHER_SECONDS", seconds)
    client = Client(num_running)
    yield client
    client.stop()


def running(num: int, seconds: float = 3600.0) -> pytest.MarkDecorator:
    """Return a client with so many choices that run, whose tokens wait so long for those of others."""
    return pytest.mark.parametrize("client", [(num, seconds)], indirect=True, ids=[f"{num} running"])


def token(job: int) -> Decoded:
    return Decoded(job, 0, [Sampled(65, -1.0, ())])


@running(3)
def test_the_tokens_of_all_choices_that_run_are_delivered_together(client: Client) -> None:
    client.emit(token(1))
    client.emit(token(2))
    assert client.delivered.empty()
    client.emit(token(3))
    assert client.next() == [token(1), token(2), token(3)]


@running(3)
def test_a_first_token_waits_for_no_other_one(client: Client) -> None:
    client.emit(token(1))
    client.emit(Prefilled(2, 0), token(2))
    assert client.next() == [token(1), Prefilled(2, 0), token(2)]


@running(3, seconds=0.0)
def test_a_token_waits_no_longer_than_that(client: Client) -> None:
    client.emit(token(1))
    assert client.next() == [token(1)]
    client.emit(token(2))
    assert client.next() == [token(2)]


@running(0)
def test_what_an_engine_sends_together_is_delivered_at_once(client: Client) -> None:
    client.emit(token(1), token(2))
    assert client.next() == [token(1), token(2)]


@running(3)
def test_a_failure_waits_for_no_token(client: Client) -> None:
    lost = Failed(2, "lost", "it is gone")
    client.emit(token(1))
    client.emit(lost)
    assert client.next() == [token(1), lost]
