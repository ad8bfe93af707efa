"""The running answer of the embedded backend: events in on its event loop, partial choices out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from onward.backends.delivery import Delivery
from onward.completions.choices import ChoiceStream
from onward.engine.events import Event, Failed
from onward.errors import ApiError, RequestCancelled, ServerError
from onward.protocol.response import Choice, Usage


class EmbeddedAnswer:
    """Implements `completions.answer.Answer`. Lives on the event loop that asked; `delivery` calls `feed` there too.

    `retire` is called once, when the answer has ended or was closed before its end: it forgets the jobs, and with
    True cancels their work.
    """

    def __init__(
        self,
        model: str,
        fingerprint: str,
        delivery: Delivery,
        stream: ChoiceStream,
        retire: Callable[[bool], None],
        failure: Callable[[Failed], ApiError],
    ) -> None:
        self.model = model
        self.fingerprint = fingerprint
        self.delivery = delivery
        self._stream = stream
        self._retire = retire
        self._failure = failure
        self._ready: asyncio.Queue[tuple[list[Choice], Usage] | ApiError | None] = asyncio.Queue()
        self._retired = False
        self._usage = stream.usage

    @property
    def usage(self) -> Usage:
        return self._usage

    def feed(self, events: list[Event]) -> None:
        """Take the events of one engine step. After the end or a failure, nothing more is taken."""
        if self._retired:
            return
        good: list[Event] = [event for event in events if not isinstance(event, Failed)]
        try:
            choices = self._stream.accept(good)  # type: ignore[arg-type]
        except Exception as problem:  # an operator's content filter failed: nothing more may be shown
            self._ready.put_nowait(_as_server_error(problem))
            self._end(cancel=True)
            return
        if choices:
            self._ready.put_nowait((choices, self._stream.usage))
        failed = next((event for event in events if isinstance(event, Failed)), None)
        if failed is not None:
            self._ready.put_nowait(self._failure(failed))
            self._end(cancel=True)
        elif self._stream.done:
            self._end(cancel=self._stream.cut_short)

    async def __aiter__(self) -> AsyncIterator[list[Choice]]:
        try:
            while not (self._retired and self._ready.empty()):
                ready = await self._ready.get()
                if ready is None:
                    raise RequestCancelled("The request was closed while it ran.")
                if isinstance(ready, ApiError):
                    raise ready
                choices, self._usage = ready
                yield choices
        finally:
            self._end(cancel=True)

    async def aclose(self) -> None:
        self.abandon()
        self._ready.put_nowait(None)

    def abandon(self) -> None:
        """Takes no lock: the garbage collector may call it in the midst of anything."""
        self._end(cancel=True)

    def _end(self, *, cancel: bool) -> None:
        if not self._retired:
            self._retired = True
            self._retire(cancel)


def _as_server_error(problem: Exception) -> ServerError:
    """The error to tell; the log of the server shows its cause."""
    error = ServerError()
    error.__cause__ = problem
    return error
