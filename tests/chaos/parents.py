"""Servers that are killed: nothing of them is left running, and their port is free at once."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable

from tests.chaos.disturb import MODEL
from tests.chaos.workload import Connection, make_request
from tests.processes import ServerProcess, free_port, is_running, server_process
from tests.waiting import PATIENCE_SECONDS, wait_for

NUM_STREAMS = 6
MOMENTS = ("streaming", "streaming", "its engine is stopped", "starting")
"""When a server is killed."""


def kill_servers(count: int, seed: int, say: Callable[[str], None] = lambda line: None) -> None:
    """Start servers on one port, one after the other, and kill each. Raises AssertionError if anything is left."""
    rng = random.Random(seed)
    port = free_port()
    for number in range(count):
        moment = MOMENTS[number % len(MOMENTS)]
        say(f"{number + 1:4} server killed: {moment}")
        if moment == "starting":
            engines = _kill_starting(port, rng)
        else:
            engines = _kill_streaming(port, rng, stops_engine=moment != "streaming")
        assert engines
        _bind(port)
        wait_for(lambda: not any(map(is_running, engines)), "the end of the engines")  # noqa: B023


def _kill_streaming(port: int, rng: random.Random, *, stops_engine: bool) -> list[int]:
    """Kill a server while it answers; return the processes that its engines had."""
    with server_process("--port", str(port), "--engine-process", "on", model=MODEL) as server:
        has_begun = threading.Semaphore(0)
        threads = [threading.Thread(target=_stream, args=(server, n, has_begun)) for n in range(NUM_STREAMS)]
        for thread in threads:
            thread.start()
        for _ in threads:
            assert has_begun.acquire(timeout=PATIENCE_SECONDS)
        time.sleep(rng.random() * 0.2)
        engines = server.engines()
        if stops_engine:
            os.kill(engines[0], signal.SIGSTOP)
        server.popen.kill()
        server.popen.wait()
        for thread in threads:
            thread.join()
    return engines


def _stream(server: ServerProcess, number: int, has_begun: threading.Semaphore) -> None:
    """Send a request, and receive what comes until the server is gone."""
    try:
        fields = make_request(number) | {"stream": True, "best_of": None}
        with Connection(server.url, MODEL, fields) as connection:
            for _ in connection.chunks():
                has_begun.release()
    except Exception:
        pass  # any error: the server was killed
    finally:
        has_begun.release()


def _kill_starting(port: int, rng: random.Random) -> list[int]:
    """Kill a server after it started the process of its engine; return that process."""
    command = [sys.executable, "-m", "onward", "serve", "--port", str(port), "--model", MODEL]
    popen = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True)
    server = ServerProcess("", popen, [])
    try:
        wait_for(lambda: bool(server.engines()), "the process of the engine")
        time.sleep(rng.random() * 0.3)
        return server.engines()
    finally:
        popen.kill()
        popen.wait()


def _bind(port: int) -> None:
    """Bind a port as a server does. Raises OSError if it is in use."""
    socket.create_server(("127.0.0.1", port)).close()
