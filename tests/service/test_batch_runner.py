"""The runner of batches over a dialect of the test: the same bytes despite deaths, cancels and budgets."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy import Connection, func, select, update

from onward.service import batch_runner, batch_validator, desk
from onward.service.batch_records import (
    BatchLine,
    BudgetSpent,
    Computed,
    EngineLost,
    Result,
    StoredBatch,
    StoredFile,
    TryLater,
    new_batch_id,
)
from onward.service.batch_runner import BatchRunner
from onward.service.batches import cancel_batch, create_batch, find_batch
from onward.service.desk import Desk
from onward.service.files import add_part, begin_upload, delete_file, find_file, finish_upload, read_parts
from onward.service.limits import NO_LIMITS, Limits
from onward.service.lines import MAX_STRIKES, RUNNING, SUSPECT_LOSSES, claim, drop_lines, finish_line, give_back
from onward.service.reservations import admit, beat, leave
from onward.service.store import DatabaseAway, Store
from onward.service.tables import BATCHES, LINES
from onward.service.writer import Writer
from tests.examples import slow_but
from tests.waiting import until

from .conftest import Clock
from .databases import BreakingStore
from .spool_rows import EMPTY
from .test_reservations import new_grant, reserved, usage_of

KEY = "key_a"


class Check:
    """Lines are numbers; an empty one is an error."""

    def __init__(self) -> None:
        self.model = "toy"
        self.num_requests = 0
        self.errors = ""
        self._rest = b""

    def feed(self, data: bytes) -> list[tuple[int, bytes, bytes]]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        found = []
        for line in lines:
            self.num_requests += 1
            self.errors = self.errors or ("" if line else "{}")
            found.append((self.num_requests, b'"%b"' % line, line))
        return found

    def end(self) -> list[tuple[int, bytes, bytes]]:
        return []


@dataclass
class Dialect:
    """Computes lines with the test's function, by default after one turn of the loop."""

    on_line: Callable[[BatchLine], Awaitable[None]] | None = None
    valid: bool = True
    weights: dict[str, int] = field(default_factory=dict)
    computed: list[int] = field(default_factory=list)
    running: int = 0
    most_running: int = 0

    def check(self, batch: StoredBatch) -> Check:
        return Check()

    def missing_file(self, batch: StoredBatch) -> str:
        return '{"missing": true}'

    def queue_full(self, batch: StoredBatch, most: int) -> str:
        return json.dumps({"full": most})

    def not_computed(self, batch_id: str, number: int, custom_id: bytes, code: str) -> bytes:
        return b"%b %b\n" % (custom_id, code.encode())

    def key_is_valid(self, key_id: str) -> bool:
        return self.valid

    def weight_of(self, key_id: str) -> int:
        return self.weights.get(key_id, 1)

    async def compute(self, line: BatchLine) -> Computed:
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await asyncio.sleep(0)
            if self.on_line is not None:
                await self.on_line(line)
        finally:
            self.running -= 1
        self.computed.append(line.number)
        data = b"%b -> %b\n" % (line.custom_id, line.request[::-1])
        return Computed(Result(data=data, is_output=not line.request.startswith(b"7"), prompt_tokens=1))


class Face:
    """One server: a writer, and a runner that can be ended like a process."""

    def __init__(
        self, store: Store, name: str, dialect: Dialect, max_lines: int = 4, written: Store | None = None
    ) -> None:
        """`written`: what it writes to, if not `store`."""
        self.store, self.dialect = store, dialect
        self.writer = Writer(written or store)
        self.desk = Desk(store, self.writer, name)
        self.max_lines = max_lines
        self.runner = BatchRunner(self.desk, dialect, lambda: self.max_lines)
        self.task: asyncio.Task[None] | None = None

    def start(self) -> None:
        with self.store.begin() as connection:
            beat(connection, self.desk.face, {}, self.store.clock())
        self.task = asyncio.create_task(self.runner.run())

    async def stop(self) -> None:
        """End as a server does that is stopped."""
        assert self.task is not None
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        self.writer.close()
        with self.store.begin() as connection:  # lines that it was about to claim are returned by others
            leave(connection, self.desk.face, {}, self.store.clock())

    async def kill(self) -> None:
        """End as a killed process does: its lines are not returned until others notice."""
        self.desk.ensure = lambda *_: None  # type: ignore[method-assign]
        await self.stop()


