"""Servers that replace each other under load: not one request fails, and kept streams go on."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx2
import pytest

from tests.processes import ServerProcess, server_process
from tests.waiting import PATIENCE_SECONDS, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform == "win32", reason="needs Unix sockets")]

NUM_CLIENTS = 8


@contextmanager
def successor(port: str, environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "onward", "serve", "--model", "toy", "--port", port, "--take-over"]
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
        answer = client.post(f"{self._url}/v1/completions", json=fields | {"stream": is_stream}, headers=headers)
        assert answer.status_code == 200, answer.text
        if is_stream:
            assert answer.text.endswith("data: [DONE]\n\n") and '"error"' not in answer.text, answer.text
        else:
            assert answer.json()["usage"]["completion_tokens"]
        with self._lock:
            self.num_answers += 1


def kept_stream(url: str) -> tuple[str, int]:
    """The id and the number of the last event of a long stream whose connection was lost after some events."""
    fields = {"model": "toy", "prompt": "x", "max_tokens": 1_500, "ignore_eos": True, "seed": 1, "stream": True}
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
        with server_process() as first:
            upgrade(first, environment)


def upgrade(first: ServerProcess, environment: dict[str, str]) -> None:
    port = first.url.rpartition(":")[2]
    id, last = kept_stream(first.url)
    kept = f"{first.url}/v1/completions/{id}"
    with ExitStack() as servers, Clients(first.url) as clients:
        second = servers.enter_context(successor(port, environment))
        rest = httpx2.get(kept, headers={"last-event-id": str(last)}, timeout=PATIENCE_SECONDS)
        assert f"id: {last + 1}\n" in rest.text and rest.text.endswith("data: [DONE]\n\n")
        assert httpx2.delete(kept, timeout=PATIENCE_SECONDS).status_code == 200
        third = servers.enter_context(successor(port, environment))
        assert second.wait(PATIENCE_SECONDS) == 0
        servers.enter_context(successor(port, environment))
        assert third.wait(PATIENCE_SECONDS) == 0 and first.popen.wait(PATIENCE_SECONDS) == 0
        wait_for(lambda: clients.problems or clients.num_answers > NUM_CLIENTS)
        clients.stop()
        assert not clients.problems
