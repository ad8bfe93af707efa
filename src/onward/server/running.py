"""Completions in progress: each runs until it is done or its client disconnects, and a drain waits for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec import structs

from onward.api.reply import Reply, forward
from onward.api.seed import SEED_HEADER, with_seed_header
from onward.backends.base import Backend, Needs
from onward.backends.restricted import RestrictedBackend
from onward.completions.answer import TokenCounts
from onward.completions.request import CompletionRequest
from onward.errors import Forbidden, Overloaded
from onward.server.account import Account
from onward.server.exchange import ClientDisconnected, HttpExchange
from onward.server.metrics import MeasuredAnswer, Metrics, warn
from onward.server.request_trace import CompletionTrace
from onward.server.sink import ConnectionSink
from onward.server.transcript import Transcript
from onward.service.grant import Grant
from onward.tracing import current

if TYPE_CHECKING:  # a server without a database does not import what needs one
    from onward.service.request_log import RequestLog
    from onward.service.team import Team

ADMIN_KEY = (
    "This is an admin key, which sees usage and costs but completes nothing. Send one that was made without --admin."
)


class Running:
    """A count that can be waited for. Belongs to one event loop."""

    def __init__(self) -> None:
        self.count = 0
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    def begin(self) -> None:
        """Count one more."""
        self.count += 1
        self._is_idle.clear()

    def end(self) -> None:
        """Count one less."""
        self.count -= 1
        if not self.count:
            self._is_idle.set()

    @contextmanager
    def one(self) -> Iterator[None]:
        """Count one for as long as the context lasts."""
        self.begin()
        try:
            yield
        finally:
            self.end()

    async def wait_until_idle(self) -> None:
        """Return when the count is zero."""
        await self._is_idle.wait()


async def run_while_connected(
    exchange: HttpExchange,
    work: Coroutine[object, object, None],
    keep_alive_seconds: float,
    send_keep_alive: Callable[[], Awaitable[None]],
) -> None:
    """Await `work`; cancel it and raise ClientDisconnected as soon as the client disconnects.

    Calls `send_keep_alive` whenever nothing was sent for `keep_alive_seconds` (0: never). The request's body must
    have been read before, because this reads the connection to notice the disconnect. Re-raises what `work` raises.
    """
    running = asyncio.create_task(work)
    disconnected = asyncio.create_task(exchange.wait_until_disconnected())
    try:
        while not (running.done() or disconnected.done()):
            timeout = max(keep_alive_seconds - exchange.idle_seconds, 0.001) if keep_alive_seconds else None
            done, _ = await asyncio.wait({running, disconnected}, timeout=timeout, return_when="FIRST_COMPLETED")
            if not done and exchange.idle_seconds >= keep_alive_seconds:
                exchange.reset_idle_timer()
                await send_keep_alive()
        if not exchange.response_complete:
            running.cancel()  # has no effect on work that failed: its error is raised below
        await asyncio.wait({running})
    finally:
        await _cancel(running, disconnected)
    if running.cancelled():
        raise ClientDisconnected
    running.result()


async def _cancel(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@dataclass(frozen=True, slots=True)
class Runner:
    """Runs completions: the only way from a request to an answer here. `running` counts what a drain waits for; `team`
    knows the limits of keys, `request_log` keeps what was asked and answered."""

    backend: Backend
    metrics: Metrics
    running: Running
    keep_alive_seconds: float
    team: Team | None = None
    request_log: RequestLog | None = None

    async def accept(self, exchange: HttpExchange, request: CompletionRequest) -> MeasuredAnswer:
        """Begin to complete a request and to measure it; count it if it is refused.

        Raises ApiError, RequestRejected.
        """
        request = with_seed_header(request, exchange.header(SEED_HEADER.encode()))
        grant = exchange.grant
        if grant is not None and grant.priority != request.weight:
            request = structs.replace(request, weight=grant.priority)
        account = None if self.team is None else Account(self.team, grant, exchange)
        transcript = None
        if self.request_log is not None and (grant is None or grant.logs_requests):
            transcript = Transcript(self.request_log, exchange)

        trace = None
        if exchange.trace is not None:
            keeps = grant is None or grant.logs_requests
            trace = CompletionTrace(exchange.trace, request, may_keep_prompts=keeps)

        async def note(needs: Needs) -> None:
            if trace is not None:
                trace.planned(needs)
            if transcript is not None:
                transcript.planned(needs)
            if account is not None:
                await account.admit(needs)

        admit = note if trace or transcript or account else None
        traced = current.set(None if trace is None else trace.engine)
        try:
            answer = await self._backend_of(grant).complete(request, client=exchange.sender, admit=admit)
        except BaseException as error:
            if account is not None:
                account.release()
            if trace is not None:
                trace.end(TokenCounts(), problem=error if isinstance(error, Exception) else None)
            if isinstance(error, Overloaded):
                self.metrics.count_refused(exchange.record, error)
            raise
        finally:
            current.reset(traced)
        if request.seed is None:
            exchange.add_headers({SEED_HEADER: str(answer.seed)})
        if answer.warning:
            warn(exchange, answer, self.metrics.warned)
        return MeasuredAnswer(answer, self.metrics, exchange.record, exchange.started, account, transcript, trace)

    def _backend_of(self, grant: Grant | None) -> Backend:
        """Return the backend as a key sees it. Raises Forbidden."""
        if grant is None:
            return self.backend
        if grant.is_admin:
            raise Forbidden(ADMIN_KEY)
        return self.backend if grant.models is None else RestrictedBackend(self.backend, grant.allows)

    async def complete(self, exchange: HttpExchange, request: CompletionRequest, reply: Reply) -> None:
        """Complete a request, and send what `reply` writes. Raises ApiError, RequestRejected, ClientDisconnected."""
        exchange.record.stream = request.stream
        sink = ConnectionSink(exchange, reply)

        async def work() -> None:
            answer = await self.accept(exchange, request)
            reply.begin(answer)
            sink.accepted(answer.account)
            await forward(answer, reply, sink)

        with self.running.one():
            await run_while_connected(exchange, work(), self.keep_alive_seconds, sink.send_keep_alive)
