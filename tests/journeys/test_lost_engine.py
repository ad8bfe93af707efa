"""A server whose engine's process is killed, crashes or hangs: its clients get the same answers as without the loss."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest

from onward.ipc.worker_end import OOM_SCORE_OFFSET
from tests.folded import Folded
from tests.journeys.fatal_engine import FATAL
from tests.processes import ServerProcess, is_running, kill, server_process
from tests.waiting import PATIENCE_SECONDS, wait_for

if not sys.platform.startswith("linux"):
    pytest.skip("finds processes in /proc", allow_module_level=True)

LONG: dict[str, Any] = {"max_tokens": 800, "ignore_eos": True, "temperature": 1, "seed": 5}
STREAM: dict[str, Any] = {**LONG, "stream": True, "stream_options": {"include_usage": True}}
PROMPT = "once upon a time there was a fox"
REQUESTS: dict[str, dict[str, Any]] = {
    "stream": {**STREAM, "prompt": PROMPT},
    "greedy": {**STREAM, "prompt": PROMPT, "temperature": 0},
    "n": {**STREAM, "prompt": PROMPT, "n": 3},
    "best_of": {**LONG, "prompt": PROMPT, "n": 2, "best_of": 4},
    "logprobs": {**STREAM, "prompt": PROMPT, "logprobs": 3, "max_tokens": 400},
    "echo": {**STREAM, "prompt": PROMPT, "logprobs": 2, "echo": True, "n": 2, "max_tokens": 400},
    "stop": {**STREAM, "prompt": PROMPT, "stop": ["qqz", "zzq"]},
    "batch": {**STREAM, "prompt": [f"{number} foxes" for number in range(6)]},
    "penalties": {**STREAM, "prompt": PROMPT, "frequency_penalty": 0.5, "presence_penalty": 0.2},
    "prediction": {**STREAM, "prompt": PROMPT, "prediction": {"type": "content", "content": PROMPT * 20}},
    "grammar": {**STREAM, "prompt": PROMPT, "ignore_eos": False, "regex": "([a-z]{2,9} once upon a time,? )+", "n": 2},
    "whole": {**LONG, "prompt": PROMPT, "seed": 9},
    "tokens": {**STREAM, "prompt": [[97, 98, 99], [100, 101]]},
}
UNSEEDED: dict[str, Any] = {**STREAM, "prompt": PROMPT, "seed": None}


class Client:
    """Sends requests, each on a thread, and counts those that have received something."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._pool = ThreadPoolExecutor(40)
        self._begun = threading.Semaphore(0)

    def send(self, fields: dict[str, Any]) -> Future[Folded]:
        return self._pool.submit(self._run, fields)

    def wait_until_begun(self, count: int) -> None:
        """Wait until this many streams have received their first chunk."""
        for _ in range(count):
            assert self._begun.acquire(timeout=PATIENCE_SECONDS)

    def _run(self, fields: dict[str, Any]) -> Folded:
        folded = Folded()
        with httpx2.stream(
            "POST", f"{self._url}/v1/completions", json={"model": "toy", **fields}, timeout=PATIENCE_SECONDS
        ) as answer:
            if not fields.get("stream") or answer.status_code != 200:
                folded.take(json.loads(answer.read()))
                return folded
            is_done = False
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    folded.take(json.loads(line[6:]))
                    self._begun.release()
                is_done |= line == "data: [DONE]"
            assert is_done or folded.error
        return folded


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    """A server that treats an engine as hanging when it is silent for some seconds."""
    with server_process("--engine-process", "on", "--engine-timeout", "1", "--log-level", "warning") as found:
        yield found


@pytest.fixture(scope="module")
def undisturbed(server: ServerProcess) -> dict[str, Folded]:
    """The answer to each request from an undisturbed engine."""
    client = Client(server.url)
    answers = {name: client.send(fields) for name, fields in REQUESTS.items()}
    return {name: answer.result(PATIENCE_SECONDS) for name, answer in answers.items()}


def metric(server: ServerProcess, name: str) -> float:
    text = httpx2.get(f"{server.url}/metrics", timeout=PATIENCE_SECONDS).text
    found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
    assert found, f"{name} is not in the metrics"
    return float(found[1])


def health(server: ServerProcess) -> httpx2.Response:
    return httpx2.get(f"{server.url}/health", timeout=PATIENCE_SECONDS)


def check_survives(server: ServerProcess, undisturbed: dict[str, Folded], harm: Callable[[int], None]) -> None:
    """Send all requests, damage the engine once every stream has begun, and compare."""
    before = metric(server, 'onward_engine_recovery_seconds_count{model="toy"}')
    engine = server.engine()
    client = Client(server.url)
    answers = {name: client.send(fields) for name, fields in REQUESTS.items()}
    unseeded = client.send(UNSEEDED)
    client.wait_until_begun(10)
    harm(engine)
    last = client.send(REQUESTS["greedy"])  # so that it has something to do, however fast it was
    for name, answer in answers.items():
        assert answer.result(PATIENCE_SECONDS) == undisturbed[name], name
    assert last.result(PATIENCE_SECONDS) == undisturbed["greedy"]
    (choice,) = unseeded.result(PATIENCE_SECONDS).choices.values()
    assert choice["finish"] == "length" and unseeded.result().num_completion_tokens == LONG["max_tokens"]
    wait_for(
        lambda: metric(server, 'onward_engine_recovery_seconds_count{model="toy"}') > before, "the count of recoveries"
    )
    assert server.engine() != engine
    wait_for(lambda: health(server).json()["status"] == "ready", "the next engine")
    wait_for(lambda: metric(server, 'onward_kv_blocks_used{model="toy"}') == 0, "free blocks")
    assert metric(server, 'onward_engine_running{model="toy"}') == 0


