"""What an abusive request costs everybody else: the longest delay of a stream and of `/health` meanwhile.

For each request a new server of `--model` is started, from this source and, with `--before PATH`, from the `src` folder
of another checkout. `python -m benchmarks.abuse`.
"""

from __future__ import annotations

import argparse
import http.client
import json
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks import measure
from benchmarks.abusive_requests import ABUSIVE_REQUESTS, AbusiveRequest
from benchmarks.measure import BenchmarkError
from benchmarks.models import model_id
from benchmarks.processes import process_tree, resident_memory
from benchmarks.server_process import Server, serve

NOTHING = "nothing"
"""The name of the measurement without an abusive request."""
NOTHING_SECONDS = 2.0
POLL_SECONDS = 0.005
NUM_DELAYS_BEFORE = 20
"""Delays that each observer has seen before the request is sent."""
AFTER_SECONDS = 0.3
"""How long is observed after the end of the request's answer."""
GUARD_SECONDS = 120.0
READ_BYTES = 1 << 20
QUEUE = AbusiveRequest(
    "9 × 128 choices",
    lambda model, num_bytes: json.dumps(
        {"model": model, "prompt": ["Once"] * 9, "n": 128, "max_tokens": 500, "ignore_eos": True}
    ).encode(),
)
"""More choices than have room in the queue and on the rows of a server."""
STREAM: dict[str, Any] = {"prompt": "Once", "max_tokens": 400, "stream": True, "ignore_eos": True}


@dataclass(frozen=True, slots=True)
class Cost:
    """What was seen during one request. Delays in milliseconds, memory in bytes above what was resident before.

    `status`: of its answer; 0 if there was none within the limit. `num_refused`: streams that got an error.
    """

    health_ms: float
    stream_ms: float
    memory: int | None
    status: int
    num_bytes: int
    seconds: float
    num_refused: int


class Observer:
    """A thread that repeats `observe` and records delays, until `stop`."""

    def __init__(self, server: Server) -> None:
        self.host = urlsplit(server.url).netloc
        self.num_refused = 0
        self._delays: list[tuple[float, float]] = []
        """When each delay ended, and its seconds."""
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def observe(self) -> None:
        """Send one request, and record delays. May raise OSError."""
        raise NotImplementedError

    def record(self, began: float) -> float:
        """Record a delay that ends now; return the time."""
        now = time.perf_counter()
        self._delays.append((now, now - began))
        return now

    def wait_until_busy(self) -> None:
        """Wait until some delays were recorded. Raises BenchmarkError if there are none."""
        deadline = time.monotonic() + GUARD_SECONDS
        while len(self._delays) < NUM_DELAYS_BEFORE:
            if time.monotonic() > deadline:
                raise BenchmarkError("the server does not answer")
            time.sleep(0.01)

    def stop(self) -> None:
        self._is_stopping.set()
        self._thread.join(GUARD_SECONDS)

    def longest_ms(self, since: float) -> float:
        """Return the longest delay that ended after `since`, or the time until now if there was none."""
        found = [delay for ended, delay in self._delays if ended >= since]
        return max(found, default=time.perf_counter() - since) * 1e3

    def _run(self) -> None:
        while not self._is_stopping.is_set():
            try:
                self.observe()
            except (OSError, http.client.HTTPException):
                self.num_refused += 1
                time.sleep(0.05)

    @property
    def is_stopping(self) -> bool:
        return self._is_stopping.is_set()


class HealthPoller(Observer):
    """Requests `/health` in a loop. A delay lasts from the request to its answer."""

    def observe(self) -> None:
        connection = http.client.HTTPConnection(self.host, timeout=GUARD_SECONDS)
        try:
            while not self.is_stopping:
                began = time.perf_counter()
                connection.request("GET", "/health")
                connection.getresponse().read()
                self.record(began)
                time.sleep(POLL_SECONDS)
        finally:
            connection.close()


class StreamReader(Observer):
    """Reads one stream after the other. A delay lasts from one event to the next; for the first, from the request."""

    def __init__(self, server: Server, model: str) -> None:
        self._body = json.dumps({"model": model, **STREAM}).encode()
        super().__init__(server)

    def observe(self) -> None:
        connection = http.client.HTTPConnection(self.host, timeout=GUARD_SECONDS)
        try:
            last = time.perf_counter()
            connection.request("POST", "/v1/completions", self._body, {"content-type": "application/json"})
            response = connection.getresponse()
            if response.status != 200:
                raise http.client.HTTPException(f"status {response.status}")
            while not self.is_stopping and response.read1(READ_BYTES):
                last = self.record(last)
        finally:
            connection.close()


