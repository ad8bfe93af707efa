"""More requests than a server can compute: how fast it rejects those that it does not accept, and whether all that it
accepts are completed.

`python -m benchmarks.overload` measures how many requests per second `onward serve` completes, then sends five times as
many for a minute, from several API keys. Exits with status 1 if a request ended in any other way than whole or with 503
and Retry-After, or if the rejections took longer than --limit.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import secrets
import shlex
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import measure
from benchmarks.http_client import Target
from benchmarks.load import Bounds, LoadGenerator, RawResult, run_async
from benchmarks.outcome import Outcome, summarise
from benchmarks.server_process import serve
from benchmarks.workload import Workload, add_token_range
from onward.server.process import raise_open_files_limit

REJECTED = "status 503"
CALIBRATION_REQUESTS = 4_000
"""Greatest number of requests of the closed loop that measures what the server completes."""


class Overload:
    """Sends requests to one server from several clients, each with a key of its own. No prompt is sent twice."""

    def __init__(self, targets: Sequence[Target], workload: Workload, timeout: float) -> None:
        self._targets = targets
        self._workload = workload
        self._timeout = timeout
        self._num_prompts = 0

    def completed_per_second(self, clients: int, seconds: float) -> float:
        """Return the requests per second that the server completes for a closed loop of `clients` connections.

        Raises BenchmarkError if a request fails.
        """
        generator = self._generator(self._targets[0], CALIBRATION_REQUESTS, seconds)
        figures = summarise(run_async(lambda: generator.closed_loop(clients)))
        if figures["failed"]:
            raise measure.BenchmarkError(f"requests failed before the overload: {figures['failed']}")
        rate: float = figures["requests_s"]
        return rate

    def send(self, rate: float, seconds: float) -> list[Outcome]:
        """Send `rate` requests per second on average for `seconds`; return when all responses are complete."""
        share = max(1, round(rate * seconds / len(self._targets)))
        generators = [self._generator(target, share, seconds + self._timeout) for target in self._targets]
        return run_async(lambda: _send_all(generators, share, rate))

    def _generator(self, target: Target, requests: int, seconds: float) -> LoadGenerator:
        first, self._num_prompts = self._num_prompts, self._num_prompts + requests
        return LoadGenerator(target, self._workload, Bounds(requests, seconds, self._timeout), first)


async def _send_all(generators: Sequence[LoadGenerator], share: int, rate: float) -> list[Outcome]:
    """Send the requests of all generators, `share` each, in turns; times count from when a request was due."""
    rng = random.Random(0)
    due = time.perf_counter()
    tasks: list[list[asyncio.Task[RawResult]]] = [[] for _ in generators]
    for number in range(share):
        for generator, sent in zip(generators, tasks, strict=True):
            due += rng.expovariate(rate)
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            sent.append(asyncio.create_task(generator.send_one(number, due)))
    results = [list(await asyncio.gather(*sent)) for sent in tasks]
    return [outcome for one, raw in zip(generators, results, strict=True) for outcome in one.finish(raw)]


def summary(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return counts of accepted, rejected and failed requests, and times in milliseconds."""
    rejected = [outcome for outcome in outcomes if outcome.error == REJECTED]
    accepted = [outcome for outcome in outcomes if outcome.error is None]
    headers = [outcome.retry_after or "" for outcome in rejected]
    hints = [int(header) for header in headers if header.isdecimal()]
    return {
        "requests": len(outcomes),
        "accepted": len(accepted),
        "rejected": len(rejected),
        "failed": dict(Counter(outcome.error for outcome in outcomes if outcome.error not in (None, REJECTED))),
        "rejected_without_retry_after": len(rejected) - sum(hint >= 1 for hint in hints),
        "rejection_ms": measure.spread([outcome.seconds for outcome in rejected], 1e3),
        "retry_after_s": measure.spread([float(hint) for hint in hints]),
        "ttft_ms": measure.spread([outcome.ttft for outcome in accepted if outcome.ttft is not None], 1e3),
    }


