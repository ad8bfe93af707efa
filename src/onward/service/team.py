"""A server's part of a team: the keys that it knows, what they may use, and the store behind both."""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sqlalchemy import Connection

from onward.errors import Overloaded, SetupError
from onward.models.registry import ListedModel
from onward.service.batch_records import BudgetSpent
from onward.service.batch_store import BatchStore
from onward.service.desk import AWAY, Desk
from onward.service.grant import Grant, StoredKey
from onward.service.keys import KeyReader, read_changed_keys, read_id
from onward.service.ledger import forget_rows, sums
from onward.service.limits import KeyUsage, Refusal, Reservation, headers, reserve, settle
from onward.service.limits import at as usage_at
from onward.service.prices import Price
from onward.service.recorder import Recorder
from onward.service.records import LedgerRow, Question, Sums
from onward.service.refusals import refused
from onward.service.request_log import LoggedRequest, LostRequests
from onward.service.request_table import forget_requests, insert_request
from onward.service.reservations import admit, beat, leave, read_usages, settle_request
from onward.service.spool import Spool
from onward.service.spool_file import SpoolEntry, SpoolProgress
from onward.service.store import ANSWER_SECONDS, DatabaseAway, Store
from onward.service.writer import LAST, Writer

log = logging.getLogger("onward.service")

POLL_SECONDS = 1.0
"""How soon a server notices that keys were changed."""
REFRESH_SECONDS = 0.1
"""How often unknown keys may cause all keys to be read again."""
GRACE_SECONDS = 60.0
"""How long keys with limits are served while the database is away, by what was known last."""
CLOSE_SECONDS = 5.0
BEAT_MS = 5_000
FORGET_SECONDS = 600.0
FORGOTTEN_ROWS = 1000
"""How many old rows one transaction deletes; requests wait for it."""
FULL = "The database does not answer, and no more requests can be written down. Retry later."


@dataclass(slots=True)
class Admitted:
    """A request of a key with limits that may be computed. `is_stored`: its reservation is in the store, not only in
    this server's memory."""

    request_id: str
    grant: Grant
    model: str
    reservation: Reservation
    is_stored: bool