class LossyStore(BreakingStore):
    """A store whose database often fails, just before or after a commit."""

    def __init__(self, store: Store, rng: random.Random) -> None:
        super().__init__(store._engine, store.clock)
        self._rng = rng
        self.num_lost = 0

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        self.is_away, self.forgets = (self._rng.random() < chance for chance in (0.1, 0.2))
        self.num_lost += self.forgets
        with super().begin() as connection:
            yield connection


class ForgetfulStore(BreakingStore):
    """A store whose database fails after committing a transaction that has set `forgets`."""

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        self.forgets = False
        with super().begin() as connection:
            yield connection


def submit(store: Store, clock: Clock, data: bytes, key: str = KEY, window: int = 10**9) -> str:
    batch_id = new_batch_id(clock.now)
    file_id = f"file-{batch_id[-22:]}"
    with store.begin() as connection:
        begin_upload(connection, file_id, key, "x", clock.now)
        for number, begin in enumerate(range(0, len(data), 50)):
            add_part(connection, file_id, key, number, data[begin : begin + 50], NO_LIMITS)
        finish_upload(connection, file_id, "batch", "in", None)
        create_batch(
            connection,
            StoredBatch(
                id=batch_id,
                key_id=key,
                endpoint="/v1/completions",
                input_file_id=file_id,
                completion_window="24h",
                status="validating",
                created_ms=clock.now,
                expires_ms=clock.now + window,
            ),
        )
    return batch_id


def look(store: Store, batch_id: str, key: str = KEY) -> StoredBatch:
    with store.read() as connection:
        found = find_batch(connection, key, batch_id)
    assert found is not None
    return found


async def ended(store: Store, batch_id: str, key: str = KEY) -> StoredBatch:
    await until(lambda: look(store, batch_id, key).status in ("completed", "failed", "expired", "cancelled"))
    return look(store, batch_id, key)


