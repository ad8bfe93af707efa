"""What a longer queue costs: processor time of a completed request with 10 … 1,000 requests sent at once, and the
scheduler's time in a step with up to 5,000 sequences waiting.

`python -m benchmarks.queueing`
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import measure
from benchmarks.http_client import Target
from benchmarks.load import Bounds, Generator, run_async
from benchmarks.observe import cpu_seconds
from benchmarks.outcome import summarise
from benchmarks.server_process import Server, serve
from benchmarks.workload import Workload
from onward.engine.cache import KVCache
from onward.engine.job import Job
from onward.engine.scheduler import Scheduler, Work
from onward.sampling.params import SamplingParams
from onward.text.assembler import TextRules

ROWS, BLOCKS, BUDGET = 64, 4096, 128
"""Of the scheduler that is measured alone: sequences that run together, KV blocks, prompt tokens of a step."""
OUT = 32
STEPS = 200

# --- over HTTP -------------------------------------------------------------------------------------------------


class Bursts:
    """Requests to one server, `depth` of them sent at once, until a round's number of requests is done."""

    def __init__(self, server: Server, options: argparse.Namespace) -> None:
        low, _, high = options.token_range.partition(":")
        self._target, self._pid = Target.parse(server.url), server.pid
        self._workload = Workload(options.model, prompt=options.prompt, tokens=(int(low), int(high)), out=options.out)
        self._first = 0

    def round(self, depth: int, requests: int) -> dict[str, float]:
        """Processor milliseconds of the server for a request, and output tokens a second.

        RuntimeError when a request fails, or the system tells no processor time.
        """
        before, spent, seconds, tokens, done = cpu_seconds(self._pid), 0.0, 0.0, 0, 0
        while done < requests:
            generator = Generator(self._target, self._workload, Bounds(depth, timeout=600.0), self._first)
            self._first += depth
            figures = summarise(run_async(lambda sending=generator: sending.closed(depth)))  # type: ignore[misc]
            if figures["failed"]:
                raise RuntimeError(f"requests failed at depth {depth}: {figures['failed']}")
            seconds, tokens, done = seconds + figures["wall_s"], tokens + figures["output_tokens"], done + depth
        after = cpu_seconds(self._pid)
        if before is None or after is None:
            raise RuntimeError("this system does not tell the processor time of a process")
        spent = after - before
        return {"cpu_ms": spent / done * 1e3, "tok_s": tokens / seconds}


def over_http(options: argparse.Namespace) -> dict[str, Any]:
    """Per depth the medians and ranges of rounds. A round goes through all depths; the first warms up."""
    found: dict[int, list[dict[str, float]]] = {depth: [] for depth in options.depths}
    with serve(options.model) as server:
        bursts = Bursts(server, options)
        for number in range(options.rounds + 1):
            for depth in options.depths if number % 2 else reversed(options.depths):
                result = bursts.round(depth, options.requests)
                if number:
                    found[depth].append(result)
    return {
        str(depth): {key: measure.median_of([each[key] for each in rounds]) for key in ("cpu_ms", "tok_s")}
        for depth, rounds in found.items()
    }


# --- the scheduler alone ---------------------------------------------------------------------------------------


class Drive:
    """A scheduler fed by hand: every step is decided and counted as done, nothing is computed."""

    def __init__(self) -> None:
        self.scheduler = Scheduler(KVCache(BLOCKS), ROWS)
        self._ids = itertools.count()

    def add(self, request: int | None, prompt: tuple[int, ...], out: int = OUT) -> None:
        """Queue a prompt as part of `request`, or of a request of its own."""
        number = next(self._ids)
        self.scheduler.add(
            Job(
                id=number,
                request=number if request is None else request,
                prompt=prompt,
                choices=1,
                max_tokens=out,
                sampling=SamplingParams(),
                rules=TextRules(),
                end_tokens=frozenset(),
            )
        )

    def step(self) -> tuple[float, int]:
        """Do one step; the processor seconds of `schedule`, and how many sequences it ended."""
        begin = time.thread_time()
        works = self.scheduler.schedule(BUDGET)
        seconds = time.thread_time() - begin
        return seconds, sum(self._do(work) for work in works)

    def _do(self, work: Work) -> bool:
        sequence = work.sequence
        self.scheduler.advance(work)
        if sequence.reading or not work.outputs:
            return False
        sequence.tokens.append(0)
        if sequence.generated < sequence.job.max_tokens:
            return False
        self.scheduler.release(sequence)
        return True


def prompt_of(number: int, length: int = 40) -> tuple[int, ...]:
    """A prompt like no other's."""
    return tuple(number * 7919 % 100_003 + place for place in range(length))


def distinct(drive: Drive, number: int) -> None:
    """A request of its own for every prompt."""
    drive.add(None, prompt_of(number))


def one_request(drive: Drive, number: int) -> None:
    """All prompts belong to one request."""
    drive.add(0, prompt_of(number))


PREFIX = prompt_of(0, 1024)


