"""Law 8: the ledger's billed tokens are the usage that clients saw, whichever client, engine, database or server dies.
Of a killed server's request, only tokens after its last write to the spool may be missing."""

from __future__ import annotations

import http.client
import json
import random
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL, func, select

from onward.service.backup import problems
from onward.service.keys import create_key
from onward.service.limits import Limits
from onward.service.reservations import read_usages
from onward.service.store import Store, open_store
from onward.service.tables import KEYS, REQUESTS, RESERVATIONS
from tests.examples import slow_but
from tests.processes import ServerProcess, free_port, kill, server_process
from tests.service.databases import postgresql
from tests.waiting import PATIENCE_SECONDS, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.real]

NUM_CLIENTS = 8
LOAD_SECONDS = 15.0
MIN_WHOLE, MIN_CUT, MIN_KILLS = 30, 6, 3
"""A slow machine takes longer until so many requests have ended, were cut, and servers were killed."""
KILLED_SECONDS = 2.0
"""How near to a token that is not counted its server was killed: 100 ms, where machine and client have time."""


@dataclass(slots=True)
class Seen:
    """What a client saw of a request: `times` has the arrival of each token of the completion."""

    id: str
    key: str
    times: list[float] = field(default_factory=list)
    usage: dict[str, Any] | None = None
    last: float = 0.0
    """When the last of it came."""


def fields_of(rng: random.Random) -> dict[str, Any]:
    found: dict[str, Any] = {
        "prompt": rng.choice(["Once upon a time", "The fox", ["One", "Two"]]),
        "max_tokens": rng.randrange(20, 200),
        "seed": rng.randrange(1000),
        "ignore_eos": rng.random() < 0.7,
    }
    match rng.randrange(6):
        case 0:
            return found | {"stream": False, "best_of": 3, "n": 1, "prompt": "Once"}
        case 1:
            return found | {"stream": False, "n": 2}
        case 2:
            return found | {"stream": True, "stop": [" the", "fox"]}
        case 3:
            return found | {"stream": True, "n": 2, "logprobs": 0}
    return found | {"stream": True, "logprobs": 0}


class Clients:
    """Threads that send requests until they are stopped, and record what they see."""

    def __init__(self, port: int, seed: int) -> None:
        self.port = port
        self.seen: list[Seen] = []
        self.is_stopped = False
        self.problems: list[str] = []
        self._threads = [
            threading.Thread(target=self._run, args=(random.Random(seed * 100 + number),))
            for number in range(NUM_CLIENTS)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def has_seen_enough(self) -> bool:
        whole = sum(seen.usage is not None for seen in self.seen)
        return whole >= MIN_WHOLE and len(self.seen) - whole >= MIN_CUT + NUM_CLIENTS

    def stop(self) -> None:
        self.is_stopped = True
        for thread in self._threads:
            thread.join(PATIENCE_SECONDS)
            assert not thread.is_alive(), "a client hangs"

    def _run(self, rng: random.Random) -> None:
        while not self.is_stopped:
            try:
                self._ask(rng)
            except (OSError, http.client.HTTPException, ValueError):
                time.sleep(0.05)

    def _ask(self, rng: random.Random) -> None:
        key, fields = rng.choice(["alice", "bob"]), fields_of(rng)
        leaves_after = rng.randrange(1, 40) if rng.random() < 0.25 else None
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_SECONDS)
        if fields["stream"]:
            fields["stream_options"] = {"include_usage": True}
        headers = {"authorization": f"Bearer sk-{key}", "content-type": "application/json"}
        try:
            connection.request("POST", "/v1/completions", json.dumps({"model": "storyteller", **fields}), headers)
            response = connection.getresponse()
            if response.status != 200:
                response.read()
                if response.status not in (429, 500, 503):
                    self.problems.append(f"{response.status}")
                return
            seen = Seen(response.headers["x-request-id"], key)
            self.seen.append(seen)
            if not fields["stream"]:
                seen.usage = json.loads(response.read())["usage"]
                seen.last = time.time()
                return
            for line in response:
                if not line.startswith(b"data: {"):
                    continue
                chunk, seen.last = json.loads(line[6:]), time.time()
                if chunk.get("usage"):
                    seen.usage = chunk["usage"]
                for choice in chunk.get("choices", ()):
                    seen.times += [seen.last] * len((choice["logprobs"] or {}).get("tokens", ()))
                if leaves_after is not None and len(seen.times) >= leaves_after:
                    return
        finally:
            connection.close()


class Database:
    """A database that can be made unreachable for a while."""

    def __init__(self, url: URL, away: Callable[[float], None]) -> None:
        self.url = url
        self.be_away = away


@contextmanager
def database_of(kind: str, folder: Path) -> Iterator[Database]:
    if kind == "sqlite":
        path = folder / "onward.db"

        def lock(seconds: float) -> None:
            other = sqlite3.connect(path, isolation_level=None, timeout=PATIENCE_SECONDS)
            other.execute("BEGIN IMMEDIATE")
            time.sleep(seconds)
            other.execute("ROLLBACK")
            other.close()

        yield Database(URL.create("sqlite", database=str(path)), lock)
        return
    with postgresql() as server:

        def restart(seconds: float) -> None:
            server.kill()
            time.sleep(seconds)
            server.start()

        yield Database(server.new_database(), restart)


