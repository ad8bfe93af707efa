"""Signals at any moment: the server ends cleanly, and leaves no process running."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from tests.examples import slow_but
from tests.processes import children_of, is_running
from tests.waiting import PATIENCE_SECONDS, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform == "win32", reason="signals of Unix")]

ENDING = (signal.SIGINT, signal.SIGTERM)
ANY = (*ENDING, signal.SIGHUP)
"""SIGHUP ends those that have a terminal: these have whatever the tests have."""
HANGING = """
import sys, time
from onward.cli.main import main
from onward.compose import spare, worker
from onward.runtimes.toy.model import ToyModel

spare.WORKER = (sys.executable, __file__, "worker")

def hang(self, rows, before_compute=lambda: None):
    before_compute()
    open(__file__ + ".hangs", "w").close()
    time.sleep(1000)

ToyModel.evaluate = hang
if sys.argv[1:] == ["worker"]:
    worker.main()
main()
"""


@contextmanager
def server(*flags: str, program: tuple[str, ...] = ("-m", "onward")) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server that is ready, and its URL."""
    command = [sys.executable, *program, "serve", "--port", "0", "--model", "toy", *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stderr is not None
    try:
        ready = process.stdout.readline()
        assert ready.startswith("Onward is ready at "), process.communicate(timeout=PATIENCE_SECONDS)
        yield process, ready.split()[4]
    finally:
        process.kill()
        process.communicate()


def wait_until_gone(pids: list[int]) -> None:
    wait_for(lambda: not any(map(is_running, pids)))


def request(url: str, *, max_tokens: int) -> subprocess.Popen[bytes]:
    """A client that streams a completion, and ignores failures."""
    code = (
        "import sys, json, urllib.request as u\n"
        "body = json.dumps({'model': 'toy', 'prompt': 'a', 'max_tokens': int(sys.argv[2]), 'stream': True}).encode()\n"
        "u.urlopen(u.Request(sys.argv[1] + '/completions', body, {'content-type': 'application/json'})).read()"
    )
    return subprocess.Popen([sys.executable, "-c", code, url, str(max_tokens)], stderr=subprocess.DEVNULL)


def send_at_random(process: subprocess.Popen[str], rng: random.Random) -> None:
    for number in (*rng.choices(ANY, k=rng.randint(0, 3)), rng.choice(ENDING)):
        process.send_signal(number)
        time.sleep(rng.choice([0, 0.001, 0.01, 0.1]) * rng.random())


@pytest.mark.parametrize("seed", slow_but([], range(30), range(10)))
def test_any_sequence_of_signals_is_a_clean_end(seed: int) -> None:
    """While a stream runs or not, in a process or a thread: exit code 0, or that of the second signal."""
    rng = random.Random(seed)
    with server("--engine-process", rng.choice(["on", "off"]), "--drain", "1") as (process, url):
        engines = children_of(process.pid)
        client = None
        if rng.random() < 0.5:
            client = request(url, max_tokens=1500)
            time.sleep(rng.random() * 0.3)
        send_at_random(process, rng)
        _, log = process.communicate(timeout=PATIENCE_SECONDS)
        assert process.returncode in (0, 128 + signal.SIGINT, 128 + signal.SIGTERM), log
        assert "Traceback" not in log, log
        if client is not None:
            client.wait(PATIENCE_SECONDS)
    wait_until_gone(engines)


@pytest.mark.parametrize("process", ["on", "off"])
def test_a_second_signal_ends_a_server_whose_engine_hangs(process: str, tmp_path: Path) -> None:
    program = tmp_path / "hanging.py"
    program.write_text(HANGING, encoding="utf-8")
    with server("--engine-process", process, program=(str(program),)) as (running, url):
        engines = children_of(running.pid)
        client = request(url, max_tokens=9)
        wait_for(program.with_name("hanging.py.hangs").exists)
        running.send_signal(signal.SIGINT)
        wait_for(
            lambda: (
                httpx2.get(url.removesuffix("/v1") + "/health", timeout=PATIENCE_SECONDS).json()["status"] == "draining"
            )
        )
        running.send_signal(signal.SIGINT)
        running.communicate(timeout=PATIENCE_SECONDS)
        assert running.returncode == 128 + signal.SIGINT
        client.wait(PATIENCE_SECONDS)
    wait_until_gone(engines)


@pytest.mark.parametrize("number", ENDING)
def test_a_signal_while_the_model_loads_ends_the_server_at_once(number: signal.Signals, tmp_path: Path) -> None:
    program = tmp_path / "slow.py"
    program.write_text(
        HANGING.replace("ToyModel.evaluate = hang", "ToyModel.__init__ = lambda *_, **__: hang(0, 0)"), encoding="utf-8"
    )
    command = [sys.executable, str(program), "serve", "--port", "0", "--model", "toy"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for(program.with_name("slow.py.hangs").exists)
    engines = children_of(process.pid)
    process.send_signal(number)
    _, log = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode in (-number, 128 + number) and "Traceback" not in log, log
    wait_until_gone(engines)


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
def test_the_signals_that_reopen_logs_elsewhere_do_nothing(number: signal.Signals) -> None:
    with server() as (process, _):
        for pid in (process.pid, *children_of(process.pid)):
            os.kill(pid, number)
        time.sleep(0.1)
        assert process.poll() is None
        process.terminate()
        process.communicate(timeout=PATIENCE_SECONDS)
        assert process.returncode == 0
