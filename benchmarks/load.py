"""Load on the completions endpoint of any server: closed loop (--clients) or Poisson arrivals (--rate).

`python -m benchmarks.load http://127.0.0.1:8000 --model storyteller --clients 8 --requests 64`
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import os
import random
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from benchmarks import measure
from benchmarks.http_client import Connection, ConnectionFailed, IdleConnectionClosed, Received, Target, connect
from benchmarks.outcome import Objective, Outcome, parse_outcome, summarise, table
from benchmarks.workload import Workload, add_token_range

T = TypeVar("T")
RawResult = Received | Outcome
"""The raw response to a request, or how it failed."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of a run: the number of requests, and the `seconds` after which none is started. A request that takes
    longer than `timeout` seconds fails."""

    requests: int
    seconds: float = 600.0
    timeout: float = 120.0


class LoadGenerator:
    """Sends the requests of a workload to a target. Responses are parsed after the run, not while it is measured.

    `first_prompt` is the number of the first prompt: runs that must not share prompts start at different numbers.
    """

    def __init__(self, target: Target, workload: Workload, bounds: Bounds, first_prompt: int = 0) -> None:
        self._target, self._bounds = target, bounds
        self._requests = [target.request(workload.body(first_prompt + number)) for number in range(bounds.requests)]
        self._idle: list[Connection] = []

    async def closed_loop(self, clients: int) -> list[Outcome]:
        """Run `clients` clients, each of which sends its next request when the last one is complete."""
        return self.finish(await self.send(range(len(self._requests)), clients))

    async def send(self, numbers: Iterable[int], clients: int) -> list[RawResult]:
        """Do the same with some requests only. Pass the results of all calls to `finish`."""
        remaining = iter(numbers)
        deadline = time.perf_counter() + self._bounds.seconds
        sent: list[RawResult] = []

        async def client() -> None:
            while time.perf_counter() < deadline and (number := next(remaining, None)) is not None:
                sent.append(await self.send_one(number))

        await asyncio.gather(*(client() for _ in range(clients)))
        return sent

    async def poisson(self, rate: float, seed: int = 0) -> list[Outcome]:
        """Send `rate` requests per second on average, whatever the server does. Times count from when a request was
        due."""
        rng = random.Random(seed)
        begin = due = time.perf_counter()
        tasks: list[asyncio.Task[RawResult]] = []
        for number in range(len(self._requests)):
            due += rng.expovariate(rate)
            if due > begin + self._bounds.seconds:
                break
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            tasks.append(asyncio.create_task(self.send_one(number, due)))
        return self.finish(list(await asyncio.gather(*tasks)))

    def finish(self, sent: list[RawResult]) -> list[Outcome]:
        """Close the connections and parse the responses."""
        for connection in self._idle:
            connection.close()
        self._idle.clear()
        return [each if isinstance(each, Outcome) else parse_outcome(each) for each in sent]

    async def send_one(self, number: int, due: float | None = None) -> RawResult:
        """Send one request. `due`: when it should have been sent, if that was earlier."""
        begin = time.perf_counter() if due is None else due
        try:
            async with asyncio.timeout(self._bounds.timeout):
                return await self._send_request(self._requests[number], due)
        except TimeoutError:
            return Outcome(begin, time.perf_counter(), error="timeout")
        except ConnectionFailed as error:
            return Outcome(begin, time.perf_counter(), error=str(error))

    async def _send_request(self, request: bytes, due: float | None) -> Received:
        while True:
            try:
                async with self._connection() as connection:
                    return await connection.send(request, due)
            except IdleConnectionClosed:
                continue  # ends with a new connection, when no kept-alive one is left

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Connection]:
        """Yield an idle open connection or a new one; keep it for the next request unless this one fails."""
        connection = None
        while self._idle and connection is None:
            candidate = self._idle.pop()
            connection = candidate if candidate.open else None
        connection = connection or await connect(self._target)
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        self._idle.append(connection)


def event_loop_runner() -> asyncio.Runner:
    """Return a runner, of uvloop where it is installed: that halves the client's processor time."""
    try:
        import uvloop
    except ImportError:
        return asyncio.Runner()
    return asyncio.Runner(loop_factory=uvloop.new_event_loop)


