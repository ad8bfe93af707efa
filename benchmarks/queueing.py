"""The cost of a longer queue: processor time per request with 10 … 1,000 requests sent at once, and the scheduler's
time per step with up to 5,000 sequences waiting.

`python -m benchmarks.queueing`
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable
from typing import Any

from benchmarks import measure
from benchmarks.http_client import Target
from benchmarks.load import Bounds, LoadGenerator, run_async
from benchmarks.measure import BenchmarkError
from benchmarks.outcome import summarise
from benchmarks.processes import cpu_seconds
from benchmarks.server_process import Server, serve
from benchmarks.workload import Workload, add_token_range
from onward.engine.cache import KVCache
from onward.engine.job import Job
from onward.engine.scheduler import ScheduledSequence, Scheduler
from onward.runtimes.native.model import STEP_SHAPE
from onward.sampling.params import SamplingParams
from onward.text.assembler import TextRules

MAX_ROWS, NUM_BLOCKS, PREFILL_TOKENS = 64, 4096, 128
"""Of the scheduler when measured alone: maximal running sequences, KV blocks, prompt tokens per step."""
OUTPUT_TOKENS = 32
NUM_STEPS = 200

# --- over HTTP -------------------------------------------------------------------------------------------------


class Bursts:
    """Sends requests to one server, `depth` of them at once, until a round's number of requests is complete."""

    def __init__(self, server: Server, options: argparse.Namespace) -> None:
        self._target, self._pid = Target.parse(server.url), server.pid
        self._workload = Workload(options.model, prompt=options.prompt, tokens=options.tokens, out=options.out)
        self._first = 0

    def round(self, depth: int, requests: int) -> dict[str, float]:
        """Return the server's processor milliseconds per request, and output tokens per second.

        Raises BenchmarkError if a request fails or the system does not report processor time.
        """
        before, seconds, tokens, done = cpu_seconds(self._pid), 0.0, 0, 0
        while done < requests:
            generator = LoadGenerator(self._target, self._workload, Bounds(depth, timeout=600.0), self._first)
            self._first += depth
            figures = summarise(run_async(lambda generator=generator: generator.closed_loop(depth)))  # type: ignore[misc]
            if figures["failed"]:
                raise BenchmarkError(f"requests failed at depth {depth}: {figures['failed']}")
            seconds, tokens, done = seconds + figures["wall_s"], tokens + figures["output_tokens"], done + depth
        after = cpu_seconds(self._pid)
        if before is None or after is None:
            raise BenchmarkError("this system does not report the processor time of a process")
        return {"cpu_ms": (after - before) / done * 1e3, "tok_s": tokens / seconds}


def over_http(options: argparse.Namespace) -> dict[str, Any]:
    """Return medians and ranges of rounds per depth. A round goes through all depths; the first is a warm-up."""
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


class SchedulerDriver:
    """Drives a scheduler without a model: every step is scheduled and counted as done, nothing is computed."""

    def __init__(self) -> None:
        self.scheduler = Scheduler(KVCache(NUM_BLOCKS, STEP_SHAPE), MAX_ROWS)
        self._ids = itertools.count()

    def add(self, request: int | None, prompt: tuple[int, ...], out: int = OUTPUT_TOKENS) -> None:
        """Submit a prompt as part of `request`, or as a new request."""
        number = next(self._ids)
        self.scheduler.add(
            Job(
                id=number,
                request=number if request is None else request,
                prompt=prompt,
                num_choices=1,
                max_tokens=out,
                sampling=SamplingParams(),
                rules=TextRules(),
                end_tokens=frozenset(),
            )
        )

    def step(self) -> tuple[float, int]:
        """Do one step; return the processor seconds of `schedule`, and how many sequences ended."""
        begin = time.thread_time()
        output = self.scheduler.schedule(PREFILL_TOKENS)
        seconds = time.thread_time() - begin
        return seconds, sum(map(self._complete, output.scheduled))

    def _complete(self, scheduled: ScheduledSequence) -> bool:
        sequence = scheduled.sequence
        self.scheduler.advance(scheduled)
        if sequence.is_prefilling or not scheduled.num_outputs:
            return False
        sequence.tokens.append(0)
        if sequence.num_generated < sequence.job.max_tokens:
            return False
        self.scheduler.release(sequence)
        return True


def prompt_of(number: int, length: int = 40) -> tuple[int, ...]:
    """Return a prompt that differs from all others."""
    return tuple(number * 7919 % 100_003 + index for index in range(length))


def add_distinct(driver: SchedulerDriver, number: int) -> None:
    """Submit each prompt as a new request."""
    driver.add(None, prompt_of(number))


def add_to_one_request(driver: SchedulerDriver, number: int) -> None:
    """Submit all prompts as one request."""
    driver.add(0, prompt_of(number))


PREFIX = prompt_of(0, 1024)


def add_with_one_prefix(driver: SchedulerDriver, number: int) -> None:
    """Submit new requests with the same prefix: most wait for the one that prefills it."""
    driver.add(None, PREFIX + prompt_of(number, 8))


