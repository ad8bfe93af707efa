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
from benchmarks.http_client import ClosedIdle, Connection, NotThere, Received, Target, connect
from benchmarks.outcome import Objective, Outcome, outcome_of, summarise, table
from benchmarks.workload import Workload

T = TypeVar("T")
Sent = Received | Outcome
"""A request's raw answer, or how it failed."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """When a run ends: after so many requests, or when none is begun after `seconds`. A request that takes
    longer than `timeout` seconds fails."""

    requests: int
    seconds: float = 600.0
    timeout: float = 120.0


class Generator:
    """Sends a workload's requests to a target. Answers are parsed after the run, not while it is measured.

    `first` is the number of the first prompt: runs that must not share prompts take different ones.
    """

    def __init__(self, target: Target, workload: Workload, bounds: Bounds, first: int = 0) -> None:
        self._target, self._bounds = target, bounds
        self._requests = [target.request(workload.body(first + number)) for number in range(bounds.requests)]
        self._idle: list[Connection] = []

    async def closed(self, clients: int) -> list[Outcome]:
        """`clients` clients, each sending its next request when its last is answered."""
        return self.finish(await self.send(range(len(self._requests)), clients))

    async def send(self, numbers: Iterable[int], clients: int) -> list[Sent]:
        """The same with these requests only; `finish` makes outcomes of what several calls gave."""
        left = iter(numbers)
        deadline = time.perf_counter() + self._bounds.seconds
        sent: list[Sent] = []

        async def client() -> None:
            while time.perf_counter() < deadline and (number := next(left, None)) is not None:
                sent.append(await self._send(number))

        await asyncio.gather(*(client() for _ in range(clients)))
        return sent

    async def poisson(self, rate: float, seed: int = 0) -> list[Outcome]:
        """Requests at `rate` a second whatever the server does; times count from when a request was due."""
        clock = random.Random(seed)
        begin = due = time.perf_counter()
        tasks: list[asyncio.Task[Sent]] = []
        for number in range(len(self._requests)):
            due += clock.expovariate(rate)
            if due > begin + self._bounds.seconds:
                break
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            tasks.append(asyncio.create_task(self._send(number, due)))
        return self.finish(list(await asyncio.gather(*tasks)))

    def finish(self, sent: list[Sent]) -> list[Outcome]:
        """Close the connections and parse what came."""
        for connection in self._idle:
            connection.close()
        self._idle.clear()
        return [each if isinstance(each, Outcome) else outcome_of(each) for each in sent]

    async def _send(self, number: int, due: float | None = None) -> Sent:
        begin = time.perf_counter() if due is None else due
        try:
            async with asyncio.timeout(self._bounds.timeout):
                return await self._ask(self._requests[number], due)
        except TimeoutError:
            return Outcome(begin, time.perf_counter(), error="timeout")
        except NotThere as error:
            return Outcome(begin, time.perf_counter(), error=str(error))

    async def _ask(self, request: bytes, due: float | None) -> Received:
        while True:
            try:
                async with self._connection() as connection:
                    return await connection.ask(request, due)
            except ClosedIdle:
                continue  # a new connection in the end: those that were kept are used up

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Connection]:
        """An idle open connection, or a new one; kept for the next request unless the answer was cut short."""
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


def runner() -> asyncio.Runner:
    """Of uvloop where it is installed: it halves what the client costs."""
    try:
        import uvloop
    except ImportError:
        return asyncio.Runner()
    return asyncio.Runner(loop_factory=uvloop.new_event_loop)


def run_async(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run to the end on an event loop of its own."""
    with runner() as loop:
        return loop.run(work())


