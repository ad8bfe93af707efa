"""Which events are delivered together."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator

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
def sleeps(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Callable[[], object]]]:
    """What is to happen while the event loop sleeps, for each time that it does. More of them are an error."""
    todo: list[Callable[[], object]] = []
    monkeypatch.setattr(loop_client, "sleep", lambda seconds: todo.pop(0)())
    yield todo
    assert not todo, "it has not slept"


@pytest.fixture
def client(request: pytest.FixtureRequest, sleeps: object) -> Iterator[Client]:
    client = Client(num_running=request.param)
    yield client
    client.stop()


def running(num: int) -> pytest.MarkDecorator:
    """Pass a client with so many choices that run."""
    return pytest.mark.parametrize("client", [num], indirect=True, ids=[f"{num} running"])


def token(job: int) -> Decoded:
    return Decoded(job, 0, [Sampled(65, -1.0, ())])


@running(3)
def test_a_token_is_delivered_with_those_of_other_choices_that_arrive_soon(
    client: Client, sleeps: list[Callable[[], object]]
) -> None:
    sleeps.append(lambda: client._loop.call_soon_threadsafe(client._emit, [token(2)]))
    client.emit(token(1))
    assert client.next() == [token(1), token(2)]


@running(3)
def test_a_token_to_which_none_comes_is_delivered_alone(client: Client, sleeps: list[Callable[[], object]]) -> None:
    for job in (1, 2):
        sleeps.append(lambda: None)
        client.emit(token(job))
        assert client.next() == [token(job)]


@pytest.mark.parametrize(
    "events",
    [
        [token(1), token(2), token(3)],
        [token(1), Prefilled(2, 0), token(2)],
        [token(1), Failed(2, "lost", "it is gone")],
    ],
    ids=["of all choices", "a first token", "a failure"],
)
@running(3)
def test_events_that_need_not_or_must_not_wait_are_delivered_at_once(client: Client, events: list[Event]) -> None:
    client.emit(*events)
    assert client.next() == events


@running(0)
def test_what_an_engine_sends_together_is_delivered_at_once(client: Client) -> None:
    client.emit(token(1), token(2))
    assert client.next() == [token(1), token(2)]