def contents(store: Store, file_id: str | None, key: str = KEY) -> bytes:
    if file_id is None:
        return b""
    found, after = b"", -1
    with store.read() as connection:
        file = find_file(connection, key, file_id, store.clock())
        assert isinstance(file, StoredFile)
        while parts := list(read_parts(connection, file, after)):
            found += b"".join(data for _, data in parts)
            after = parts[-1][0]
    assert len(found) == file.bytes
    return found


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_runner, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(batch_runner, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(batch_runner, "PAUSE_SECONDS", 0.05)


def numbers(count: int, first: int = 0) -> bytes:
    return b"".join(b"%d\n" % number for number in range(first, first + count))


def with_face(store: Store, dialect: Dialect, test: Callable[[Face], Awaitable[Any]], max_lines: int = 4) -> Any:
    async def run() -> Any:
        face = Face(store, "face", dialect, max_lines)
        face.start()
        try:
            return await test(face)
        finally:
            await face.stop()

    return asyncio.run(run())


def progress(store: Store, batch_id: str) -> tuple[str, int]:
    """The status of a batch, and how many of its lines have a result."""
    has_result = (LINES.c.batch_id == batch_id) & (func.length(LINES.c.result) > 0)
    with store.read() as connection:
        num_results = connection.execute(select(func.count()).select_from(LINES).where(has_result)).scalar_one()
    return look(store, batch_id).status, num_results


def test_a_batch_is_computed_in_the_order_of_its_lines(store: Store, clock: Clock) -> None:
    batch_id, dialect = submit(store, clock, numbers(40)), Dialect()
    batch = with_face(store, dialect, lambda face: ended(store, batch_id))
    assert (batch.status, batch.num_lines, batch.num_completed, batch.num_failed) == ("completed", 40, 39, 1)
    assert (batch.model, batch.prompt_tokens) == ("toy", 40)
    wanted = b"".join(
        b'"%d" -> %b\n' % (n, b"%d" % n if n < 10 else b"%d%d" % (n % 10, n // 10)) for n in range(40) if n != 7
    )
    assert contents(store, batch.output_file_id) == wanted
    assert contents(store, batch.error_file_id) == b'"7" -> 7\n'
    assert dialect.most_running == 4
    with store.read() as connection:
        left = connection.execute(select(func.sum(func.length(LINES.c.request)))).scalar_one()
    assert left == 0, "requests are dropped as they are computed"


def test_a_file_that_is_not_valid_or_not_there_fails_the_batch(store: Store, clock: Clock) -> None:
    bad, missing = submit(store, clock, b"1\n\n2\n"), submit(store, clock, b"1\n")
    with store.begin() as connection:
        connection.execute(update(BATCHES).where(BATCHES.c.id == missing).values(input_file_id="file-none"))

    async def test(_: Face) -> list[StoredBatch]:
        return [await ended(store, bad), await ended(store, missing)]

    first, second = with_face(store, dialect := Dialect(), test)
    assert (first.status, first.errors) == ("failed", "{}") and second.errors == '{"missing": true}'
    assert dialect.computed == []


@pytest.mark.parametrize("seed", slow_but([1], range(4)))
def test_no_death_loses_or_doubles_a_line(store: Store, clock: Clock, seed: int) -> None:
    """The files are those of an undisturbed run, whichever of two servers dies at any time."""
    rng = random.Random(seed)
    data = numbers(60)
    undisturbed = submit(store, clock, data)
    quiet = with_face(store, Dialect(), lambda _: ended(store, undisturbed))

    async def slow(line: BatchLine) -> None:
        await asyncio.sleep(rng.random() * 0.01)

    async def run() -> tuple[StoredBatch, list[Dialect]]:
        batch_id, dialects, number = submit(store, clock, data), [], 0
        faces: list[Face] = []
        while (before := progress(store, batch_id))[0] not in ("completed", "failed"):
            while len(faces) < 2:
                dialects.append(Dialect(slow))
                faces.append(Face(store, f"face {number}", dialects[-1]))
                faces[-1].start()
                number += 1
            await until(lambda: progress(store, batch_id) != before)
            await asyncio.sleep(rng.random() * 0.1)
            victim = faces.pop(rng.randrange(2))
            await (victim.kill() if rng.random() < 0.8 else victim.stop())
        for face in faces:
            await face.stop()
        return look(store, batch_id), dialects

    batch, _ = asyncio.run(run())
    assert (batch.status, batch.num_completed, batch.num_failed) == ("completed", 59, 1)
    for name in ("output_file_id", "error_file_id"):
        assert contents(store, getattr(batch, name)) == contents(store, getattr(quiet, name))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_no_lost_answer_of_the_database_loses_or_doubles_a_line(store: Store, clock: Clock, seed: int) -> None:
    """A transaction whose answer is lost may have been committed; lines that it claimed must not wait forever."""
    data = numbers(60)
    undisturbed = submit(store, clock, data)
    quiet = with_face(store, Dialect(), lambda _: ended(store, undisturbed))
    batch_id, lossy = submit(store, clock, data), LossyStore(store, random.Random(seed))

    async def run() -> StoredBatch:
        face = Face(store, "face", Dialect(), written=lossy)
        face.start()
        try:
            return await ended(store, batch_id)
        finally:
            await face.stop()

    batch = asyncio.run(run())
    assert lossy.num_lost, "nothing was disturbed"
    assert (batch.status, batch.num_completed, batch.num_failed, batch.prompt_tokens) == ("completed", 59, 1, 60)
    for name in ("output_file_id", "error_file_id"):
        assert contents(store, getattr(batch, name)) == contents(store, getattr(quiet, name))


def test_a_cancelled_batch_keeps_what_is_finished(store: Store, clock: Clock) -> None:
    batch_id = submit(store, clock, numbers(20))

    async def some(line: BatchLine) -> None:
        if line.number > 6:
            await asyncio.Event().wait()

    async def test(face: Face) -> StoredBatch:
        await until(lambda: look(store, batch_id).num_completed == 6)
        with store.begin() as connection:
            cancelling = cancel_batch(connection, KEY, batch_id, clock.now)
        assert cancelling is not None and cancelling.status == "cancelling"
        face.runner.wake()
        return await ended(store, batch_id)

    batch = with_face(store, Dialect(some), test)
    assert (batch.status, batch.num_completed, batch.num_failed) == ("cancelled", 6, 0)
    assert contents(store, batch.output_file_id).count(b"\n") == 6
    assert contents(store, batch.error_file_id) == b"".join(b'"%d" batch_cancelled\n' % n for n in range(6, 20))


def test_an_expired_batch_and_one_whose_key_is_revoked_end(store: Store, clock: Clock) -> None:
    async def some(line: BatchLine) -> None:
        if line.number > 2:
            raise TryLater

    dialect = Dialect(some)

    async def test(face: Face) -> list[StoredBatch]:
        first = submit(store, clock, numbers(5), window=1000)
        await until(lambda: look(store, first).num_completed == 2)
        clock.now += 1000
        second = submit(store, clock, numbers(5))
        await until(lambda: look(store, second).num_completed == 2)
        dialect.valid = False
        return [await ended(store, first), await ended(store, second)]

    expired, revoked = with_face(store, dialect, test)
    assert (expired.status, expired.num_completed, expired.num_failed) == ("expired", 2, 0)
    assert (revoked.status, revoked.num_completed, revoked.num_failed) == ("completed", 2, 3)
    assert b"batch_expired" in contents(store, expired.error_file_id)
    assert b"invalid_api_key" in contents(store, revoked.error_file_id)


def test_a_key_without_budget_waits_and_others_continue(store: Store, clock: Clock) -> None:
    spent, has_budget = submit(store, clock, numbers(10)), False
    other = submit(store, clock, numbers(10), key="key_b")

    async def some(line: BatchLine) -> None:
        if line.key_id == KEY and line.number > 3 and not has_budget:
            raise BudgetSpent

    async def test(face: Face) -> StoredBatch:
        nonlocal has_budget
        await ended(store, other, "key_b")
        assert look(store, spent).status == "in_progress"
        has_budget = True
        return await ended(store, spent)

    assert with_face(store, Dialect(some), test).num_lines == 10


def test_keys_share_the_lines_that_run(store: Store, clock: Clock) -> None:
    started: list[str] = []
    is_submitted = asyncio.Event()

    async def note(line: BatchLine) -> None:
        started.append(line.key_id)
        if line.key_id == KEY and line.number > 12:
            await is_submitted.wait()
        await asyncio.sleep(0.002)

    async def test(face: Face) -> None:
        first = submit(store, clock, numbers(80))
        await until(lambda: look(store, first).num_completed > 8)
        second = submit(store, clock, numbers(20), key="key_b")
        before = len(started)
        is_submitted.set()
        await ended(store, second, "key_b")
        assert look(store, first).status == "in_progress", "the smaller one has not waited for the larger one"
        shared = started[before:]
        assert shared.count("key_b") == 20 and shared.count(KEY) < 60
        await ended(store, first)

    with_face(store, Dialect(note), test)


def test_keys_share_the_lines_that_run_by_their_weight(store: Store, clock: Clock) -> None:
    """Of eight lines, six belong to the key with weight 3, which had all of them before the other key's batch came."""
    running: Counter[str] = Counter()
    first_ones, later_ones = asyncio.Event(), asyncio.Event()

    async def wait(line: BatchLine) -> None:
        running[line.key_id] += 1
        await (first_ones if line.key_id == KEY and line.number <= 8 else later_ones).wait()
        running[line.key_id] -= 1

    async def test(_: Face) -> None:
        first = submit(store, clock, numbers(20))
        await until(lambda: running[KEY] == 8)
        second = submit(store, clock, numbers(20), key="key_b")
        await until(lambda: look(store, second, "key_b").status == "in_progress")
        first_ones.set()
        await until(lambda: look(store, first).num_completed == 7 and running.total() == 8)
        assert running == {KEY: 6, "key_b": 2}
        later_ones.set()

    with_face(store, Dialect(wait, weights={KEY: 3, "key_b": 1}), test, max_lines=8)


def test_more_lines_run_once_the_engine_has_more_rows(store: Store, clock: Clock) -> None:
    gate = asyncio.Event()

    async def wait(line: BatchLine) -> None:
        await gate.wait()

    async def test(face: Face) -> None:
        submit(store, clock, numbers(20))
        await until(lambda: face.runner.num_running == 4)
        face.max_lines = 12
        face.runner.wake()
        await until(lambda: face.runner.num_running == 12)
        gate.set()

    with_face(store, Dialect(wait), test)


def test_a_line_that_was_given_back_is_not_given_back_again_while_it_is_computed(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database fails right after committing that a line waits again, and its success is not reported."""
    forgetful = ForgetfulStore(store._engine, store.clock)
    num_given_back, attempts, losses = 0, 0, []

    def forgotten(connection: Connection, **given: Any) -> None:
        nonlocal num_given_back
        give_back(connection, **given)
        num_given_back += 1
        forgetful.forgets = num_given_back == 1

    async def lost_once(line: BatchLine) -> None:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            raise EngineLost
        await until(lambda: num_given_back == 2)
        with store.read() as connection:
            losses.append(connection.execute(select(LINES.c.state, LINES.c.losses)).one())

    monkeypatch.setattr(batch_runner, "give_back", forgotten)

    async def run() -> StoredBatch:
        face = Face(store, "face", Dialect(lost_once), written=forgetful)
        face.start()
        try:
            return await ended(store, submit(store, clock, numbers(1)))
        finally:
            await face.stop()

    assert asyncio.run(run()).num_completed == 1
    assert attempts == 2 and losses == [(RUNNING, 1)]


def test_a_line_that_could_not_be_given_back_is_given_back_when_its_batch_is_cancelled(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cancel comes between two tries."""
    batch_id, tries = submit(store, clock, numbers(1)), 0

    def unplugged_once(connection: Connection, **given: Any) -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise DatabaseAway("it was unplugged.")
        give_back(connection, **given)

    async def lost(line: BatchLine) -> None:
        raise EngineLost

    async def test(face: Face) -> StoredBatch:
        await until(lambda: tries == 1)
        with store.begin() as connection:
            cancel_batch(connection, KEY, batch_id, clock.now)
        face.runner.wake()
        return await ended(store, batch_id)

    monkeypatch.setattr(batch_runner, "RETRY_SECONDS", 1000.0)
    monkeypatch.setattr(batch_runner, "give_back", unplugged_once)
    assert with_face(store, Dialect(lost), test).status == "cancelled"
    assert tries == 2


def test_a_result_that_cannot_be_written_leaves_nothing_reserved(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault other than an unreachable database: the line is retried, and reserves again."""
    grant = new_grant(store, Limits(tokens_per_day=100))

    class Reserving(Dialect):
        async def compute(self, line: BatchLine) -> Computed:
            request = f"try {len(self.computed)}"
            with store.begin() as connection:
                admit(connection, request, grant, "face", 30, 0, clock.now, is_batch=True)
            computed = await super().compute(line)
            row = replace(EMPTY, id=request, ended_ms=clock.now, batch=line.batch_id, completion_tokens=5)
            return dataclasses.replace(computed, row=row, grant=grant, reservation_id=request)

    def first_refused(connection: Connection, *given: Any) -> bool:
        """What fails together with other work is tried once more alone."""
        if len(dialect.computed) < 2:
            raise ValueError("it is a fault of the server")
        return finish_line(connection, *given)

    monkeypatch.setattr(batch_runner, "finish_line", first_refused)
    dialect, batch_id = Reserving(), submit(store, clock, numbers(1))

    async def test(_: Face) -> None:
        await ended(store, batch_id)
        await until(lambda: not reserved(store))

    with_face(store, dialect, test)
    assert (look(store, batch_id).num_completed, len(dialect.computed)) == (1, 2)
    assert usage_of(store, grant).day_tokens == 5


def test_lines_that_a_server_has_unknowingly_are_given_back_though_it_has_taken_others_since(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database fails after committing the first claim; the second one comes before any other query."""
    forgetful, num_claims = ForgetfulStore(store._engine, store.clock), 0

    def forgotten(connection: Connection, *given: Any, **named: Any) -> list[BatchLine] | None:
        nonlocal num_claims
        taken = claim(connection, *given, **named)
        num_claims += 1
        forgetful.forgets = num_claims == 1
        return taken

    async def run() -> StoredBatch:
        face = Face(store, "face", Dialect(), written=forgetful)
        face.runner = BatchRunner(face.desk, face.dialect, lambda: 4, monotonic=lambda: 0.0)
        face.start()
        try:
            return await ended(store, submit(store, clock, numbers(10)))
        finally:
            await face.stop()

    monkeypatch.setattr(batch_runner, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(batch_runner, "claim", forgotten)
    batch = asyncio.run(run())
    assert num_claims > 1 and batch.num_completed + batch.num_failed == 10


def test_lines_of_a_lost_engine_are_returned_and_the_one_that_ends_it_is_found(store: Store, clock: Clock) -> None:
    """Line 5 ends every engine: it is found alone and fails by name, and all others have their results."""

    async def deadly(line: BatchLine) -> None:
        await asyncio.sleep(0.001)
        if line.number == 5:
            raise EngineLost

    batch_id = submit(store, clock, numbers(8))
    batch = with_face(store, Dialect(deadly), lambda _: ended(store, batch_id))
    assert (batch.num_completed, batch.num_failed) == (6, 2)
    assert b'"4" server_error\n' in contents(store, batch.error_file_id)


def test_a_line_that_cannot_be_computed_ends_its_tries_and_holds_no_other(
    store: Store, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """An internal error: the line is tried a few times, in the end alone."""

    async def faulty(line: BatchLine) -> None:
        if line.number == 3:
            raise ValueError

    first, second = submit(store, clock, numbers(8)), submit(store, clock, numbers(8), key="key_b")
    dialect = Dialect(faulty)

    async def test(_: Face) -> list[StoredBatch]:
        return [await ended(store, first), await ended(store, second, "key_b")]

    for batch in with_face(store, dialect, test):
        assert (batch.status, batch.num_completed, batch.num_failed) == ("completed", 6, 2)
        assert b'"2" server_error\n' in contents(store, batch.error_file_id, batch.key_id)
    assert caplog.text.count("could not be computed") == 2 * (SUSPECT_LOSSES + MAX_STRIKES)


@pytest.mark.parametrize("change", ["deleted", "taken by another server", "cancelled"])
def test_no_change_while_a_file_is_read_starts_half_of_a_batch(store: Store, clock: Clock, change: str) -> None:
    batch_id, dialect = submit(store, clock, numbers(60)), Dialect()
    batch = look(store, batch_id)

    class Changing(Check):
        num_parts = 0

        def feed(self, data: bytes) -> list[tuple[int, bytes, bytes]]:
            self.num_parts += 1
            if self.num_parts == 2:
                with store.begin() as connection:
                    match change:
                        case "deleted":
                            file = find_file(connection, KEY, batch.input_file_id, clock.now)
                            assert file is not None
                            delete_file(connection, file)
                        case "cancelled":
                            cancel_batch(connection, KEY, batch_id, clock.now)
                        case _:
                            connection.execute(update(BATCHES).values(face="another"))
                            drop_lines(connection, batch_id)
                            beat(connection, "another", {}, clock.now)
            return super().feed(data)

    dialect.check = lambda batch: Changing()  # type: ignore[method-assign]

    async def test(face: Face) -> StoredBatch:
        if change == "taken by another server":
            await until(lambda: bool(look(store, batch_id).face == "another"))
            await asyncio.sleep(0.05)
            return look(store, batch_id)
        return await ended(store, batch_id)

    found = with_face(store, dialect, test)
    wanted = {"deleted": "failed", "cancelled": "cancelled"}.get(change, "validating")
    assert found.status == wanted and dialect.computed == []
    if change == "deleted":
        assert found.errors == '{"missing": true}'
    with store.read() as connection:
        assert connection.execute(select(func.count()).select_from(LINES)).scalar_one() == 0


def test_a_key_has_a_bounded_number_of_batches_at_a_time(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_validator, "MAX_OPEN", 2)
    go_on = asyncio.Event()

    async def wait(line: BatchLine) -> None:
        await go_on.wait()

    async def test(_: Face) -> None:
        first = [submit(store, clock, numbers(2)) for _ in range(2)]
        await until(lambda: all(look(store, each).status == "in_progress" for each in first))
        assert (await ended(store, third := submit(store, clock, numbers(2)))).errors == '{"full": 2}'
        assert look(store, third).status == "failed"
        await until(lambda: look(store, other, "key_b").status == "in_progress")
        go_on.set()
        for each in first:
            assert (await ended(store, each)).status == "completed"

    other = submit(store, clock, numbers(2), key="key_b")
    with_face(store, Dialect(wait), test)


def test_a_full_disk_lets_lines_wait(store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    is_full = True

    async def has_room(_: desk.Desk, num_bytes: int = 0) -> bool:
        return not is_full or num_bytes > 0  # the lines alone still fit

    monkeypatch.setattr(desk.Desk, "has_room", has_room)
    batch_id, dialect = submit(store, clock, numbers(5)), Dialect()

    async def test(face: Face) -> StoredBatch:
        nonlocal is_full
        await until(lambda: look(store, batch_id).status == "in_progress")
        await asyncio.sleep(0.05)
        assert dialect.computed == []
        is_full = False
        return await ended(store, batch_id)

    assert with_face(store, dialect, test).status == "completed"


def test_a_stopped_server_leaves_nothing_running(store: Store, clock: Clock) -> None:
    batch_id = submit(store, clock, numbers(9))

    async def hang(line: BatchLine) -> None:
        await asyncio.Event().wait()

    async def test(face: Face) -> None:
        await until(lambda: face.runner.num_running == 4)

    with_face(store, Dialect(hang), test)
    with store.read() as connection:
        running = connection.execute(select(func.count()).select_from(LINES).where(LINES.c.state == RUNNING))
        assert running.scalar_one() == 0
        assert connection.execute(select(func.max(LINES.c.losses))).scalar_one() == 0
    assert look(store, batch_id).status == "in_progress"
