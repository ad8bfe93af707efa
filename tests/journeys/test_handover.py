"""Servers that replace each other under load: not one request fails, kept streams and batches continue, and the ledger
has all of it once."""

from __future__ import annotations

import itertools
import json
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.processes import ServerProcess, server_process
from tests.waiting import PATIENCE_SECONDS, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform == "win32", reason="needs Unix sockets")]

NUM_CLIENTS = 8
KEPT_TOKENS = 1_500
NUM_LINES, LINE_TOKENS = 150, 100


@contextmanager
def successor(port: str, environment: dict[str, str], *flags: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "onward", "serve", "--model", "toy", "--port", port, "--take-over", *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)
    try:
        assert process.stdout is not None and process.stdout.readline().startswith("Onward is ready at ")
        yield process
    finally:
        process.terminate()
        process.communicate()


class Clients:
    """Send requests, whole and streamed, on connections that they keep and on new ones, until `stop`."""

    def __init__(self, url: str, key: str | None = None) -> None:
        self._url = url
        self._headers = {} if key is None else {"authorization": f"Bearer {key}"}
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(NUM_CLIENTS)]
        self.problems: list[str] = []
        self.num_answers = 0
        self.num_tokens = 0
        """Of completions, as `usage` says."""

    def __enter__(self) -> Clients:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Return when the clients have their last answers."""
        self._done.set()
        for thread in self._threads:
            thread.join(PATIENCE_SECONDS)

    def _run(self, number: int) -> None:
        with httpx2.Client(timeout=PATIENCE_SECONDS) as client:
            for turn in itertools.count():
                if self._done.is_set():
                    return
                try:
                    self._ask(client, number, turn)
                except (httpx2.HTTPError, AssertionError) as problem:
                    self.problems.append(repr(problem))
                    return

    def _ask(self, client: httpx2.Client, number: int, turn: int) -> None:
        fields = {"model": "toy", "prompt": f"{number} {turn % 5}", "seed": turn % 5, "max_tokens": 40}
        is_stream = bool((number + turn) % 2)
        headers = self._headers | ({"connection": "close"} if number % 4 == 3 else {})
        if is_stream:
            fields |= {"stream": True, "stream_options": {"include_usage": True}}
        answer = client.post(f"{self._url}/v1/completions", json=fields, headers=headers)
        assert answer.status_code == 200, answer.text
        last = answer.text
        if is_stream:
            assert answer.text.endswith("data: [DONE]\n\n") and '"error"' not in answer.text, answer.text
            last = answer.text.split("\n\n")[-3].removeprefix("data: ")
        num_tokens = json.loads(last)["usage"]["completion_tokens"]
        assert num_tokens
        with self._lock:
            self.num_answers += 1
            self.num_tokens += num_tokens


def kept_stream(url: str) -> tuple[str, int]:
    """The id and the number of the last event of a long stream whose connection was lost after some events."""
    fields = {"model": "toy", "prompt": "x", "max_tokens": KEPT_TOKENS, "ignore_eos": True, "seed": 1, "stream": True}
    last = 0
    with httpx2.stream(
        "POST",
        f"{url}/v1/completions",
        json=fields | {"stream_options": {"resumable": True}},
        timeout=PATIENCE_SECONDS,
    ) as stream:
        for line in stream.iter_lines():
            if line.startswith("id: "):
                last = int(line.removeprefix("id: "))
            elif line.startswith("data: ") and last == 5:
                event: dict[str, Any] = json.loads(line.removeprefix("data: "))
                return event["id"], last
    raise AssertionError(f"the stream ended: {stream.status_code}")


def test_no_request_fails_while_servers_replace_each_other(tmp_path_factory: pytest.TempPathFactory) -> None:
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path_factory.mktemp("run"))}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", environment["XDG_RUNTIME_DIR"])
        data = tmp_path_factory.mktemp("data")
        with server_process("--data-dir", str(data)) as first:
            upgrade(first, environment, data)


def submitted(url: str) -> str:
    """The id of a batch that was submitted."""
    lines = [
        {
            "custom_id": str(number),
            "method": "POST",
            "url": "/v1/completions",
            "body": {"model": "toy", "prompt": str(number), "max_tokens": LINE_TOKENS, "ignore_eos": True},
        }
        for number in range(NUM_LINES)
    ]
    file = "\n".join(map(json.dumps, lines)).encode()
    form = {"purpose": "batch"}, {"file": ("in.jsonl", file)}
    uploaded = httpx2.post(f"{url}/v1/files", data=form[0], files=form[1], timeout=PATIENCE_SECONDS).json()
    asked = {"input_file_id": uploaded["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
    id: str = httpx2.post(f"{url}/v1/batches", json=asked, timeout=PATIENCE_SECONDS).json()["id"]
    return id


def sums(data: Path, query: str) -> tuple[int, int]:
    """Number and completion tokens of the ledger's rows that a condition matches."""
    with closing(sqlite3.connect(data / "onward.db")) as database:
        (found,) = database.execute(f"SELECT count(*), coalesce(sum(completion_tokens), 0) FROM requests WHERE {query}")
    return int(found[0]), int(found[1])


def upgrade(first: ServerProcess, environment: dict[str, str], data: Path) -> None:
    port, flags = first.url.rpartition(":")[2], ("--data-dir", str(data))
    id, last = kept_stream(first.url)
    batch = f"{first.url}/v1/batches/{submitted(first.url)}"
    kept = f"{first.url}/v1/completions/{id}"
    with ExitStack() as servers, Clients(first.url) as clients:
        second = servers.enter_context(successor(port, environment, *flags))
        rest = httpx2.get(kept, headers={"last-event-id": str(last)}, timeout=PATIENCE_SECONDS)
        assert f"id: {last + 1}\n" in rest.text and rest.text.endswith("data: [DONE]\n\n")
        assert httpx2.delete(kept, timeout=PATIENCE_SECONDS).status_code == 200
        third = servers.enter_context(successor(port, environment, *flags))
        assert second.wait(PATIENCE_SECONDS) == 0
        servers.enter_context(successor(port, environment, *flags))
        assert third.wait(PATIENCE_SECONDS) == 0 and first.popen.wait(PATIENCE_SECONDS) == 0
        wait_for(lambda: clients.problems or clients.num_answers > NUM_CLIENTS)
        clients.stop()
        assert not clients.problems
        wait_for(lambda: httpx2.get(batch, timeout=PATIENCE_SECONDS).json()["status"] == "completed")
        found = httpx2.get(batch, timeout=PATIENCE_SECONDS).json()
        output = httpx2.get(f"{first.url}/v1/files/{found['output_file_id']}/content", timeout=PATIENCE_SECONDS).text
        assert [json.loads(line)["custom_id"] for line in output.splitlines()] == list(map(str, range(NUM_LINES)))
        billed = clients.num_answers + 1, clients.num_tokens + KEPT_TOKENS
        wait_for(lambda: sums(data, "batch = ''")[0] >= billed[0])
        wait_for(lambda: sums(data, "batch != ''")[0] >= NUM_LINES)
    assert sums(data, "batch = ''") == billed
    assert sums(data, "batch != ''") == (NUM_LINES, NUM_LINES * LINE_TOKENS)