def measure_steady(add: Callable[[SchedulerDriver, int], None], waiting: int, steps: int) -> dict[str, float]:
    """Return processor microseconds of `schedule` per step, median and p95, with a constant number waiting.

    The first steps, twice those of a sequence, do not count: afterwards running sequences do not all end together.
    """
    driver, numbers, taken = SchedulerDriver(), itertools.count(1), []
    for _ in range(MAX_ROWS + waiting):
        add(driver, next(numbers))
    for step in range(2 * OUTPUT_TOKENS + steps):
        seconds, ended = driver.step()
        for _ in range(ended):
            add(driver, next(numbers))
        if step >= 2 * OUTPUT_TOKENS:
            taken.append(seconds * 1e6)
    return {"p50_us": measure.percentile(taken, 50) or 0.0, "p95_us": measure.percentile(taken, 95) or 0.0}


def measure_shared_prefix(waiting: int) -> dict[str, float]:
    """Return the same for steps in which one request prefills the common prefix of all waiting requests."""
    driver, taken = SchedulerDriver(), []
    for number in range(1, MAX_ROWS // 2):
        driver.add(None, prompt_of(number), 10_000)
    for _ in range(MAX_ROWS // 2):
        driver.step()
    for number in range(waiting + 1):
        add_with_one_prefix(driver, number)
    for _ in range(len(PREFIX) // PREFILL_TOKENS - 1):
        taken.append(driver.step()[0] * 1e6)
    return {"p50_us": measure.percentile(taken, 50) or 0.0, "p95_us": measure.percentile(taken, 95) or 0.0}


def measure_add_and_cancel(add: Callable[[SchedulerDriver, int], None], waiting: int) -> dict[str, float]:
    """Return microseconds per submitted sequence, and per cancelled request."""
    if not waiting:
        return {}
    driver = SchedulerDriver()
    begin = time.thread_time()
    for number in range(waiting):
        add(driver, number)
    queued = time.thread_time()
    for request in range(waiting):
        driver.scheduler.cancel(request)
    cancelled = time.thread_time()
    assert driver.scheduler.idle
    return {"add_us": (queued - begin) / waiting * 1e6, "cancel_us": (cancelled - queued) / waiting * 1e6}


def scheduler_alone(waiting: list[int], steps: int = NUM_STEPS) -> dict[str, Any]:
    """Return the scheduler's times per kind of queue and number of waiting sequences."""
    figures: dict[str, Any] = {}
    for name, add in (("distinct requests", add_distinct), ("one request", add_to_one_request)):
        figures[name] = {
            str(count): measure_steady(add, count, steps) | measure_add_and_cancel(add, count) for count in waiting
        }
    figures["one prefix, being prefilled"] = {str(count): measure_shared_prefix(count) for count in waiting}
    return figures


# --- command ---------------------------------------------------------------------------------------------------


def table(figures: dict[str, Any]) -> str:
    """Return the figures as tables for the terminal."""
    lines = []
    if "http" in figures:
        lines.append(f"{'at once':>8}{'CPU ms per request':>18}{'tok/s':>10}")
        for depth, found in figures["http"].items():
            lines.append(f"{depth:>8}{found['cpu_ms']['median']:18.2f}{found['tok_s']['median']:10.1f}")
    lines.append(f"{'schedule, µs per step':26}{'waiting':>8}{'p50':>8}{'p95':>8}{'add':>8}{'cancel':>8}")
    for name, by_waiting in figures["scheduler"].items():
        for waiting, found in by_waiting.items():
            cells = [f"{found[key]:8.1f}" if key in found else " " * 8 for key in COLUMNS]
            lines.append(f"{name:26}{waiting:>8}{''.join(cells)}")
    return "\n".join(lines)


COLUMNS = ("p50_us", "p95_us", "add_us", "cancel_us")


def arguments() -> argparse.ArgumentParser:
    parser = measure.parser("queueing", __doc__)
    parser.add_argument("--model", default="storyteller", help="a built-in name or a folder")
    parser.add_argument(
        "--depths",
        type=int,
        nargs="+",
        default=[10, 100, 300, 1000],
        help="requests sent at once (default 10 100 300 1000)",
    )
    parser.add_argument("--requests", type=int, default=1000, help="requests per depth and round (default 1,000)")
    parser.add_argument("--rounds", type=int, default=3, help="measured rounds (default 3)")
    parser.add_argument("--prompt", type=int, default=64, help="tokens per prompt (default 64)")
    parser.add_argument("--out", type=int, default=32, help="tokens per completion (default 32)")
    add_token_range(parser)
    parser.add_argument(
        "--waiting",
        type=int,
        nargs="+",
        default=[0, 100, 1000, 5000],
        help="waiting sequences, for the scheduler alone",
    )
    parser.add_argument("--no-server", action="store_true", help="measure the scheduler only")
    return parser


def main(options: argparse.Namespace, report: measure.Report) -> None:
    figures: dict[str, Any] = {} if options.no_server else {"http": over_http(options)}
    figures["scheduler"] = scheduler_alone(options.waiting)
    print(table(figures))
    report(figures)


if __name__ == "__main__":
    measure.run(arguments(), main)
