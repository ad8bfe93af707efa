"""Memory of `onward serve` over many mixed requests: does it stay what it was, and is anything left behind?

Clients ask for completions of every kind, are refused, and leave half-way; the server's memory is read as they do.
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
from benchmarks.http_client import Answered, Connection, NotThere, Target, connect, parse
from benchmarks.load import run_async
from benchmarks.mixed import Ask, Mix
from benchmarks.observe import left_behind, scrape
from benchmarks.server_process import Server, resident, serve

MIB = 2**20
STEADY = 0.25
"""MiB that anonymous memory may grow by in a thousand requests of the second half (262 bytes a request): what the
allocator and rare shapes of steps still take then."""
KEPT_FOR = 40
"""Requests on one connection before it is replaced by a new one."""
REST_SECONDS = 20.0
TIMEOUT = 120.0


@dataclass(frozen=True, slots=True)
class Point:
    """The server after so many requests. Memory in bytes: `anonymous` is the process's own, `kv` the KV cache
    touched so far, `resident` both and the pages of files."""

    requests: int
    seconds: float
    anonymous: int
    kv: int
    resident: int


class Soak:
    """A closed loop of clients over a mix. Keeps counts and the first unexpected answers, never what came."""

    def __init__(self, target: Target, mix: Mix, requests: int) -> None:
        self.counts: Counter[str] = Counter()
        self.left = 0
        self.problems: list[str] = []
        self.completion_tokens = 0
        self._target, self._mix, self._requests = target, mix, requests
        self._numbers = itertools.count()
        self._done = 0

    async def run(self, clients: int, every: int, observe: Callable[[int], Awaitable[None]]) -> None:
        """Send all requests; `observe` is awaited with their number after each `every` of them."""

        async def client() -> None:
            connection = None
            for turn in itertools.count():
                number = next(self._numbers)
                if number >= self._requests:
                    break
                if connection is None or not connection.open or turn % KEPT_FOR == 0:
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
        ask = self._mix.ask(number)
        self.counts[ask.kind] += 1
        request = self._target.request(ask.body)
        if ask.broken:
            request = request[:-1] + b"]"
        try:
            async with asyncio.timeout(TIMEOUT if ask.leave is None else ask.leave):
                answered = parse(await connection.ask(request))
        except TimeoutError:
            connection.close()
            if ask.leave is None:
                self._tell(number, ask, "no answer in time")
            else:
                self.left += 1
        except NotThere as problem:
            self._tell(number, ask, str(problem))
        else:
            if wrong := fault(ask, answered):
                self._tell(number, ask, wrong)

    def _tell(self, number: int, ask: Ask, problem: str) -> None:
        self.problems.append(f"request {number} ({ask.kind}): {problem}")


def fault(ask: Ask, answered: Answered) -> str | None:
    """What is wrong with an answer, as far as its outside tells."""
    if answered.status != ask.status:
        return f"status {answered.status} instead of {ask.status}: {answered.body[:200]!r}"
    if answered.status != 200 or not ask.body.get("stream"):
        return None if answered.body else "empty body"
    if not answered.events or answered.events[-1][1] != b"[DONE]":
        return "stream without [DONE]"
    return "error in stream" if any(data.startswith(b'{"error"') for _, data in answered.events) else None


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Theil and Sen's estimate: the median slope of all pairs, which single spikes do not move."""
    return statistics.median((y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in itertools.combinations(points, 2))


def judge(points: Sequence[Point]) -> dict[str, Any]:
    """Growth over the second half in MiB a thousand requests, and the memory at its begin and end (medians of
    a fifth of its points). ValueError with fewer than four points."""
    half = [point for point in points if point.requests * 2 > points[-1].requests]
    if len(half) < 2:
        raise ValueError("too few points to tell growth from: more requests, or a smaller --every")
    fifth = max(1, len(half) // 5)
    found: dict[str, Any] = {}
    for name in ("anonymous", "resident"):
        sizes = [(point.requests / 1000, getattr(point, name) / MIB) for point in half]
        found[name] = {
            "growth_mib_per_1000": slope(sizes),
            "begin_mib": statistics.median(size for _, size in sizes[:fifth]),
            "end_mib": statistics.median(size for _, size in sizes[-fifth:]),
        }
    found["steady"] = found["anonymous"]["growth_mib_per_1000"] <= STEADY
    return found


def point_of(pid: int, requests: int, seconds: float) -> Point:
    """RuntimeError where the system does not tell a process's memory, or the process is gone."""
    held = resident(pid)
    if held is None:
        raise RuntimeError("this system does not tell what memory the server has")
    return Point(requests, seconds, held["anonymous"], held["kv"], held["anonymous"] + held["kv"] + held["file"])


async def soak(server: Server, options: argparse.Namespace) -> dict[str, Any]:
    """The figures of one soak of a server that has just started."""
    low, _, high = options.token_range.partition(":")
    mix = Mix(options.model, tokens=(int(low), int(high)), seed=options.seed)
    run = Soak(Target.parse(server.url), mix, options.requests)
    begin = time.perf_counter()
    points = [point_of(server.pid, 0, 0.0)]

    async def observe(done: int) -> None:
        point = point_of(server.pid, done, time.perf_counter() - begin)
        points.append(point)
        if sys.stderr.isatty():
            print(f"\r{done:>8} requests  {point.anonymous / MIB:8.1f} MiB", end="", file=sys.stderr)

    await run.run(options.clients, options.every or max(1, options.requests // 100), observe)
    wall = time.perf_counter() - begin
    metrics, left = await at_rest(server.url)
    return {
        "requests": options.requests,
        "wall_s": wall,
        "kinds": dict(run.counts),
        "left_half_way": run.left,
        "problems": run.problems[:20],
        "problem_count": len(run.problems),
        "verdict": judge(points),
        "at_rest": {"left_behind": left, "memory": asdict(point_of(server.pid, options.requests, wall))},
        "metrics": {name: value for name, value in sorted(metrics.items()) if "bucket" not in name},
        "points": columns(points),
    }


def columns(points: Sequence[Point]) -> dict[str, list[float]]:
    """The points by column, memory in MiB."""
    sizes = {
        f"{name}_mib": [round(getattr(point, name) / MIB, 2) for point in points] for name in ("anonymous", "resident")
    }
    return {"requests": [point.requests for point in points], **sizes}


async def at_rest(url: str) -> tuple[dict[str, float], dict[str, float]]:
    """The metrics once nothing runs any more, or after REST_SECONDS; and what is left behind even then."""
    deadline = time.perf_counter() + REST_SECONDS
    while True:
        metrics = await asyncio.to_thread(scrape, url)
        left = left_behind(metrics)
        if not left or time.perf_counter() > deadline:
            return metrics, left
        await asyncio.sleep(0.1)


def failures(figures: dict[str, Any]) -> list[str]:
    """Why the soak has failed, in sentences."""
    found = [f"{figures['problem_count']} unexpected answers, such as {problem}" for problem in figures["problems"][:1]]
    found += [f"at rest {name} is {value:g}" for name, value in figures["at_rest"]["left_behind"].items()]
    growth = figures["verdict"]["anonymous"]["growth_mib_per_1000"]
    if not figures["verdict"]["steady"]:
        found.append(f"memory grew by {growth:.2f} MiB in a thousand requests, more than {STEADY}")
    return found


def picture(figures: dict[str, Any]) -> str:
    """Memory against requests, as SVG."""
    points = figures["points"]
    series = [
        Series(name, list(zip(points["requests"], points[key], strict=True)))
        for name, key in (("the process's own", "anonymous_mib"), ("with KV cache and files", "resident_mib"))
    ]
    return chart([Panel("Memory of the server, MiB", "requests", series)])


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--model", default="storyteller", help="a built-in name or a folder")
    parser.add_argument("--requests", type=int, default=40_000, help="requests in all (default 40,000)")
    parser.add_argument("--clients", type=int, default=16, help="requests at the same time (default 16)")
    parser.add_argument("--every", type=int, help="read the memory after so many requests (default: 100 times)")
    parser.add_argument("--kv-memory", default="16MB", help="so little that blocks are given up (default 16MB)")
    parser.add_argument("--token-range", default="256:8000", help="ids to draw from, LOW:HIGH")
    parser.add_argument("--seed", type=int, default=0, help="decides all requests")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--plot", type=Path, help="draw memory against requests here (SVG)")
    return parser


def main() -> int:
    options = arguments().parse_args()
    at_start = measure.machine()
    with serve(options.model, "--kv-memory", options.kv_memory) as server:
        figures = run_async(lambda: soak(server, options))
    own = figures["verdict"]["anonymous"]
    print(
        f"{options.requests} requests in {figures['wall_s']:.0f} s; {figures['left_half_way']} clients left half-way\n"
        f"anonymous memory, second half: {own['begin_mib']:.1f} MiB at its begin, {own['end_mib']:.1f} at its end, "
        f"{own['growth_mib_per_1000']:+.3f} MiB a thousand requests"
    )
    measure.write_report(options.json, "soak", figures, at_start)
    if options.plot:
        options.plot.parent.mkdir(parents=True, exist_ok=True)
        options.plot.write_text(picture(figures), encoding="utf-8")
    failed = failures(figures)
    print("\n".join(f"FAILED: {reason}" for reason in failed) or "steady, nothing left behind")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