def send(server: Server, request: AbusiveRequest, body: bytes, limit: float) -> tuple[int, int]:
    """Send a request and read its answer, for at most `limit` seconds; return its status and how many bytes came.

    The status is 0 if there was none.
    """
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=limit)
    status = num_bytes = 0
    deadline = time.monotonic() + limit
    try:
        try:
            connection.request("POST", request.path, body, {"content-type": "application/json"})
        except (BrokenPipeError, ConnectionResetError):
            pass  # the server answered before it had the whole body
        response = connection.getresponse()
        status = response.status
        while time.monotonic() < deadline and (data := response.read1(READ_BYTES)):
            num_bytes += len(data)
    except (OSError, http.client.HTTPException):
        pass
    finally:
        connection.close()
    return status, num_bytes


def cost_of(server: Server, model: str, request: AbusiveRequest | None, num_bytes: int, limit: float) -> Cost:
    """Send `request` while a stream runs and `/health` is polled. None: only observe these two."""
    body = request.make_body(model, num_bytes) if request else b""
    health, stream = HealthPoller(server), StreamReader(server, model)
    try:
        health.wait_until_busy()
        stream.wait_until_busy()
        before = _begin_peak(server.pid)
        began = time.perf_counter()
        status = received = 0
        if request is None:
            time.sleep(NOTHING_SECONDS)
        else:
            status, received = send(server, request, body, limit)
        seconds = time.perf_counter() - began
        time.sleep(AFTER_SECONDS)
    finally:
        health.stop()
        stream.stop()
    memory = resident_memory(server.pid)
    added = None if before is None or memory is None else memory["peak"] - before
    num_refused = health.num_refused + stream.num_refused
    return Cost(health.longest_ms(began), stream.longest_ms(began), added, status, received, seconds, num_refused)


def _begin_peak(pid: int) -> int | None:
    """Reset the peak of resident memory; return the resident bytes, None where the system cannot do that."""
    try:
        for each in process_tree(pid):
            Path(f"/proc/{each}/clear_refs").write_text("5", encoding="utf-8")
    except OSError:
        return None
    memory = resident_memory(pid)
    return None if memory is None else memory["peak"]


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure every request on a server of its own; return the figures."""
    programs = {"now": _program(Path(__file__).parents[1] / "src")}
    if options.before is not None:
        programs = {"before": _program(options.before)} | programs
    chosen = [each for each in (*ABUSIVE_REQUESTS, QUEUE) if options.only in each.name]
    rows: dict[str, dict[str, Any]] = {}
    for request in (None, *chosen):
        name = request.name if request else NOTHING
        rows[name] = {}
        for arm, program in programs.items():
            with serve(options.model, program=program) as server:
                cost = cost_of(server, model_id(options.model), request, options.bytes, options.limit)
            rows[name][arm] = asdict(cost)
            print(line(name, arm, cost), flush=True)
    return {"requests": rows, "bytes": options.bytes, "limit": options.limit}


def _program(source: Path) -> Sequence[str]:
    return ("env", f"PYTHONPATH={source.resolve()}", sys.executable, "-m", "onward")


def line(name: str, arm: str, cost: Cost) -> str:
    """Return one measurement as a line of text."""
    memory = "" if cost.memory is None else f"{cost.memory / 2**20:+7,.0f} MiB"
    return (
        f"{name:45}{arm:7} health {cost.health_ms:8.1f} ms  stream {cost.stream_ms:8.1f} ms  {memory}  status "
        f"{cost.status or '–'} after {cost.seconds:.1f} s, {cost.num_bytes:,} bytes; refused {cost.num_refused}"
    )


def arguments() -> argparse.ArgumentParser:
    parser = measure.parser("abuse", __doc__)
    parser.add_argument("--model", default="storyteller", help="a built-in name or a folder")
    parser.add_argument("--before", type=Path, help="the src folder of another version, to compare with")
    parser.add_argument("--bytes", type=int, default=15_500_000, help="size of large bodies (default 15,500,000)")
    parser.add_argument("--limit", type=float, default=60, help="seconds after which a client leaves (default 60)")
    parser.add_argument("--only", default="", help="only requests whose name contains this")
    return parser


def main(options: argparse.Namespace, report: measure.Report) -> None:
    figures = run(options)
    report(figures)


if __name__ == "__main__":
    measure.run(arguments(), main)