def one_prefix(drive: Drive, number: int) -> None:
    """Requests of their own that begin alike: most wait for the one that reads the prefix."""
    drive.add(None, PREFIX + prompt_of(number, 8))


def steady(add: Callable[[Drive, int], None], waiting: int, steps: int) -> dict[str, float]:
    """The scheduler with always so many waiting: processor microseconds of `schedule` a step, median and p95.

    Twice a sequence's steps go by first, so that those that run do not all end together.
    """
    drive, numbers, taken = Drive(), itertools.count(1), []
    for _ in range(ROWS + waiting):
        add(drive, next(numbers))
    for step in range(2 * OUT + steps):
        seconds, ended = drive.step()
        for _ in range(ended):
            add(drive, next(numbers))
        if step >= 2 * OUT:
            taken.append(seconds * 1e6)
    return {"p50_us": measure.percentile(taken, 50) or 0.0, "p95_us": measure.percentile(taken, 95) or 0.0}


def behind_a_prefix(waiting: int) -> dict[str, float]:
    """As `steady`, for the steps in which one request reads a prefix that all who wait begin with."""
    drive, taken = Drive(), []
    for number in range(1, ROWS // 2):
        drive.add(None, prompt_of(number), 10_000)
    for _ in range(ROWS // 2):
        drive.step()
    for number in range(waiting + 1):
        one_prefix(drive, number)
    for _ in range(len(PREFIX) // BUDGET - 1):
        taken.append(drive.step()[0] * 1e6)
    return {"p50_us": measure.percentile(taken, 50) or 0.0, "p95_us": measure.percentile(taken, 95) or 0.0}


def arrival(add: Callable[[Drive, int], None], waiting: int) -> dict[str, float]:
    """Microseconds for each of so many sequences to be queued, and for each request to be cancelled."""
    if not waiting:
        return {}
    drive = Drive()
    begin = time.thread_time()
    for number in range(waiting):
        add(drive, number)
    queued = time.thread_time()
    for request in range(waiting):
        drive.scheduler.cancel(request)
    cancelled = time.thread_time()
    assert drive.scheduler.idle
    return {"add_us": (queued - begin) / waiting * 1e6, "cancel_us": (cancelled - queued) / waiting * 1e6}


def scheduler_alone(waiting: list[int], steps: int = STEPS) -> dict[str, Any]:
    """Per kind of queue and number waiting."""
    figures: dict[str, Any] = {}
    for name, add in (("distinct requests", distinct), ("one request", one_request)):
        figures[name] = {str(count): steady(add, count, steps) | arrival(add, count) for count in waiting}
    figures["one prefix, being read"] = {str(count): behind_a_prefix(count) for count in waiting}
    return figures


# --- command ---------------------------------------------------------------------------------------------------


def table(figures: dict[str, Any]) -> str:
    lines = []
    if "http" in figures:
        lines.append(f"{'at once':>8}{'CPU ms a request':>18}{'tok/s':>10}")
        for depth, found in figures["http"].items():
            lines.append(f"{depth:>8}{found['cpu_ms']['median']:18.2f}{found['tok_s']['median']:10.1f}")
    lines.append(f"{'schedule, µs a step':26}{'waiting':>8}{'p50':>8}{'p95':>8}{'add':>8}{'cancel':>8}")
    for name, by_waiting in figures["scheduler"].items():
        for waiting, found in by_waiting.items():
            cells = [f"{found[key]:8.1f}" if key in found else " " * 8 for key in COLUMNS]
            lines.append(f"{name:26}{waiting:>8}{''.join(cells)}")
    return "\n".join(lines)


COLUMNS = ("p50_us", "p95_us", "add_us", "cancel_us")


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.queueing", description=__doc__)
    parser.add_argument("--model", default="storyteller", help="a built-in name or a folder")
    parser.add_argument("--depths", type=int, nargs="+", default=[10, 100, 300, 1000], help="requests at once")
    parser.add_argument("--requests", type=int, default=1000, help="requests of a depth and round (default 1,000)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds that count (default 3)")
    parser.add_argument("--prompt", type=int, default=64, help="tokens a prompt (default 64)")
    parser.add_argument("--out", type=int, default=32, help="tokens a completion (default 32)")
    parser.add_argument("--token-range", default="256:8000", help="ids to draw from, LOW:HIGH")
    parser.add_argument("--waiting", type=int, nargs="+", default=[0, 100, 1000, 5000], help="for the scheduler alone")
    parser.add_argument("--no-server", action="store_true", help="measure the scheduler only")
    parser.add_argument("--json", type=Path, help="write the figures here")
    return parser


def main() -> int:
    options = arguments().parse_args()
    at_start = measure.begin()
    figures: dict[str, Any] = {} if options.no_server else {"http": over_http(options)}
    figures["scheduler"] = scheduler_alone(options.waiting)
    print(table(figures))
    measure.write_report(options.json, "queueing", figures, at_start)
    return 0


if __name__ == "__main__":
    sys.exit(main())
