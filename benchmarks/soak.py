"""Memory of `onward serve` over many mixed requests: does it grow, and is anything left behind?

Clients send requests of every kind, among them invalid ones, and some disconnect early; the server's memory is sampled.
`python -m benchmarks.soak`
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import statistics
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import measure
from benchmarks.chart import Panel, Series, chart
from benchmarks.http_client import Connection, ConnectionFailed, Response, Target, connect, parse_response
from benchmarks.load import run_async
from benchmarks.measure import BenchmarkError
from benchmarks.mixed_requests import Mix, MixedRequest
from benchmarks.observe import left_behind, scrape
from benchmarks.processes import resident_memory
from benchmarks.server_process import Server, serve
from benchmarks.workload import add_token_range

MIB = 2**20
MAX_GROWTH_MIB_PER_1000 = 0.25
"""Allowed growth of anonymous memory per thousand requests of the second half (262 bytes per request), for the
allocator and rare step shapes."""
REQUESTS_PER_CONNECTION = 40
"""After so many requests a connection is replaced by a new one."""
REST_SECONDS = 20.0
TIMEOUT_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class MemorySample:
    """The server's memory in bytes after a number of requests: `anonymous` without the KV cache, `kv` the KV cache
    touched so far, `resident` both and file pages."""

    requests: int
    seconds: float
    anonymous: int
    kv: int
    resident: int


class SoakRun:
    """A closed loop of clients over a mix of requests. Keeps counts and problems, never responses."""

    def __init__(self, target: Target, mix: Mix, requests: int) -> None:
        self.counts: Counter[str] = Counter()
        self.disconnected = 0
        self.problems: list[str] = []
        self._target, self._mix, self._requests = target, mix, requests
        self._numbers = itertools.count()
        self._done = 0

    async def run(self, clients: int, every: int, observe: Callable[[int], Awaitable[None]]) -> None:
        """Send all requests; await `observe` with their number after every `every` of them."""

        async def client() -> None:
            connection = None
            for sent in itertools.count():
                number = next(self._numbers)
                if number >= self._requests:
                    break
                if connection is None or not connection.open or sent % REQUESTS_PER_CONNECTION == 0:
                    if connection is not None:
                        connection.close()
                    connection = await connect(self._target)
                await self._send(connection, number)
                self._done += 1
                if self._done % every == 0:
                    await observe(self._done)
            if connection is not None:
                connection.close()

        await asyncio.gather(*(client() for _ in range(clients)))

    async def _send(self, connection: Connection, number: int) -> None:
        mixed = self._mix.request(number)
        self.counts[mixed.kind] += 1
        request = self._target.request(mixed.body)
        if mixed.is_malformed:
            request = request[:-1] + b"]"
        try:
            async with asyncio.timeout(
                TIMEOUT_SECONDS if mixed.disconnect_seconds is None else mixed.disconnect_seconds
            ):
                response = parse_response(await connection.send(request))
        except TimeoutError:
            connection.close()
            if mixed.disconnect_seconds is None:
                self._add_problem(number, mixed, f"no response within {TIMEOUT_SECONDS:.0f} s")
            else:
                self.disconnected += 1
        except ConnectionFailed as error:
            self._add_problem(number, mixed, str(error))
        else:
            if problem := find_problem(mixed, response):
                self._add_problem(number, mixed, problem)

    def _add_problem(self, number: int, mixed: MixedRequest, problem: str) -> None:
        self.problems.append(f"request {number} ({mixed.kind}): {problem}")


def find_problem(mixed: MixedRequest, response: Response) -> str | None:
    """Return what is wrong with the status or the form of a response, None if nothing is."""
    if response.status != mixed.status:
        return f"status {response.status} instead of {mixed.status}: {response.body[:200]!r}"
    if response.status != 200 or not mixed.body.get("stream"):
        return None if response.body else "empty body"
    if not response.events or response.events[-1][1] != b"[DONE]":
        return "stream without [DONE]"
    return "error in stream" if any(data.startswith(b'{"error"') for _, data in response.events) else None


def slope(samples: Sequence[tuple[float, float]]) -> float:
    """Return the Theil-Sen estimate: the median slope of all pairs, which single spikes do not affect."""
    return statistics.median((y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in itertools.combinations(samples, 2))


def assess(samples: Sequence[MemorySample]) -> dict[str, Any]:
    """Return the growth over the second half in MiB per thousand requests, and the memory at its start and end (medians
    of a fifth of its samples). Raises BenchmarkError with fewer than four samples."""
    half = [sample for sample in samples if sample.requests * 2 > samples[-1].requests]
    if len(half) < 2:
        raise BenchmarkError("too few samples to measure growth: increase --requests or decrease --every")
    fifth = max(1, len(half) // 5)
    found: dict[str, Any] = {}
    for name in ("anonymous", "resident"):
        sizes = [(sample.requests / 1000, getattr(sample, name) / MIB) for sample in half]
        found[name] = {
            "growth_mib_per_1000": slope(sizes),
            "begin_mib": statistics.median(size for _, size in sizes[:fifth]),
            "end_mib": statistics.median(size for _, size in sizes[-fifth:]),
        }
    found["steady"] = found["anonymous"]["growth_mib_per_1000"] <= MAX_GROWTH_MIB_PER_1000
    return found


def sample_memory(pid: int, requests: int, seconds: float) -> MemorySample:
    """Return a sample of a process. Raises BenchmarkError where the system does not report memory or the process
    ended."""
    memory = resident_memory(pid)
    if memory is None:
        raise BenchmarkError("this system does not report the server's memory")
    return MemorySample(
        requests, seconds, memory["anonymous"], memory["kv"], memory["anonymous"] + memory["kv"] + memory["file"]
    )


async def soak(server: Server, options: argparse.Namespace) -> dict[str, Any]:
    """Run one soak of a server that has just started; return its figures."""
    mix = Mix(options.model, tokens=options.tokens, seed=options.seed)
    run = SoakRun(Target.parse(server.url), mix, options.requests)
    begin = time.perf_counter()
    samples = [sample_memory(server.pid, 0, 0.0)]

    async def observe(done: int) -> None:
        sample = sample_memory(server.pid, done, time.perf_counter() - begin)
        samples.append(sample)
        if sys.stderr.isatty():
            print(f"\r{done:>8} requests  {sample.anonymous / MIB:8.1f} MiB", end="", file=sys.stderr)

    await run.run(options.clients, options.every or max(1, options.requests // 100), observe)
    wall = time.perf_counter() - begin
    metrics, left = await at_rest(server.url)
    return {
        "requests": options.requests,
        "wall_s": wall,
        "kinds": dict(run.counts),
        "left_half_way": run.disconnected,
        "problems": run.problems[:20],
        "problem_count": len(run.problems),
        "verdict": assess(samples),
        "at_rest": {"left_behind": left, "memory": asdict(sample_memory(server.pid, options.requests, wall))},
        "metrics": {name: value for name, value in sorted(metrics.items()) if "bucket" not in name},
        "points": columns(samples),
    }


def columns(samples: Sequence[MemorySample]) -> dict[str, list[float]]:
    """Return the samples by column, memory in MiB."""
    sizes = {
        f"{name}_mib": [round(getattr(sample, name) / MIB, 2) for sample in samples]
        for name in ("anonymous", "resident")
    }
    return {"requests": [sample.requests for sample in samples], **sizes}


async def at_rest(url: str) -> tuple[dict[str, float], dict[str, float]]:
    """Return the metrics when no request runs any more, or after REST_SECONDS, and what is left behind then."""
    deadline = time.perf_counter() + REST_SECONDS
    while True:
        metrics = await asyncio.to_thread(scrape, url)
        left = left_behind(metrics)
        if not left or time.perf_counter() > deadline:
            return metrics, left
        await asyncio.sleep(0.1)


def failures(figures: dict[str, Any]) -> list[str]:
    """Return the reasons why the soak failed, empty if it passed."""
    found = [
        f"{figures['problem_count']} unexpected responses, such as {problem}" for problem in figures["problems"][:1]
    ]
    found += [f"at rest {name} is {value:g}" for name, value in figures["at_rest"]["left_behind"].items()]
    growth = figures["verdict"]["anonymous"]["growth_mib_per_1000"]
    if not figures["verdict"]["steady"]:
        found.append(
            f"memory grew by {growth:.2f} MiB per thousand requests; at most {MAX_GROWTH_MIB_PER_1000} is allowed"
        )
    return found


def svg_plot(figures: dict[str, Any]) -> str:
    """Return a plot of memory by requests, as SVG."""
    points = figures["points"]
    series = [
        Series(name, list(zip(points["requests"], points[key], strict=True)))
        for name, key in (("anonymous", "anonymous_mib"), ("with KV cache and files", "resident_mib"))
    ]
    return chart([Panel("Memory of the server, MiB", "requests", series)])


def arguments() -> argparse.ArgumentParser:
    parser = measure.parser("soak", __doc__)
    parser.add_argument("--model", default="storyteller", help="a built-in name or a folder")
    parser.add_argument("--requests", type=int, default=40_000, help="total requests (default 40,000)")
    parser.add_argument("--clients", type=int, default=16, help="concurrent requests (default 16)")
    parser.add_argument("--every", type=int, help="sample the memory after so many requests (default: 100 samples)")
    parser.add_argument(
        "--kv-memory", default="16MB", help="size of the KV cache; small, so that blocks are evicted (default 16MB)"
    )
    add_token_range(parser)
    parser.add_argument("--seed", type=int, default=0, help="seed of all requests (default 0)")
    parser.add_argument("--plot", type=Path, help="plot memory by requests to this SVG file")
    return parser


def main(options: argparse.Namespace, report: measure.Report) -> int:
    with serve(options.model, "--kv-memory", options.kv_memory) as server:
        figures = run_async(lambda: soak(server, options))
    own = figures["verdict"]["anonymous"]
    print(
        f"{options.requests} requests in {figures['wall_s']:.0f} s; "
        f"{figures['left_half_way']} clients disconnected early\n"
        f"anonymous memory, second half: {own['begin_mib']:.1f} MiB at its start, {own['end_mib']:.1f} at its end, "
        f"{own['growth_mib_per_1000']:+.3f} MiB per thousand requests"
    )
    report(figures)
    if options.plot:
        options.plot.parent.mkdir(parents=True, exist_ok=True)
        options.plot.write_text(svg_plot(figures), encoding="utf-8")
    failed = failures(figures)
    print("\n".join(f"FAILED: {reason}" for reason in failed) or "memory is steady and nothing was left behind")
    return 1 if failed else 0


if __name__ == "__main__":
    measure.run(arguments(), main)
