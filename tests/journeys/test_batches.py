"""Batches of real servers that are killed at random moments: no line is lost or doubled, and the bytes are those of an
undisturbed run."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from sqlalchemy import URL, NullPool, create_engine, text
from sqlalchemy.exc import OperationalError

from tests.examples import slow_but
from tests.processes import ServerProcess, kill, server_process
from tests.service.databases import postgresql

pytestmark = pytest.mark.slow

NUM_LINES = 400
PATIENCE_SECONDS = 240
FINAL = ("completed", "failed", "expired", "cancelled")
LINES = b"".join(
    json.dumps(
        {
            "custom_id": f"line {number}",
            "method": "POST",
            "url": "/v1/completions",
            "body": {
                "model": "toy",
                "prompt": f"Say {number}",
                "max_tokens": 1 + number * 7 % 200,
                "logit_bias": {"256": -100},
                "n": 1 + number % 3 // 2,
                **({"temperature": 9} if number % 50 == 7 else {}),
            },
        }
    ).encode()
    + b"\n"
    for number in range(NUM_LINES)
)


def client_of(server: ServerProcess) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=5, timeout=30)


def submit(client: openai.OpenAI) -> str:
    file = client.files.create(file=("in.jsonl", LINES), purpose="batch")
    return client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h").id


class Place:
    """A database, and the folder of a server that uses it."""

    def __init__(self, folder: Path, url: URL | None = None) -> None:
        self.folder = folder
        self.url = url or URL.create("sqlite", database=str(folder / "onward.db"))
        self._engine = create_engine(self.url, poolclass=NullPool)

    @contextmanager
    def served(self) -> Iterator[ServerProcess]:
        url = self.url.render_as_string(hide_password=False).replace("+psycopg", "")
        flags = ("--data-dir", str(self.folder), "--database", url)
        with server_process(*flags, module="tests.journeys.mortal_server") as server:
            yield server

    def rows(self, query: str, **values: Any) -> list[Any]:
        """Return the rows of a query. Waits for a database that is starting."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                with self._engine.connect() as connection:
                    return list(connection.execute(text(query), values))
            except OperationalError:
                assert time.monotonic() < deadline, "the database does not answer"
                time.sleep(0.02)

    def ledger_ids(self, batch_id: str) -> list[str]:
        return [row.id for row in self.rows("SELECT id FROM requests WHERE batch = :id", id=batch_id)]

    @property
    def num_finished(self) -> int:
        return int(self.rows("SELECT count(*) FROM lines WHERE state > 1")[0][0])

    @property
    def num_interrupted(self) -> int:
        """The number of lines that are running, or were when a server was killed."""
        return int(self.rows("SELECT count(*) FROM lines WHERE state = 1 OR losses > 0")[0][0])

    def wait_for_lines(self, number: int) -> None:
        """Wait until this many more lines of the batch are finished, or all of them."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        first = self.num_finished
        while self.num_finished < min(first + number, NUM_LINES):
            assert time.monotonic() < deadline, "no line is finished"
            time.sleep(0.005)


Disturb = Callable[[ServerProcess, Place, random.Random], bool]
"""Disturbs a running server; returns whether lines were interrupted."""


def run_until_ended(place: Place, batch_id: str, disturb: Disturb | None, seed: int) -> tuple[bytes, bytes, list[str]]:
    """Serve until a batch has ended, with servers that `disturb` may end; return its files and ledger ids."""
    interrupted = False
    rng, deadline = random.Random(seed), time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        with place.served() as server, client_of(server) as client:
            if disturb is not None:
                interrupted = disturb(server, place, rng) or interrupted
            while server.popen.poll() is None and time.monotonic() < deadline:
                batch = client.batches.retrieve(batch_id)
                if batch.status in FINAL:
                    assert disturb is None or interrupted, "it ended before anything was disturbed"
                    assert batch.status == "completed" and batch.output_file_id and batch.error_file_id
                    assert batch.request_counts is not None and batch.request_counts.total == NUM_LINES
                    out, errors = (
                        client.files.content(each).content for each in (batch.output_file_id, batch.error_file_id)
                    )
                    return out, errors, place.ledger_ids(batch_id)
                time.sleep(0.05)
    raise AssertionError("the batch did not end")


def kill_server(server: ServerProcess, place: Place, rng: random.Random) -> bool:
    place.wait_for_lines(rng.randrange(1, NUM_LINES // 5))
    if rng.random() < 0.8:
        os.kill(server.popen.pid, signal.SIGKILL)
        server.popen.wait()
    return place.num_interrupted > 0


def kill_engine(server: ServerProcess, place: Place, rng: random.Random) -> bool:
    for _ in range(3):
        place.wait_for_lines(rng.randrange(1, NUM_LINES // 5))
        kill(*server.engines())
    return place.num_interrupted > 0


def accept_and_stop(place: Place) -> str:
    """Submit a batch to a server, and kill it. It may have computed some lines, whose bytes then stay."""
    with place.served() as server, client_of(server) as client:
        batch_id = submit(client)
        os.kill(server.popen.pid, signal.SIGKILL)
        server.popen.wait()
    return batch_id


def check_alike(quiet: tuple[bytes, bytes, list[str]], disturbed: tuple[bytes, bytes, list[str]]) -> None:
    """Check that no line is lost or doubled, and that the bytes are those of an undisturbed run."""
    assert disturbed[0] == quiet[0] and disturbed[1] == quiet[1]
    ids = [json.loads(line)["custom_id"] for line in (quiet[0] + quiet[1]).splitlines()]
    assert sorted(ids) == sorted(f"line {number}" for number in range(NUM_LINES))
    assert [json.loads(line)["custom_id"] for line in quiet[0].splitlines()] == [
        f"line {number}" for number in range(NUM_LINES) if number % 50 != 7
    ]
    billed = sorted(json.loads(line)["response"]["request_id"] for line in quiet[0].splitlines())
    assert sorted(disturbed[2]) == billed, "the ledger has a row for each line, once"


@pytest.mark.parametrize("what", [kill_server, kill_engine])
@pytest.mark.parametrize("seed", slow_but([], [1, 2], [1]))
def test_killed_servers_and_engines_lose_and_double_nothing(tmp_path: Path, what: Disturb, seed: int) -> None:
    accepted = Place(tmp_path / "accepted")
    batch_id = accept_and_stop(accepted)
    (tmp_path / "quiet").mkdir()
    for path in accepted.folder.glob("onward.db*"):
        (tmp_path / "quiet" / path.name).write_bytes(path.read_bytes())
    quiet = run_until_ended(Place(tmp_path / "quiet"), batch_id, None, seed)
    check_alike(quiet, run_until_ended(accepted, batch_id, what, seed))


@pytest.mark.parametrize("seed", slow_but([], [1, 2], [1]))
def test_a_killed_database_loses_and_doubles_nothing(tmp_path: Path, seed: int) -> None:
    """PostgreSQL, several times in the middle of a batch; it stays away for longer than a server is missed."""
    with postgresql() as database:

        def kill_database(server: ServerProcess, place: Place, rng: random.Random) -> bool:
            finished = []
            for _ in range(4):
                place.wait_for_lines(rng.randrange(1, NUM_LINES // 10))
                finished.append(place.num_finished)
                database.kill()
                time.sleep(rng.uniform(0.1, 2))
                database.start()
            assert server.popen.poll() is None, "a server outlives its database"
            return finished[1] < NUM_LINES

        accepted = Place(tmp_path / "accepted", database.new_database())
        batch_id = accept_and_stop(accepted)
        database.kill()  # and with it the server's connections, which would keep the database from being copied
        database.start()
        quiet = run_until_ended(Place(tmp_path / "quiet", database.copy_of(accepted.url)), batch_id, None, seed)
        check_alike(quiet, run_until_ended(accepted, batch_id, kill_database, seed))