def problems(figures: dict[str, Any], limit_ms: float) -> list[str]:
    """Return what is wrong with a run, as sentences."""
    found = [f"{count} requests ended with: {error}" for error, count in figures["failed"].items()]
    if not figures["rejected"]:
        found.append("no request was rejected: the load was too small to measure anything")
    if figures["rejected_without_retry_after"]:
        found.append(f"{figures['rejected_without_retry_after']} rejections had no Retry-After of at least 1")
    p99 = figures["rejection_ms"]["p99"]
    if p99 is not None and p99 > limit_ms:
        found.append(f"one rejection in a hundred took longer than {p99:.0f} ms; the limit is {limit_ms:.0f} ms")
    return found


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Start a server, measure what it completes, and overload it."""
    workload = Workload(options.model, prompt=options.prompt, tokens=options.tokens, out=options.out)
    with tempfile.TemporaryDirectory() as folder:
        keys = [secrets.token_hex(16) for _ in range(options.keys)]
        key_file = Path(folder) / "keys"
        key_file.write_text("\n".join(keys), encoding="utf-8")
        with serve(options.model, "--api-key-file", str(key_file), *options.serve) as server:
            overload = Overload([Target.parse(server.url, key=key) for key in keys], workload, options.timeout)
            completed = overload.completed_per_second(options.clients, options.calibration)
            outcomes = overload.send(completed * options.factor, options.seconds)
    return {"completed_requests_s": completed, "factor": options.factor, **summary(outcomes)}


def table(figures: dict[str, Any]) -> str:
    """Return the figures as a table for the terminal."""
    lines = [
        f"the server completes {figures['completed_requests_s']:.1f} requests/s; {figures['factor']:g} times as many "
        f"were sent: {figures['requests']} requests",
        f"{figures['accepted']} were accepted and complete, {figures['rejected']} rejected",
        f"{'':28}{'p50':>10}{'p95':>10}{'p99':>10}",
    ]
    names = (
        ("rejection_ms", "rejected after, ms"),
        ("retry_after_s", "Retry-After, s"),
        ("ttft_ms", "time to first token, ms"),
    )
    for key, name in names:
        cells = (figures[key][column] for column in ("p50", "p95", "p99"))
        lines.append(f"{name:28}" + "".join("         –" if cell is None else f"{cell:10.1f}" for cell in cells))
    return "\n".join(lines)


def arguments() -> argparse.ArgumentParser:
    parser = measure.parser("overload", __doc__)
    parser.add_argument("--model", default="storyteller", help="a built-in name or a folder")
    parser.add_argument("--factor", type=float, default=5.0, help="requests sent per request completed (default 5)")
    parser.add_argument("--seconds", type=float, default=60.0, help="duration of the overload (default 60)")
    parser.add_argument("--calibration", type=float, default=10.0, help="seconds of the closed loop (default 10)")
    parser.add_argument("--clients", type=int, default=64, help="connections of the closed loop (default 64)")
    parser.add_argument("--keys", type=int, default=4, help="API keys that send in turns (default 4)")
    parser.add_argument("--prompt", type=int, default=64, help="tokens per prompt (default 64)")
    parser.add_argument("--out", type=int, default=64, help="max_tokens (default 64)")
    add_token_range(parser)
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds after which a request fails")
    parser.add_argument("--limit", type=float, default=100.0, help="maximal p99 of rejections, in ms (default 100)")
    parser.add_argument("--serve", type=shlex.split, default=[], metavar="FLAGS", help="flags of the server")
    return parser


def main(options: argparse.Namespace, report: measure.Report) -> int:
    raise_open_files_limit()
    figures = run(options)
    print(table(figures))
    report(figures)
    found = problems(figures, options.limit)
    for problem in found:
        print(f"FAILED {problem}")
    return 1 if found else 0


if __name__ == "__main__":
    measure.run(arguments(), main)
