"""A server's part of a team: admission and settlement, the grace while the database is away, changes of keys."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from sqlalchemy import func, select

from onward.errors import Overloaded, RateLimited, SetupError
from onward.models.registry import ListedModel
from onward.service import team as team_module
from onward.service.keys import change_key, create_key
from onward.service.limits import Limits
from onward.service.prices import Price
from onward.service.records import LedgerRow, Question
from onward.service.reservations import read_usage
from onward.service.tables import REQUESTS, RESERVATIONS
from onward.service.team import Team
from tests.server.fakes import in_loop
from tests.waiting import until

from .conftest import Clock
from .databases import BreakingStore, new_store
from .spool_rows import EMPTY


@pytest.fixture
def breaking(tmp_path: Path, clock: Clock) -> Iterator[BreakingStore]:
    opened = new_store(tmp_path / "onward.db", clock)
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
    await until(lambda: not team._spool.num_waiting)


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


def models(**ids: str) -> list[ListedModel]:
    """Names that requests may use, with the models that answer."""
    return [ListedModel(id=name, created=0, owned_by="", model=id if id != name else "") for name, id in ids.items()]


def test_prices_are_those_of_the_settings_and_of_the_models_that_they_name_now(
    breaking: BreakingStore, tmp_path: Path
) -> None:
    team = Team(breaking, tmp_path, {"fast": Price(1, 1, 1), "b": Price(2, 2, 2)})
    team.use_models(models(a="a", b="b", fast="a"))
    assert team.prices == {"a": Price(1, 1, 1), "b": Price(2, 2, 2)}
    team.use_models(models(b="b", c="c", fast="c"))
    assert team.prices == {"c": Price(1, 1, 1), "b": Price(2, 2, 2)}, "the name is another model's now"
    team.use_models(models(b="b"), {})
    assert team.prices == {} and team.parts("b", 10**6, 0, 0) == (0, 0), "no price costs nothing"
    team.close()


def test_prices_of_models_that_are_gone_or_may_come_are_kept(
    breaking: BreakingStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    team = Team(breaking, tmp_path, {"x": Price(1, 1, 1), "b": Price(2, 2, 2)})
    team.use_models(models(a="a", b="b", x="b"))
    team.use_models(models(a="a"))
    for name in ("x", "b"):
        assert f"--price names {name}, which is not served now" in caplog.text
    changed = {"b": Price(3, 3, 3)}
    team.use_models(models(a="a"), changed)
    assert team.prices == changed, "its last requests may still run, and it may come again"
    with pytest.raises(SetupError, match="--price names c, which is not served"):
        team.use_models(models(a="a"), {"c": Price(1, 1, 1)})
    assert team.prices == changed
    team.close()
    open_to_more = Team(breaking, tmp_path, {"c": Price(1, 1, 1)}, may_add_models=True)
    open_to_more.use_models(models(a="a"))
    assert open_to_more.parts("c", 10**6, 0, 0) == (1, 0)
    assert caplog.text.count("--price names c, which is not served now") == 1
    open_to_more.use_models(models(a="a", c="c"))
    open_to_more.close()


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


def test_while_the_database_is_away_known_keys_are_served_for_a_grace_period(
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
        with pytest.raises(RateLimited):  # 80 of 100 tokens are reserved, as far as this server knows
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


def test_a_reservation_whose_answer_is_lost_ends_with_its_request(breaking: BreakingStore, tmp_path: Path) -> None:
    def num_reserved() -> int:
        with breaking.read() as connection:
            return int(connection.execute(select(func.count()).select_from(RESERVATIONS)).scalar_one())

    @in_loop
    async def test() -> None:
        team = Team(breaking, tmp_path)
        grant = team.keys[0].grant
        breaking.forgets = True
        served = await team.admit(grant, "m", 10, 30)
        assert served is not None and not served.is_stored
        team._is_back()
        with pytest.raises(Overloaded):
            await team.admit(grant, "m", 10, 30, is_batch=True)
        breaking.forgets = False
        await team._poll()
        team.record(row_of(team, 10, 0, 5), grant, served)
        await settled(team)
        async with asyncio.timeout(30):
            while num_reserved():
                await team._poll()
        with breaking.read() as connection:
            usage = read_usage(connection, grant.id)
        assert (usage.day_tokens, usage.num_running) == (15, 0)
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
        assert not await team._keys.read()
        with breaking.begin() as connection:
            change_key(connection, "alice", {"tokens_per_day": 5}, clock.now)
        assert await team._keys.read()
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
        for _ in range(2):  # the first one shows that the database responds
            await team.desk.transact(lambda connection: None)
        with breaking.read() as connection:
            assert connection.execute(select(func.count()).select_from(RESERVATIONS)).scalar_one() == 0
            assert read_usage(connection, grant.id).num_running == 0
        team.close()

    test()


def test_sums_are_refused_until_the_database_has_what_it_could_not_take(
    breaking: BreakingStore, tmp_path: Path
) -> None:
    @in_loop
    async def test() -> None:
        team = Team(breaking, tmp_path)
        breaking.is_away = True
        await team._poll()
        team.record(row_of(team, 10, 0, 5), None, None)
        breaking.is_away = False
        second = team.now_ms // 1000
        question = Question(second - 1, second + 1, 60)
        with pytest.raises(Overloaded):
            await team.ask(question)
        await team._poll()
        assert [found.requests for found in await team.ask(question)] == [1]
        team.close()

    test()