class Team:
    """The keys of a store and their limits. Belongs to one event loop, except for the store behind it.

    `folder`: for rows that the database does not have yet. `prices`: by the names that the settings have for models.
    `monotonic` is a clock in seconds. `keep_seconds` and `keep_requests_seconds`: how long rows of the ledger and of
    the log of requests are kept; None: forever. `may_add_models`: while the server runs, so that prices may be for
    models that are not there yet. Raises SetupError for a folder that cannot be used.
    """

    def __init__(
        self,
        store: Store,
        folder: Path,
        prices: Mapping[str, Price] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        keep_seconds: int | None = None,
        keep_requests_seconds: int | None = None,
        may_add_models: bool = False,
    ) -> None:
        self.face = secrets.token_hex(8)
        self.prices = dict(prices or {})
        """By model id."""
        self._stated_prices: Mapping[str, Price] = self.prices
        self._may_add_models = may_add_models
        self._ids: dict[str, str] = {}
        """The model of each name that requests may use, or last could."""
        self._unserved: set[str] = set()
        """Names of prices whose models are not served."""
        self._store = store
        self._monotonic = monotonic
        self._keep_ms = None if keep_seconds is None else keep_seconds * 1000
        self._keep_requests_ms = None if keep_requests_seconds is None else keep_requests_seconds * 1000
        self._forgets_at = -math.inf
        self._refreshed = -REFRESH_SECONDS
        self._beaten_ms = 0
        self._usages: dict[str, KeyUsage] = {}
        self._away_since: float | None = None
        self._lost_requests = LostRequests()
        self._polling: Future[None] | None = None
        self._keys = KeyReader(store)
        with store.begin() as connection:
            self._keys.use(*read_changed_keys(connection, None))
            self._usages = read_usages(connection)
            store_id = read_id(connection)
            beat(connection, self.face, self._grants, store.clock())
        self._writer = Writer(store)
        self._spool = Spool(folder / f"{store_id:016x}", self.face, lambda: self._recorder.record_ended())
        self._recorder = Recorder(self._spool, self._writer, lambda: self._grants, self._is_away)
        self.desk = Desk(store, self._writer, self.face)
        self.batches = BatchStore(self.desk)
        self._recorder.record_ended()

    @property
    def detail(self) -> str:
        """What /health says of the database; "" while it answers."""
        if self._spool.problem:
            return "Rows of the ledger cannot be written to the data folder, which may be full."
        if self._away_since is None:
            return ""
        if self._spool.is_full:
            return "The database does not answer, and too many rows wait for it: requests are refused until it does."
        if self._is_in_grace:
            return "The database does not answer; keys with limits are served by what was known last."
        return "The database does not answer; requests of keys with limits are refused until it does."

    @property
    def database(self) -> tuple[bool, int]:
        """Whether it answers, and how many requests have ended whose rows it does not have yet."""
        return self._away_since is None, self._spool.num_waiting

    @property
    def _is_in_grace(self) -> bool:
        return self._away_since is None or self._monotonic() - self._away_since < GRACE_SECONDS

    @property
    def keys(self) -> list[StoredKey]:
        """Every key of the store, as it was when it was read last."""
        return self._keys.keys

    @property
    def _grants(self) -> dict[str, Grant]:
        return {key.grant.id: key.grant for key in self.keys}

    async def run(self, changed: Callable[[], None]) -> None:
        """Read the keys again when they were changed, and call `changed`; state that this server lives; settle what
        could not be settled. Until the task is cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch_keys(changed))
            tasks.create_task(self._tend())

    async def _watch_keys(self, changed: Callable[[], None]) -> None:
        while True:
            await asyncio.sleep(POLL_SECONDS)
            try:
                if await self._keys.read():
                    changed()
            except Exception:
                log.exception("the keys of the database could not be read")

    async def _tend(self) -> None:
        while True:
            await asyncio.sleep(POLL_SECONDS)
            try:
                self._spool.tend()
                await self._poll()
                await self._forget_old_rows()
            except Exception:
                log.exception("the database could not be tended")

    async def _forget_old_rows(self) -> None:
        """Now and then delete what need not be kept, some rows per transaction."""
        if self._away_since is not None or self._monotonic() < self._forgets_at:
            return
        counts = [0]
        for keep_ms, forget in ((self._keep_ms, forget_rows), (self._keep_requests_ms, forget_requests)):
            if keep_ms is not None:
                run = partial(forget, before_ms=self._store.clock() - keep_ms, limit=FORGOTTEN_ROWS)
                counts.append(await asyncio.wrap_future(self._writer.submit(run)))
        if max(counts) < FORGOTTEN_ROWS:
            self._forgets_at = self._monotonic() + FORGET_SECONDS

    async def refresh(self) -> bool:
        """Read the keys now if they were changed, unless that was just done. Returns whether they were."""
        now = self._monotonic()
        if self._away_since is not None or now - self._refreshed < REFRESH_SECONDS:
            return False
        self._refreshed = now
        return await self._keys.read()

    async def _poll(self) -> None:
        """Find whether the database answers. Now and then it hears that this server lives."""
        future = self._polling = self._polling or self._writer.submit(self._beat())
        done, _ = await asyncio.wait([asyncio.wrap_future(future)], timeout=ANSWER_SECONDS)
        if not done:
            self._is_away("it does not answer")
            return
        if self._polling is future:
            self._polling = None
        try:
            future.result()
        except DatabaseAway as problem:
            self._is_away(str(problem))
        else:
            self._is_back()

    def _beat(self) -> Callable[[Connection], None]:
        face, grants, now = self.face, self._grants, self._store.clock()
        is_due = abs(now - self._beaten_ms) >= BEAT_MS
        if is_due:
            self._beaten_ms = now

        def run(connection: Connection) -> None:
            if is_due:
                beat(connection, face, grants, now)

        return run

    async def admit(
        self, grant: Grant | None, model: str, prompt_tokens: int, completion_tokens: int, *, is_batch: bool = False
    ) -> Admitted | None:
        """Reserve what a request may use. None for a key without limits, or none at all.

        Raises RateLimited, for a line of a batch BudgetSpent if it may be accepted later; Overloaded where the database
        is away for too long, or too many rows wait for it. If this call is cancelled, nothing stays reserved.
        """
        if self._spool.is_full or (self._spool.problem and self._away_since is not None):
            raise Overloaded(FULL, retry_after=5)
        if grant is None or not grant.limits:
            return None
        tokens, cost = prompt_tokens + completion_tokens, sum(self.parts(model, prompt_tokens, 0, completion_tokens))
        request_id, now = secrets.token_hex(16), self._store.clock()
        if self._away_since is not None:
            return self._admit_alone(request_id, grant, model, tokens, cost, is_batch)
        future = self._writer.submit(
            lambda connection: admit(connection, request_id, grant, self.face, tokens, cost, now, is_batch=is_batch),
            grant.id,
        )
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                usage, outcome = await asyncio.wrap_future(future)
        except (DatabaseAway, TimeoutError) as problem:
            future.add_done_callback(partial(self._release, request_id, grant))
            self._is_away(str(problem) or "it does not answer")
            return self._admit_alone(request_id, grant, model, tokens, cost, is_batch)
        except BaseException:
            future.add_done_callback(partial(self._release, request_id, grant))
            raise
        self._usages[grant.id] = usage
        if isinstance(outcome, Refusal):
            if is_batch and outcome.requested <= outcome.limit:
                raise BudgetSpent
            raise refused(outcome, model)
        return Admitted(request_id, grant, model, outcome, True)

    def _admit_alone(
        self, request_id: str, grant: Grant, model: str, tokens: int, cost: int, is_batch: bool
    ) -> Admitted:
        """Decide by what this server knew last. Raises RateLimited, Overloaded. Lines of batches wait."""
        if is_batch or not self._is_in_grace:
            raise Overloaded(
                "The limits of your key cannot be checked now: the server's database does not answer. Retry later.",
                retry_after=5,
            )
        usage, outcome = reserve(grant.limits, self._usage_of(grant), tokens, cost, self._store.clock())
        self._usages[grant.id] = usage
        if isinstance(outcome, Refusal):
            raise refused(outcome, model)
        return Admitted(request_id, grant, model, outcome, False)

    def _release(self, request_id: str, grant: Grant, future: Future[tuple[KeyUsage, Reservation | Refusal]]) -> None:
        """Free a reservation that was made after all, when nobody waited for it any more; or that may have been made by
        a database that went away. Called on any thread."""
        if future.cancelled():
            return
        problem = future.exception()
        if isinstance(problem, DatabaseAway) or (problem is None and isinstance(future.result()[1], Reservation)):
            now = self._store.clock()
            self._writer.ensure(lambda connection: settle_request(connection, request_id, grant, 0, 0, now), grant.id)

    def begin(
        self, row: LedgerRow, grant: Grant | None, admitted: Admitted | None, progress: Callable[[], SpoolProgress]
    ) -> SpoolEntry:
        """Note a request before anything of it is sent: even if this server is killed, it has a row. `progress` is
        called on the event loop."""
        entry = _entry(row, grant, admitted)
        entry.progress = progress
        self._spool.begin(entry)
        return entry

    def before_end(self, entry: SpoolEntry) -> None:
        """Note what a request has as its last byte is about to be sent: who sees the end of an answer is billed all of
        it, whatever is killed then."""
        self._spool.note([entry])

    def record(self, row: LedgerRow, grant: Grant | None, admitted: Admitted | None) -> None:
        """Add a request that has ended to the ledger, and settle what it reserved; or note that more of it was
        delivered. Never raises or waits. The row stays in the spool until the database has it."""
        if admitted is not None:
            tokens, cost = row.prompt_tokens + row.completion_tokens, row.prompt_cost + row.completion_cost
            known = self._usage_of(admitted.grant)
            usage = settle(admitted.grant.limits, known, admitted.reservation, tokens, cost, row.ended_ms)
            self._usages[admitted.grant.id] = usage
        entry = _entry(row, grant, admitted)
        self._spool.end(entry)
        if self._away_since is None:
            self._recorder.record(entry)

    def release(self, admitted: Admitted) -> None:
        """Release the reservation of a request that was not computed after all."""
        grant, now = admitted.grant, self._store.clock()
        self._usages[grant.id] = settle(grant.limits, self._usage_of(grant), admitted.reservation, 0, 0, now)
        if admitted.is_stored:
            self._writer.ensure(
                lambda connection: settle_request(connection, admitted.request_id, grant, 0, 0, now), grant.id
            )

    def log_request(self, request: LoggedRequest) -> None:
        """Add a request to the log in the database. One that cannot be written is lost. Never raises or waits."""
        if self._away_since is not None:  # they would all wait in memory
            self._lost_requests.add("the database does not answer")
            return
        written = self._writer.submit(lambda connection: insert_request(connection, request), LAST)
        written.add_done_callback(self._lost_requests.note)

    def parts(self, model: str, prompt_tokens: int, cached_tokens: int, completion_tokens: int) -> tuple[int, int]:
        """Return the cost of a request's prompt and of its completion."""
        price = self.prices.get(model)
        return (0, 0) if price is None else price.parts(prompt_tokens, cached_tokens, completion_tokens)

    async def ask(self, question: Question) -> list[Sums]:
        """Return sums of the ledger, with all requests that have ended. Raises Overloaded if the database is away."""
        self._recorder.flush()
        await self.desk.transact(lambda connection: None, LAST)  # after what waits
        if self._away_since is not None:  # or it was just now, and lacks rows
            raise Overloaded(AWAY, retry_after=5)
        return await self.desk.look_up(lambda connection: sums(connection, question))

    @property
    def now_ms(self) -> int:
        return self._store.clock()

    def headers(self, grant: Grant) -> dict[str, str]:
        """Return the `x-ratelimit-*` headers of a response to this key now, of which nothing was reserved."""
        return headers(grant.limits, usage_at(grant.limits, self._usage_of(grant), self._store.clock()))

    def headers_after(self, grant: Grant) -> dict[str, str]:
        """Return the headers of a response right after `admit`: what it left."""
        return headers(grant.limits, self._usage_of(grant))

    def _usage_of(self, grant: Grant) -> KeyUsage:
        return self._usages.get(grant.id, KeyUsage())

    def use_models(self, listed: Iterable[ListedModel], prices: Mapping[str, Price] | None = None) -> None:
        """Resolve the names in the price table, or in a new one, to the models that are served now. Call it whenever
        these have changed. Raises SetupError for a name that no model has or had, unless models may be added."""
        served = {model.id: model.model or model.id for model in listed}
        ids, prices = self._ids | served, self._stated_prices if prices is None else prices
        unserved = prices.keys() - served.keys() - set(served.values())
        if not self._may_add_models:
            for name in unserved - ids.keys() - set(ids.values()):
                raise SetupError(f"--price names {name}, which is not served. The models are: {', '.join(served)}.")
        for name in sorted(unserved - self._unserved):
            log.warning("--price names %s, which is not served now", name)
        self._ids, self._unserved, self._stated_prices = ids, unserved, prices
        self.prices = {ids.get(name, name): price for name, price in prices.items()}

    def _is_away(self, reason: str) -> None:
        if self._away_since is None:
            self._away_since = self._monotonic()
            log.error("the database does not answer (%s); keys with limits are served for %g s", reason, GRACE_SECONDS)

    def _is_back(self) -> None:
        if self._away_since is not None:
            self._away_since = None
            log.warning("the database answers again")
            self._recorder.record_ended()

    def close(self) -> None:
        """Release what is reserved, and close. Blocks for some seconds at most."""
        self._recorder.flush()
        grants, now = self._grants, self._store.clock()
        self._writer.submit(lambda connection: leave(connection, self.face, grants, now), LAST)
        self._keys.close()
        self._writer.close(CLOSE_SECONDS)
        self._spool.close()
        self._store.close()


def _entry(row: LedgerRow, grant: Grant | None, admitted: Admitted | None) -> SpoolEntry:
    return SpoolEntry(row, "" if grant is None else grant.id, None if admitted is None else admitted.request_id)
