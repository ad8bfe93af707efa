"""Batches of real servers that are killed at random moments: no line is lost or doubled, and the bytes are those of an
undisturbed run."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import openai
import pytest

from tests.processes import ServerProcess, server_process

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
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0, timeout=30)


def submit(client: openai.OpenAI) -> str:
    file = client.files.create(file=("in.jsonl", LINES), purpose="batch")
    return client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h").id


def ledger_ids(folder: Path, batch_id: str) -> list[str]:
    with sqlite3.connect(folder / "onward.db") as database:
        return [row[0] for row in database.execute("SELECT id FROM requests WHERE batch = ?", [batch_id])]


def wait_for_lines(folder: Path, number: int) -> None:
    """Return when so many more lines of the batch are finished, or all are: however fast the machine is, something is
    left to disturb."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    first = num_finished(folder)
    while num_finished(folder) < min(first + number, NUM_LINES):
        assert time.monotonic() < deadline, "no line is finished"
        time.sleep(0.005)


def num_finished(folder: Path) -> int:
    with sqlite3.connect(folder / "onward.db") as database:
        (number,) = database.execute("SELECT count(*) FROM lines WHERE state > 1").fetchone()
    return int(number)


def num_interrupted(folder: Path) -> int:
    """Return how many lines of batches ran, or had run, when a server was killed."""
    with sqlite3.connect(folder / "onward.db") as database:
        (number,) = database.execute("SELECT count(*) FROM lines WHERE state = 1 OR losses > 0").fetchone()
    return int(number)


def copy_of_accepted(folder: Path, into: Path) -> None:
    """Copy a database at rest."""
    into.mkdir()
    for path in folder.glob("onward.db*"):
        (into / path.name).write_bytes(path.read_bytes())


def run_until_ended(
    folder: Path, batch_id: str, disturb: Callable[[ServerProcess, Path, random.Random], None] | None, seed: int
) -> tuple[bytes, bytes, list[str]]:
    """Serve until a batch has ended, with servers that `disturb` may end; return its files and ledger ids."""
    interrupted = False
    rng, deadline = random.Random(seed), time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        with server_process("--data-dir", str(folder), module="tests.journeys.mortal_server") as server:
            client = client_of(server)
            if disturb is not None:
                disturb(server, folder, rng)
                interrupted = interrupted or num_interrupted(folder) > 0
            while server.popen.poll() is None and time.monotonic() < deadline:
                batch = client.batches.retrieve(batch_id)
                if batch.status in FINAL:
                    assert disturb is None or interrupted, "it ended before anything was disturbed"
                    assert batch.status == "completed" and batch.output_file_id and batch.error_file_id
                    assert batch.request_counts is not None and batch.request_counts.total == NUM_LINES
                    out, errors = (
                        client.files.content(each).content for each in (batch.output_file_id, batch.error_file_id)
                    )
                    return out, errors, ledger_ids(folder, batch_id)
                time.sleep(0.05)
    raise AssertionError("the batch did not end")


def kill_server(server: ServerProcess, folder: Path, rng: random.Random) -> None:
    wait_for_lines(folder, rng.randrange(1, NUM_LINES // 5))
    if rng.random() < 0.8:
        os.kill(server.popen.pid, signal.SIGKILL)
        server.popen.wait()


def kill_engine(server: ServerProcess, folder: Path, rng: random.Random) -> None:
    for _ in range(3):
        wait_for_lines(folder, rng.randrange(1, NUM_LINES // 5))
        for pid in server.engines():
            os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize("what", [kill_server, kill_engine])
@pytest.mark.parametrize("seed", [1, 2])
def test_killed_servers_and_engines_lose_and_double_nothing(
    tmp_path: Path, what: Callable[[ServerProcess, Path, random.Random], None], seed: int
) -> None:
    accepted = tmp_path / "accepted"
    with server_process("--data-dir", str(accepted), module="tests.journeys.mortal_server") as server:
        batch_id = submit(
            client_of(server)
        )  # some of it may be computed here: lines that are, have their bytes already
        os.kill(server.popen.pid, signal.SIGKILL)
        server.popen.wait()
    copy_of_accepted(accepted, tmp_path / "quiet")
    quiet = run_until_ended(tmp_path / "quiet", batch_id, None, seed)
    disturbed = run_until_ended(accepted, batch_id, what, seed)
    assert disturbed[0] == quiet[0] and disturbed[1] == quiet[1]
    ids = [json.loads(line)["custom_id"] for line in (quiet[0] + quiet[1]).splitlines()]
    assert sorted(ids) == sorted(f"line {number}" for number in range(NUM_LINES))
    assert [json.loads(line)["custom_id"] for line in quiet[0].splitlines()] == [
        f"line {number}" for number in range(NUM_LINES) if number % 50 != 7
    ]
    billed = sorted(json.loads(line)["response"]["request_id"] for line in quiet[0].splitlines())
    assert sorted(disturbed[2]) == billed, "the ledger has a row for each line, once"
