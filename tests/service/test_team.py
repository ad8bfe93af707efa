"""A server's part of a team: admission and settlement, the grace while the database is away, changes of keys."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import URL, Connection, func, select

from onward.errors import Overloaded, RateLimited
from onward.service import team as team_module
from onward.service.keys import change_key, create_key
from onward.service.limits import Limits
from onward.service.prices import Price
from onward.service.records import LedgerRow
from onward.service.reservations import read_usage
from onward.service.store import DatabaseAway, Store, open_store
from onward.service.tables import REQUESTS, RESERVATIONS
from onward.service.team import Team
from tests.server.fakes import in_loop

from .conftest import Clock
from .test_ledger import EMPTY


class BreakingStore(Store):
    """A store whose database can be away, which tests say."""

    is_away = False

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        if self.is_away:
            raise DatabaseAway("it was unplugged.")
        with super().begin() as connection:
            yield connection


@pytest.fixture
def breaking(tmp_path: Path, clock: Clock) -> Iterator[BreakingStore]:
    opened = open_store(URL.create("sqlite", database=str(tmp_path / "onward.db")), clock)
    store = BreakingStore(opened._engine, clock)
    with store.begin() as connection:
        create_key(connection, "sk-a", "alice", Limits(tokens_per_day=100, tokens_per_minute=1000), clock.now)
    yield store
    store.close()


def row_of(team: Team, prompt: int, cached: int, completion: int) -> LedgerRow:
    """A request of alice that ends now."""
    costs = team.parts("m", prompt, cached, completion)
    return replace(
        EMPTY,
        id=secrets.token_hex(8),
        ended_ms=team.now_ms,
        key_id=team.keys[0].grant.id,
        prompt_tokens=prompt,
        cached_tokens=cached,
        completion_tokens=completion,
        prompt_cost=costs[0],
        completion_cost=costs[1],
    )


async def settled(team: Team) -> None:
    while team._spool.num_waiting:
        await asyncio.sleep(0.001)


def test_what_is_billed_replaces_what_was_reserved_and_is_priced(breaking: BreakingStore, tmp_path: Path) -> None:
    @in_loop
    async def test() -> None:
        team = Team(breaking, tmp_path, {"m": Price(2_000_000, 4_000_000, 1_000_000)})
        grant = team.keys[0].grant
        admitted = await team.admit(grant, "m", 10, 50)
        assert admitted is not None
        assert team.headers_after(grant)["x-ratelimit-remaining-tokens"] == "940"
        with pytest.raises(RateLimited):
            await team.admit(grant, "m", 10, 50)
        team.record(row_of(team, 10, 4, 5), grant, admitted)
        await settled(team)
        with breaking.read() as connection:
            usage = read_usage(connection, grant.id)
        assert (usage.day_tokens, usage.day_cost, usage.num_running) == (15, 6 * 2 + 4 + 5 * 4, 0)
        team.close()

    test()


def test_a_key_without_limits_reserves_nothing(breaking: BreakingStore, clock: Clock, tmp_path: Path) -> None:
    with breaking.begin() as connection:
        create_key(connection, "sk-b", "free", Limits(), clock.now)

    @in_loop
    async def test() -> None:
        team = Team(breaking, tmp_path)
        breaking.is_away = True
        (grant,) = (key.grant for key in team.keys if key.name == "free")
        assert await team.admit(grant, "m", 10, 10**9) is None
        assert team.headers(grant) == {}
        team.close()

    test()


def test_while_the_database_is_away_known_keys_are_served_for_a_grace_by_what_was_known(
    breaking: BreakingStore, clock: Clock, tmp_path: Path
) -> None:
    now = [0.0]

    @in_loop
    async def test() -> None:
        team = Team(breaking, tmp_path, monotonic=lambda: now[0])
        grant = team.keys[0].grant
        first = await team.admit(grant, "m", 10, 30)
        assert first is not None and first.is_stored and team.detail == ""
        breaking.is_away = True
        second = await team.admit(grant, "m", 10, 30)
        assert second is not None and not second.is_stored
        assert "served by what was known" in team.detail
        with pytest.raises(RateLimited):  # 80 of 100 tokens are reserved, by this server's knowledge
            await team.admit(grant, "m", 10, 30)
        team.record(row_of(team, 10, 0, 5), grant, first)
        team.record(row_of(team, 10, 0, 7), grant, second)
        now[0] = 60.0
        with pytest.raises(Overloaded) as refused:
            await team.admit(grant, "m", 1, 1)
        assert refused.value.headers["retry-after"] == "5"
        assert "refused" in team.detail
        breaking.is_away = False
        await team._poll()
        await settled(team)
        assert team.detail == ""
        with breaking.read() as connection:
            usage = read_usage(connection, grant.id)
        assert (usage.day_tokens, usage.num_running) == (32, 0)
        assert await team.admit(grant, "m", 1, 1) is not None
        team.close()

    test()


def test_a_client_that_leaves_while_it_waits_leaves_nothing_reserved(breaking: BreakingStore, tmp_path: Path) -> None:
    @in_loop
    async def test() -> None:
        team = Team(breaking, tmp_path)
        grant = team.keys[0].grant
        for _ in range(5):
            task = asyncio.create_task(team.admit(grant, "m", 10, 40))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        team.close()

    test()
    with breaking.read() as connection:
        assert connection.execute(select(func.count()).select_from(RESERVATIONS)).scalar_one() == 0


def test_changed_keys_are_noticed(breaking: BreakingStore, clock: Clock, tmp_path: Path) -> None:
    @in_loop
    async def test() -> None:
        team = Team(breaking, tmp_path)
        assert not await team._poll()
        with breaking.begin() as connection:
            change_key(connection, "alice", {"tokens_per_day": 5}, clock.now)
        assert await team._poll()
        assert team.keys[0].grant.limits.tokens_per_day == 5
        team.close()

    test()


def test_requests_are_kept_as_long_as_the_setting_says(
    breaking: BreakingStore, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(team_module, "FORGOTTEN_ROWS", 2)

    @in_loop
    async def test() -> None:
        team = Team(breaking, tmp_path, keep_seconds=3600)
        grant = team.keys[0].grant
        for minutes in (0, 1, 2, 59):
            team.record(replace(row_of(team, 1, 0, 1), ended_ms=clock.now + minutes * 60_000), grant, None)
        await settled(team)
        clock.now += 3_600_000 + 150_000
        for _ in range(3):
            await team._forget_old_rows()
        with breaking.read() as connection:
            assert connection.execute(select(func.count()).select_from(REQUESTS)).scalar_one() == 1
        team.close()

    test()


def test_what_a_request_had_reserved_is_freed_when_the_database_answers_again(
    breaking: BreakingStore, tmp_path: Path
) -> None:
    @in_loop
    async def test() -> None:
        team = Team(breaking, tmp_path)
        grant = team.keys[0].grant
        admitted = await team.admit(grant, "m", 10, 30)
        assert admitted is not None and admitted.is_stored
        breaking.is_away = True
        team.release(admitted)
        with pytest.raises(Overloaded):
            await team.desk.transact(lambda connection: None)
        breaking.is_away = False
        for _ in range(2):  # the first shows that the database answers
            await team.desk.transact(lambda connection: None)
        with breaking.read() as connection:
            assert connection.execute(select(func.count()).select_from(RESERVATIONS)).scalar_one() == 0
            assert read_usage(connection, grant.id).num_running == 0
        team.close()

    test()