@pytest.mark.slow
def test_no_request_of_any_kind_notices_that_its_engine_was_killed(
    server: ServerProcess, undisturbed: dict[str, Folded]
) -> None:
    check_survives(server, undisturbed, lambda engine: os.kill(engine, signal.SIGKILL))
    words = ("the engine was lost", "SIGKILL", "resumed")
    wait_for(lambda: any(all(each in line for each in words) for line in server.output), "the line of the log")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "reason"), [(signal.SIGSEGV, "crash"), (signal.SIGABRT, "crash"), (signal.SIGSTOP, "hang")]
)
def test_no_request_of_any_kind_notices_a_crash_or_a_hang(
    server: ServerProcess, undisturbed: dict[str, Folded], number: signal.Signals, reason: str
) -> None:
    count = f'onward_engine_restarts_total{{model="toy",reason="{reason}"}}'
    before = metric(server, count)
    check_survives(server, undisturbed, lambda engine: os.kill(engine, number))
    assert metric(server, count) > before, "on a busy machine the next engine may be taken for a hanging one, too"


@pytest.mark.slow
def test_the_system_ends_an_engine_before_the_server_when_memory_runs_out(server: ServerProcess) -> None:
    engine = server.engine()
    scores = [int(Path(f"/proc/{pid}/oom_score_adj").read_text(encoding="utf-8")) for pid in (engine, server.popen.pid)]
    assert scores[0] == min(scores[1] + OOM_SCORE_OFFSET, 1000)


@pytest.mark.slow
def test_health_says_that_an_engine_is_being_started_again(server: ServerProcess) -> None:
    successor = stopped_while_it_starts(server)
    try:
        assert httpx2.get(f"{server.url}/live", timeout=PATIENCE_SECONDS).status_code == 200
    finally:
        os.kill(successor, signal.SIGCONT)
    fields = {"model": "toy", "prompt": "a", "max_tokens": 2}
    answer = httpx2.post(f"{server.url}/v1/completions", json=fields, timeout=PATIENCE_SECONDS)
    assert answer.status_code == 200, "requests wait for the next engine"
    wait_for(lambda: health(server).status_code == 200, "200")


def stopped_while_it_starts(server: ServerProcess) -> int:
    """Kill the engine, and stop the next one before it is ready, which `/health` says. Return its process."""
    engine = server.engine()
    while True:
        os.kill(engine, signal.SIGKILL)
        engine = server.engine(other_than=engine)
        os.kill(engine, signal.SIGSTOP)
        if health(server).status_code == 503:
            return engine  # else this machine was too slow: it was ready before it was stopped


@pytest.mark.slow
def test_a_server_whose_engines_are_lost_again_and_again_ends_with_a_code_of_its_own() -> None:
    engines = set[int]()
    with server_process("--engine-process", "on") as server:

        def ends() -> bool:
            found = server.engines()
            engines.update(found)
            kill(*found)
            return server.popen.poll() is not None

        wait_for(ends, "the end of the server")
        assert server.popen.returncode == 70
        assert len(engines) > 1 and not any(map(is_running, engines))
    words = "no other is started: it was lost repeatedly without any progress"
    wait_for(lambda: any(words in line for line in server.output), "the line of the log")


@pytest.mark.slow
def test_a_server_can_be_stopped_while_its_engine_hangs() -> None:
    with server_process("--engine-process", "on", "--drain", "0.2") as server:
        engine = server.engine()
        client = Client(server.url)
        answer = client.send({**STREAM, "prompt": PROMPT, "n": 64, "max_tokens": 1900})
        client.wait_until_begun(1)
        os.kill(engine, signal.SIGSTOP)
        server.popen.send_signal(signal.SIGTERM)
        assert answer.result(PATIENCE_SECONDS).error["type"] == "server_error"
        assert server.popen.wait(PATIENCE_SECONDS) == 0
        assert not Path(f"/proc/{engine}").exists()


@pytest.mark.slow
def test_a_request_that_ends_engines_ends_itself_and_no_other(undisturbed: dict[str, Folded]) -> None:
    """Two of them, from clients of their own, together with one request of every kind."""
    with server_process("--engine-process", "on", module="tests.journeys.fatal_engine") as server:
        client = Client(server.url)
        answers = {name: client.send(fields) for name, fields in REQUESTS.items()}
        client.wait_until_begun(10)
        poisons = [client.send({"prompt": f"a {FATAL}", "max_tokens": 5, "stream": stream}) for stream in (True, False)]
        for poison in poisons:
            error = poison.result(PATIENCE_SECONDS).error
            assert error["type"] == "server_error" and "Do not send it again unchanged" in error["message"]
        for name, answer in answers.items():
            assert answer.result(PATIENCE_SECONDS) == undisturbed[name], name
        assert metric(server, 'onward_engine_poisoned_requests_total{model="toy"}') == 2
        assert httpx2.get(f"{server.url}/live", timeout=PATIENCE_SECONDS).status_code == 200
    wait_for(lambda: sum("was ended as the cause" in line for line in server.output) == 2, "two lines of the log")


@pytest.mark.slow
def test_a_server_whose_engine_in_a_thread_crashes_fails_its_requests_and_ends() -> None:
    with server_process("--engine-process", "off", module="tests.journeys.fatal_engine") as server:
        client = Client(server.url)
        running = client.send({**STREAM, "prompt": PROMPT, "n": 64, "max_tokens": 1900})
        client.wait_until_begun(1)
        assert client.send({"prompt": FATAL}).result(PATIENCE_SECONDS).error["type"] == "server_error"
        assert running.result(PATIENCE_SECONDS).error["type"] == "server_error"
        assert server.popen.wait(PATIENCE_SECONDS) == 70