def run_async(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine to its end on a new event loop."""
    with event_loop_runner() as loop:
        return loop.run(work())


def plot(outcomes: list[Outcome], path: Path) -> None:
    """Plot time to first token and gaps as cumulative curves. Without matplotlib, print that it is missing."""
    try:
        pyplot = importlib.import_module("matplotlib.pyplot")
    except ImportError:
        print("warning: nothing was plotted because matplotlib is not installed", file=sys.stderr)
        return
    curves = {
        "time to first token": [outcome.ttft * 1e3 for outcome in outcomes if outcome.ttft is not None],
        "between tokens": [gap * 1e3 for outcome in outcomes for gap in outcome.gaps],
    }
    figure, axes = pyplot.subplots(1, len(curves), figsize=(9, 3.5), layout="constrained")
    for axis, (name, values) in zip(axes, curves.items(), strict=True):
        axis.ecdf(values or [0.0])
        axis.set(title=name, xlabel="ms", ylabel="share", xlim=(0, None))
    figure.savefig(path)


def arguments() -> argparse.ArgumentParser:
    parser = measure.parser("load", __doc__)
    parser.add_argument("base_url", help="http://127.0.0.1:8000")
    parser.add_argument("--model", required=True)
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument("--clients", type=int, default=8, help="number of clients of a closed loop (default 8)")
    shape.add_argument(
        "--rate", type=float, help="open loop: Poisson arrivals, this many requests per second on average"
    )
    parser.add_argument("--requests", type=int, default=64, help="total requests (default 64)")
    parser.add_argument("--seconds", type=float, default=600.0, help="start no request after this time (default 600)")
    parser.add_argument(
        "--timeout", type=float, default=120.0, help="seconds after which a request fails (default 120)"
    )
    parser.add_argument("--warmup", type=int, default=0, help="requests before the measured run (default 0)")
    parser.add_argument("--prompt", type=int, default=128, help="tokens per prompt, words with --text (default 128)")
    parser.add_argument(
        "--shared", type=int, default=0, help="how many of them are the same at the start of every prompt (default 0)"
    )
    parser.add_argument("--text", action="store_true", help="send prompts as text instead of token ids")
    add_token_range(parser)
    parser.add_argument("--out", type=int, default=64, help="max_tokens (default 64)")
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--top-p", type=float, default=0.95)
    parser.add_argument("--request-seed", type=int, help="send a seed: this number plus the number of the request")
    parser.add_argument("--ignore-eos", action="store_true", help="always generate max_tokens tokens")
    parser.add_argument("--extra", type=json.loads, default={}, help="JSON object merged into every request")
    parser.add_argument("--seed", type=int, default=0, help="seed of prompts and arrivals (default 0)")
    parser.add_argument(
        "--slo-ttft", type=float, default=1000.0, help="goodput: maximal ms to the first token (default 1000)"
    )
    parser.add_argument(
        "--slo-itl",
        type=float,
        default=100.0,
        help="goodput: maximal mean ms between tokens of a request (default 100)",
    )
    parser.add_argument("--allow-remote", action="store_true", help="allow a server on another machine")
    parser.add_argument("--plot", type=Path, help="plot the distributions to this file (needs matplotlib)")
    return parser


def workload_of(options: argparse.Namespace) -> Workload:
    """Return the workload that the command line describes."""
    return Workload(
        model=options.model,
        prompt=options.prompt,
        shared=options.shared,
        text=options.text,
        tokens=options.tokens,
        out=options.out,
        temperature=options.temperature,
        top_p=options.top_p,
        ignore_eos=options.ignore_eos,
        seed=options.seed,
        request_seed=options.request_seed,
        extra=options.extra,
    )


async def run(options: argparse.Namespace) -> list[Outcome]:
    """Warm up, then do the measured run. Raises BenchmarkError for a URL that is not allowed."""
    target = Target.parse(options.base_url, key=os.environ.get("OPENAI_API_KEY"), allow_remote=options.allow_remote)
    workload = workload_of(options)
    if options.warmup:
        warmup = LoadGenerator(target, workload, Bounds(options.warmup, timeout=options.timeout), options.requests)
        await warmup.closed_loop(min(options.clients, options.warmup))
    bounds = Bounds(options.requests, options.seconds, options.timeout)
    generator = LoadGenerator(target, workload, bounds)
    if options.rate:
        return await generator.poisson(options.rate, options.seed)
    return await generator.closed_loop(options.clients)


def main(options: argparse.Namespace, report: measure.Report) -> int:
    outcomes = run_async(lambda: run(options))
    figures = summarise(outcomes, Objective(options.slo_ttft / 1e3, options.slo_itl / 1e3))
    print(table(figures))
    report(figures)
    if options.plot:
        plot(outcomes, options.plot)
    return 1 if figures["failed"] else 0


if __name__ == "__main__":
    measure.run(arguments(), main)
