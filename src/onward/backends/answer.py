"""A running completion of the embedded backend: engine events in, deltas out, on one event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable

from onward.backends.backlog import BacklogTicket
from onward.backends.delivery import Delivery
from onward.completions.answer import Delta, TokenCounts
from onward.completions.choices import ChoiceStream
from onward.completions.plan import Plan
from onward.completions.rejections import InvalidConstraint
from onward.engine.events import Decoded, Event, Failed, Prefilled
from onward.errors import ApiError, EngineStopped, Overloaded, RequestCancelled, RequestRejected, ServerError
from onward.tracing import EngineTrace

WAITED_TOO_LONG = (
    "The request waited for the model for as long as this server allows, and was not started. Retry it later."
)

POISONED = (
    "The engine stopped repeatedly while it was computing this request, so the request was ended. Do not send it again "
    "unchanged; the server's log says how the engine stopped."
)
"""Sent to the client of a request that has ended several engines."""
ENDED_ENGINES = "the engine's process ended repeatedly while it used it; make it simpler"
"""The same, where the request has a constraint."""


class EmbeddedAnswer:
    """Implements `completions.answer.Answer`. Used on one event loop, where `delivery` calls `feed` too.

    `retire` is called once, when the answer has ended or was closed: it unregisters the jobs, and with True cancels
    them. `cancel_choice` (job, choice) cancels a choice that has ended here but not in the engine. `failure` returns
    what to raise for a failed job. `ticket` is its place in the backlog; `trace` has its spans.
    """

    def __init__(
        self,
        model: str,
        fingerprint: str,
        seed: int,
        delivery: Delivery,
        stream: ChoiceStream,
        retire: Callable[[bool], None],
        cancel_choice: Callable[[int, int], None],
        failure: Callable[[Failed], ApiError | RequestRejected],
        ticket: BacklogTicket,
        warning: str = "",
        trace: EngineTrace | None = None,
    ) -> None:
        self.model = model
        self.fingerprint = fingerprint
        self.seed = seed
        self.delivery = delivery
        self._stream = stream
        self._retire = retire
        self._cancel_choice = cancel_choice
        self._failure = failure
        self._ticket = ticket
        self._ready: deque[tuple[list[Delta], TokenCounts] | ApiError | RequestRejected | None] = deque()
        self._waiter: asyncio.Future[None] | None = None
        """Of the iteration, which waits for something to be ready."""
        self._retired = False
        self._counts = stream.counts
        self.warning = warning
        self._trace = trace

    @property
    def counts(self) -> TokenCounts:
        return self._counts

    @property
    def has_ended(self) -> bool:
        return self._retired and not self._ready

    def feed(self, events: list[Event]) -> None:
        """Process the events of one engine step. After the end or a failure they are ignored."""
        if self._retired:
            return
        if self._ticket.waiting:
            for event in events:
                self._ticket.start(event.job, event.choice if isinstance(event, Decoded) else 0)
                if self._trace is not None and isinstance(event, Prefilled):
                    self._trace.prefilled(event.prefill_seconds)
        stream, failed = self._stream, None
        generated: list[Prefilled | Decoded] = []
        for event in events:
            if isinstance(event, Failed):
                failed = failed or event
            else:
                generated.append(event)
        try:
            deltas = stream.accept(generated)
        except Exception as error:  # a content filter failed: nothing more may be sent
            self._fail(error)
            return
        if stream.ended_early:
            for job, choice in stream.take_ended_early():
                self._cancel_choice(job, choice)
        if deltas:
            self._put((deltas, stream.counts))
        if failed is not None:
            self._put(self._failure(failed))
            self._end(cancel=True)
        elif stream.done:
            self._end(cancel=False)

    def _fail(self, error: Exception) -> None:
        self._put(_server_error(error))
        self._end(cancel=True)

    def _put(self, ready: tuple[list[Delta], TokenCounts] | ApiError | RequestRejected | None) -> None:
        self._ready.append(ready)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def __aiter__(self) -> AsyncIterator[list[Delta]]:
        loop = asyncio.get_running_loop()
        try:
            while self._ready or not self._retired:
                while not self._ready:  # an asyncio.Queue takes thrice as long
                    self._waiter = loop.create_future()
                    await self._waiter
                ready = self._ready.popleft()
                if ready is None:
                    raise RequestCancelled("The request was closed while it was running.")
                if isinstance(ready, (ApiError, RequestRejected)):
                    raise ready
                deltas, self._counts = ready
                yield deltas
        finally:
            self._end(cancel=True)

    async def aclose(self) -> None:
        self.abandon()
        self._put(None)

    def stop_waiting(self) -> None:
        """End the answer with Overloaded if the engine has begun with none of its jobs."""
        if not self._ticket.has_started and not self._retired:
            self._put(Overloaded(WAITED_TOO_LONG, retry_after=self._ticket.retry_after))
            self._end(cancel=True)

    def abandon(self) -> None:
        self._end(cancel=True)

    def _end(self, *, cancel: bool) -> None:
        if not self._retired:
            self._retired = True
            self._retire(cancel)


def error_of(planned: Plan, refuse: Callable[[str, str], None] | None, failed: Failed) -> ApiError | RequestRejected:
    """Return the error for the client of a failed job. A grammar whose job ended engines is refused from then on."""
    grammar, name = planned.jobs[0].grammar, planned.request.constraint
    if failed.kind == "poisoned" and grammar and name is not None and refuse is not None:
        refuse(grammar, ENDED_ENGINES)
        return InvalidConstraint(name, ENDED_ENGINES)
    return _error(failed, name or "")


def _error(failed: Failed, constraint: str) -> ApiError | RequestRejected:
    """Return what an answer raises for a failed job. `constraint`: the parameter that constrains its text."""
    match failed.kind:
        case "stopped":
            return EngineStopped()
        case "lost":
            return EngineStopped.lost()
        case "crashed":
            return _caused(ServerError(final=True), failed)
        case "rejected":
            return _caused(ServerError(), failed)
        case "poisoned":
            return ServerError(POISONED, final=True)
        case "constraint":
            return InvalidConstraint(constraint, failed.reason)


def _caused(error: ServerError, failed: Failed) -> ServerError:
    """Return the error with its cause, for logs and for whoever runs the model."""
    error.__cause__ = RuntimeError(failed.reason)
    return error


def _server_error(cause: Exception) -> ServerError:
    """Return the error for the client; the log shows its cause."""
    error = ServerError()
    error.__cause__ = cause
    return error
