"""Limits over all servers of a database: parallel requests never overdraw, and no reservation outlives its request."""

from __future__ import annotations

import random
import threading

import pytest
from sqlalchemy import URL, func, select

from onward.service.grant import Grant
from onward.service.keys import create_key
from onward.service.limits import KeyUsage, Limits, Refusal, Reservation
from onward.service.reservations import admit, beat, leave, read_usage, settle_request
from onward.service.store import Store, open_store
from onward.service.tables import RESERVATIONS
from onward.service.writer import Writer
from tests.waiting import PATIENCE_SECONDS

from .conftest import Clock


def new_grant(store: Store, limits: Limits, name: str = "alice") -> Grant:
    with store.begin() as connection:
        key_id = create_key(connection, f"sk-{name}", name, limits, store.clock())
    return Grant(key_id, name, limits=limits)


def begin(store: Store, request: str, grant: Grant, tokens: int, face: str = "f") -> Reservation | Refusal:
    with store.begin() as connection:
        return admit(connection, request, grant, face, tokens, tokens * 2, store.clock())[1]


def usage_of(store: Store, grant: Grant) -> KeyUsage:
    with store.read() as connection:
        return read_usage(connection, grant.id)


def reserved(store: Store) -> int:
    with store.read() as connection:
        return int(connection.execute(select(func.count()).select_from(RESERVATIONS)).scalar_one())


def test_a_reservation_becomes_what_was_billed(store: Store) -> None:
    grant = new_grant(store, Limits(tokens_per_day=100))
    assert isinstance(begin(store, "r", grant, 60), Reservation)
    refused = begin(store, "s", grant, 60)
    assert isinstance(refused, Refusal) and refused.used == 60
    for _ in range(2):  # the second time nothing is reserved, and nothing is billed
        with store.begin() as connection:
            settle_request(connection, "r", grant, 0 if reserved(store) == 0 else 25, 50, store.clock())
    usage = usage_of(store, grant)
    assert (usage.day_tokens, usage.num_running, reserved(store)) == (25, 0, 0)


@pytest.mark.parametrize("seed", range(2))
def test_parallel_requests_of_several_servers_never_overdraw(url: URL, store: Store, seed: int) -> None:
    limits = Limits(tokens_per_day=500, parallel_requests=5)
    grants = [new_grant(store, limits, name) for name in ("alice", "bob")]
    stores = [open_store(url) for _ in range(3)]
    writers = [Writer(each) for each in stores]
    most: list[tuple[int, int]] = []
    problems: list[BaseException] = []
    billed = {grant.id: 0 for grant in grants}
    lock = threading.Lock()

    def one(chance: random.Random, request: str) -> None:
        grant, face, tokens = chance.choice(grants), chance.randrange(3), chance.randint(1, 60)
        used, now = chance.randint(0, tokens), store.clock()
        admitting = writers[face].submit(lambda c: admit(c, request, grant, str(face), tokens, 0, now), grant.id)
        usage, outcome = admitting.result(PATIENCE_SECONDS)
        most.append((usage.day_tokens, usage.num_running))
        if isinstance(outcome, Reservation):
            writers[face].submit(lambda c: settle_request(c, request, grant, used, 0, now), grant.id).result(
                PATIENCE_SECONDS
            )
            with lock:
                billed[grant.id] += used

    def client(number: int) -> None:
        chance = random.Random(seed * 100 + number)
        for turn in range(12):
            one(chance, f"{number}-{turn}")

    def guarded(number: int) -> None:
        try:
            client(number)
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for writer, each in zip(writers, stores, strict=True):
        writer.close(10)
        each.close()
    assert not problems
    assert max(tokens for tokens, _ in most) <= 500 and max(running for _, running in most) <= 5
    for grant in grants:
        usage = usage_of(store, grant)
        assert (usage.day_tokens, usage.num_running) == (billed[grant.id], 0)
    assert reserved(store) == 0


def test_what_a_dead_server_reserved_is_free_again_and_a_living_one_keeps_it(store: Store, clock: Clock) -> None:
    grant = new_grant(store, Limits(parallel_requests=2, tokens_per_minute=100))
    with store.begin() as connection:
        beat(connection, "dead", {}, clock.now)
    for face in ("dead", "alive"):
        assert isinstance(begin(store, face, grant, 40, face), Reservation)
    clock.now += 20_001
    with store.begin() as connection:
        assert beat(connection, "alive", {grant.id: grant}, clock.now) == 1
    assert usage_of(store, grant).num_running == 1
    with store.begin() as connection:  # it was alive after all: what it served is billed
        settle_request(connection, "dead", grant, 30, 0, clock.now)
        assert leave(connection, "alive", {grant.id: grant}, clock.now) == 1
    usage = usage_of(store, grant)
    assert (usage.num_running, usage.day_tokens, reserved(store)) == (0, 30, 0)


def test_a_forgotten_key_ends_without_an_error(store: Store) -> None:
    grant = Grant("key_gone", "gone")
    with store.begin() as connection:
        assert settle_request(connection, "r", grant, 5, 0, store.clock()).day_tokens == 5
    assert usage_of(store, grant) == KeyUsage()