def plot(outcomes: list[Outcome], path: Path) -> None:
    """Time to first token and gaps as cumulative curves. Needs matplotlib; says so where it is missing."""
    try:
        pyplot = importlib.import_module("matplotlib.pyplot")
    except ImportError:
        print("no plot: matplotlib is not installed", file=sys.stderr)
        return
    curves = {
        "time to first token": [outcome.first * 1e3 for outcome in outcomes if outcome.first is not None],
        "between tokens": [gap * 1e3 for outcome in outcomes for gap in outcome.gaps],
    }
    figure, axes = pyplot.subplots(1, len(curves), figsize=(9, 3.5), layout="constrained")
    for axis, (name, values) in zip(axes, curves.items(), strict=True):
        axis.ecdf(values or [0.0])
        axis.set(title=name, xlabel="ms", ylabel="share", xlim=(0, None))
    figure.savefig(path)


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.load", description=__doc__)
    parser.add_argument("base_url", help="http://127.0.0.1:8000")
    parser.add_argument("--model", required=True)
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument("--clients", type=int, default=8, help="closed loop with so many clients (default 8)")
    shape.add_argument("--rate", type=float, help="open loop: Poisson arrivals, requests a second")
    parser.add_argument("--requests", type=int, default=64, help="requests in all (default 64)")
    parser.add_argument("--seconds", type=float, default=600.0, help="begin no request after this time")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds after which a request fails")
    parser.add_argument("--warmup", type=int, default=0, help="requests before the run, not counted")
    parser.add_argument("--prompt", type=int, default=128, help="tokens a prompt (words with --text)")
    parser.add_argument("--shared", type=int, default=0, help="of these, how many all prompts begin with")
    parser.add_argument("--text", action="store_true", help="send prompts as text instead of token ids")
    parser.add_argument("--token-range", default="256:8000", help="ids to draw from, LOW:HIGH")
    parser.add_argument("--out", type=int, default=64, help="max_tokens (default 64)")
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--top-p", type=float, default=0.95)
    parser.add_argument("--request-seed", type=int, help="send a seed, this one plus the request's number")
    parser.add_argument("--ignore-eos", action="store_true", help="always write max_tokens tokens")
    parser.add_argument("--extra", type=json.loads, default={}, help="JSON object added to every request")
    parser.add_argument("--seed", type=int, default=0, help="decides prompts and arrivals")
    parser.add_argument("--slo-ttft", type=float, default=1000.0, help="ms to the first token (goodput)")
    parser.add_argument("--slo-itl", type=float, default=100.0, help="ms between tokens, a request's mean")
    parser.add_argument("--allow-remote", action="store_true", help="let the server be on another machine")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--plot", type=Path, help="draw the distributions here (needs matplotlib)")
    return parser


def workload_of(options: argparse.Namespace) -> Workload:
    low, _, high = options.token_range.partition(":")
    return Workload(
        model=options.model,
        prompt=options.prompt,
        shared=options.shared,
        text=options.text,
        tokens=(int(low), int(high)),
        out=options.out,
        temperature=options.temperature,
        top_p=options.top_p,
        ignore_eos=options.ignore_eos,
        seed=options.seed,
        request_seed=options.request_seed,
        extra=options.extra,
    )


async def run(options: argparse.Namespace) -> list[Outcome]:
    """Warm up, then the run that counts."""
    target = Target.parse(options.base_url, key=os.environ.get("OPENAI_API_KEY"), allow_remote=options.allow_remote)
    workload = workload_of(options)
    if options.warmup:
        warmup = Generator(target, workload, Bounds(options.warmup, timeout=options.timeout), options.requests)
        await warmup.closed(min(options.clients, options.warmup))
    bounds = Bounds(options.requests, options.seconds, options.timeout)
    generator = Generator(target, workload, bounds)
    if options.rate:
        return await generator.poisson(options.rate, options.seed)
    return await generator.closed(options.clients)


def main() -> int:
    options = arguments().parse_args()
    at_start = measure.machine()
    try:
        outcomes = run_async(lambda: run(options))
    except ValueError as problem:
        print(problem, file=sys.stderr)
        return 2
    figures = summarise(outcomes, Objective(options.slo_ttft / 1e3, options.slo_itl / 1e3))
    print(table(figures))
    measure.write_report(options.json, "load", figures, at_start)
    if options.plot:
        plot(outcomes, options.plot)
    return 1 if figures["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