@contextmanager
def serving(port: int, url: URL, folder: Path) -> Iterator[ServerProcess]:
    flags = ("--port", str(port), "--data-dir", str(folder), "--engine-process", "on")
    text = url.render_as_string(hide_password=False).replace("+psycopg", "")
    with server_process(*flags, "--database", text, model="storyteller") as server:
        yield server


def disturb(rng: random.Random, clients: Clients, database: Database, folder: Path) -> list[float]:
    """Serve for LOAD_SECONDS and until clients have seen enough; meanwhile kill engine, server and database at random.
    Returns when servers were killed."""
    kills: list[float] = []
    began = time.monotonic()

    def goes_on() -> bool:
        seconds = time.monotonic() - began
        has_enough = clients.has_seen_enough and len(kills) >= MIN_KILLS
        return seconds < LOAD_SECONDS or (not has_enough and seconds < LOAD_SECONDS + PATIENCE_SECONDS)

    while goes_on():
        with serving(clients.port, database.url, folder) as server:
            while goes_on():
                time.sleep(rng.uniform(0.7, 2))
                match rng.randrange(4):
                    case 0:
                        kill(*server.engines())
                    case 1:
                        database.be_away(rng.uniform(0.5, 4))
                    case _:
                        server.popen.send_signal(signal.SIGKILL)
                        kills.append(time.time())
                        server.popen.wait()
                        break
    return kills


@pytest.mark.parametrize("seed", slow_but([], [1, 2], [1]))
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_law_8_billed_tokens_are_the_usage_that_clients_saw(kind: str, seed: int, tmp_path: Path) -> None:
    port, rng = free_port(), random.Random(seed)
    with database_of(kind, tmp_path) as database:
        store = open_store(database.url)
        with store.begin() as connection:
            create_key(connection, "sk-alice", "alice", Limits(tokens_per_month=10**9, tokens_per_minute=10**8), 0)
            create_key(connection, "sk-bob", "bob", Limits(), 0)
        store.close()
        clients = Clients(port, seed)
        try:
            kills = disturb(rng, clients, database, tmp_path)
        finally:
            clients.is_stopped = True
        with serving(port, database.url, tmp_path):
            clients.stop()
            store = open_store(database.url)
            wait_until_settled(store)
        rows = read_rows(store)
        check(clients, rows, kills)
        with store.read() as connection:
            names = {row.name: row.id for row in connection.execute(select(KEYS))}
            usage = read_usages(connection)[names["alice"]]
        of_alice = [row for row in rows if row["key_name"] == "alice"]
        assert usage.num_running == 0 and problems(store) == []
        billed = sum(row["prompt_tokens"] + row["completion_tokens"] for row in of_alice)
        assert usage.month_tokens == billed, "what a key has used of its limits is what it was billed"
        store.close()


def wait_until_settled(store: Store) -> None:
    """Wait until nothing is reserved: reservations of a dead server are released after 20 seconds."""

    def num_reservations() -> int:
        with store.read() as connection:
            return connection.execute(select(func.count()).select_from(RESERVATIONS)).scalar_one()

    wait_for(lambda: not num_reservations(), "the end of all reservations")


def read_rows(store: Store) -> list[dict[str, Any]]:
    with store.read() as connection:
        return [dict(row) for row in connection.execute(select(REQUESTS)).mappings()]


def check(clients: Clients, rows: list[dict[str, Any]], kills: list[float]) -> None:
    assert clients.problems == []
    by_id = {row["id"]: row for row in rows}
    assert len(by_id) == len(rows)
    whole = cut = 0
    for seen in clients.seen:
        row = by_id.get(seen.id)
        if row is None:
            assert not seen.times and seen.usage is None, f"{seen.id} delivered {len(seen.times)} tokens without a row"
            continue
        assert row["key_name"] == seen.key and row["prompt_tokens"] > 0
        billed = row["completion_tokens"]
        if seen.usage is not None:
            usage = row["prompt_tokens"], billed
            assert usage == (seen.usage["prompt_tokens"], seen.usage["completion_tokens"]), (seen, row)
            whole += 1
            continue
        cut += 1
        known = [moment for moment in seen.times if moment * 1000 < row["ended_ms"]]
        assert billed >= len(known), (seen, row)
        if billed < len(seen.times):
            # Only what a killed server could not write in time may be missing. A busy client may read it much later.
            assert any(row["started_ms"] / 1000 < moment < seen.last + KILLED_SECONDS for moment in kills), (
                seen.id,
                seen.times[-3:],
                len(seen.times),
                seen.last,
                row,
                kills,
            )
    assert whole > MIN_WHOLE / 2 and cut > MIN_CUT / 2 and kills, (whole, cut, kills)
    for row in rows:
        assert 0 <= row["delivered_tokens"] <= row["completion_tokens"], row
        assert row["computed_tokens"] >= row["completion_tokens"] or row["status"] == 499, row
