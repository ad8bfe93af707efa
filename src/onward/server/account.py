"""One request's account with the team: what it reserves of its key's limits, what was computed, delivered and billed,
and its row in the ledger."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from onward.backends.base import Needs
from onward.completions.answer import Delta, TokenCounts
from onward.server.exchange import HttpExchange
from onward.service.grant import Grant
from onward.service.records import CLIENT_LEFT, LedgerRow

if TYPE_CHECKING:  # a server without a database does not import what needs one
    from onward.service.spool_file import SpoolEntry, SpoolProgress
    from onward.service.team import Admitted, Team


class Account:
    """Used on one event loop."""

    def __init__(self, team: Team, grant: Grant | None, exchange: HttpExchange) -> None:
        self._team = team
        self._grant = grant
        self._exchange = exchange
        self._record = exchange.record
        self._started_ms = team.now_ms - int(exchange.elapsed_ms)
        self._needs: Needs | None = None
        self._admitted: Admitted | None = None
        self._entry: SpoolEntry | None = None
        self._counts: Callable[[], TokenCounts] = TokenCounts
        self._row: LedgerRow | None = None
        """The row, once the request has ended."""
        self._delivered = 0
        self._unsent = 0
        """Tokens that were generated since the last time something was sent."""
        self._finish_reasons: list[str] = []
        self._events: deque[tuple[int, int]] = deque()
        """Of a kept stream: numbers of events that were not sent yet, each with its tokens."""

    async def admit(self, needs: Needs) -> None:
        """Reserve what the request may use; state in the response's headers what is left. Raises RateLimited,
        Overloaded."""
        self._needs = needs
        try:
            self._admitted = await self._team.admit(
                self._grant, needs.model, needs.prompt_tokens, needs.completion_tokens
            )
        finally:
            if self._grant is not None:
                self._exchange.add_headers(self._team.headers_after(self._grant))

    def release(self) -> None:
        """Give back what was reserved: the request was not computed after all."""
        if self._admitted is not None:
            self._team.release(self._admitted)
            self._admitted = None

    def begin(self, counts: Callable[[], TokenCounts]) -> None:
        """Note that the request is being computed, before anything of it is sent."""
        self._counts = counts
        needs = self._needs
        assert needs is not None
        row = self._row_of(TokenCounts(prompt=needs.prompt_tokens), CLIENT_LEFT)
        self._entry = self._team.begin(row, self._grant, self._admitted, self._progress)

    def generated(self, deltas: Iterable[Delta]) -> None:
        """Count deltas that are about to be sent."""
        for delta in deltas:
            self._unsent += len(delta.tokens)
            if delta.finish is not None:
                self._finish_reasons.append(delta.finish.reason)
                self._unsent -= sum(record.is_terminator for record in delta.tokens)

    def sent(self) -> None:
        """Note that what was generated has reached the connection."""
        self._delivered += self._unsent
        self._unsent = 0

    def logged(self, event: int) -> None:
        """Note that what was generated is the event with this number of a kept stream."""
        self._events.append((event, self._unsent))
        self._unsent = 0

    def sent_through(self, event: int) -> None:
        """Note that the events of a kept stream through this number have reached a connection, this one or a later
        one."""
        while self._events and self._events[0][0] <= event:
            self._delivered += self._events.popleft()[1]

    def connection_ended(self) -> None:
        """Note that a connection of a kept stream has ended: if the request has too, add what was delivered since to
        its row."""
        if self._row is not None and self._row.delivered_tokens < self._delivered:
            self._row = replace(self._row, delivered_tokens=self._delivered)
            self._team.record(self._row, self._grant, None)

    def before_end(self) -> None:
        """Note what was generated, as the last bytes of the response are about to be sent."""
        if self._entry is not None:
            self._team.before_end(self._entry)

    def end(self, counts: TokenCounts, status: int) -> None:
        """Write the row of a request that has ended, and settle what it reserved."""
        self._row = self._row_of(counts, status)
        self._team.record(self._row, self._grant, self._admitted)
        self._admitted = self._entry = None

    def _progress(self) -> SpoolProgress:
        now_ms, needs = self._team.now_ms, self._needs  # the time first: all that was sent before it is counted
        assert needs is not None
        counts = self._counts()
        costs = self._team.parts(needs.model, counts.prompt, counts.cached, counts.completion)
        first = self._record.first_token_ms
        return (
            now_ms,
            self._record.status,
            counts.prompt,
            counts.cached,
            counts.completion,
            counts.computed,
            self._delivered,
            None if first is None else int(first),
            *costs,
            ",".join(self._finish_reasons),
        )

    def _row_of(self, counts: TokenCounts, status: int) -> LedgerRow:
        key, needs = self._exchange.key, self._needs
        assert needs is not None
        costs = self._team.parts(needs.model, counts.prompt, counts.cached, counts.completion)
        first = self._record.first_token_ms
        return LedgerRow(
            id=self._exchange.id,
            started_ms=self._started_ms,
            ended_ms=self._team.now_ms,
            key_id="" if key is None else key.public_id,
            key_name="" if key is None else key.name,
            model=needs.model,
            fingerprint=needs.fingerprint,
            route=self._record.route,
            seed=str(needs.seed),
            finish_reasons=",".join(self._finish_reasons),
            status=status,
            prompt_tokens=counts.prompt,
            cached_tokens=counts.cached,
            completion_tokens=counts.completion,
            computed_tokens=counts.computed,
            delivered_tokens=self._delivered,
            prompt_cost=costs[0],
            completion_cost=costs[1],
            first_token_ms=None if first is None else int(first),
        )
