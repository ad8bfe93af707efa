"""What it costs to run the engine of `onward serve` in a process of its own instead of a thread, in alternating rounds.

Two servers of one model run, with `--engine-process on` and `off`; only one at a time has work. Both do the same work
in a round, and the one that goes first alternates. `python -m benchmarks.engine_process`.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks import measure
from benchmarks.http_client import Target
from benchmarks.load import Bounds, LoadGenerator, run_async
from benchmarks.measure import BenchmarkError
from benchmarks.models import model_id
from benchmarks.outcome import Outcome, summarise
from benchmarks.processes import cpu_seconds, memory_by_process
from benchmarks.server_process import Server, serve
from benchmarks.workload import Workload, add_token_range

THREAD, PROCESS = "thread", "process"
FLAGS = {THREAD: ("--engine-process", "off"), PROCESS: ("--engine-process", "on")}
MIB = 2**20


@dataclass(frozen=True, slots=True)
class Turn:
    """One server's turn in one round: output tokens per second, p50 of the time to first token and of the time between
    tokens in milliseconds, and processor milliseconds of the server per output token (None where unknown)."""

    tok_s: float
    ttft_ms: float
    itl_ms: float
    cpu_ms: float | None


Round = dict[str, Turn]
"""Turns by arm."""


class Arms:
    """Both servers. They get the same prompts in a round, and no prompt is sent twice, so that no prefix cache
    helps."""

    def __init__(self, servers: dict[str, Server], options: argparse.Namespace) -> None:
        self._servers, self._options = servers, options
        self._model = model_id(options.model)
        self._rounds = itertools.count()

    def round(self, clients: int, requests: int) -> Round:
        """Run one round. Raises BenchmarkError if a request fails or ends early."""
        number = next(self._rounds)
        names = list(self._servers) if number % 2 else list(reversed(self._servers))
        return {name: self._turn(self._servers[name], clients, requests, number) for name in names}

    def _turn(self, server: Server, clients: int, requests: int, seed: int) -> Turn:
        options = self._options
        workload = Workload(self._model, prompt=options.prompt, tokens=options.tokens, out=options.out, seed=seed)
        generator = LoadGenerator(Target.parse(server.url), workload, Bounds(requests))
        before = cpu_seconds(server.pid)
        outcomes = run_async(lambda: generator.closed_loop(clients))
        after = cpu_seconds(server.pid)
        used = None if before is None or after is None else after - before
        return turn_of(outcomes, options.out, used)


def turn_of(outcomes: Sequence[Outcome], out: int, cpu: float | None) -> Turn:
    """Return the figures of a turn in which the server used `cpu` seconds. Raises BenchmarkError unless each request
    generated `out` tokens."""
    figures = summarise(outcomes)
    if figures["failed"] or figures["output_tokens"] != out * len(outcomes):
        raise BenchmarkError(f"{figures['output_tokens']} output tokens; failed requests: {figures['failed']}")
    itl = figures["itl_ms"]["p50"] or 0.0
    cpu_ms = None if cpu is None else cpu * 1e3 / figures["output_tokens"]
    return Turn(figures["output_tok_s"], figures["ttft_ms"]["p50"], itl, cpu_ms)


def compare(rounds: Sequence[Round]) -> dict[str, Any]:
    """Return medians of each arm, and of the differences within a round: throughput and processor time of the process
    as a ratio to the thread's, its time to first token minus the thread's in milliseconds."""
    found: dict[str, Any] = {name: _medians([each[name] for each in rounds]) for name in FLAGS}
    pairs = [(each[PROCESS], each[THREAD]) for each in rounds]
    found["throughput_ratio"] = measure.median_of([mine.tok_s / its.tok_s for mine, its in pairs])
    found["ttft_added_ms"] = measure.median_of([mine.ttft_ms - its.ttft_ms for mine, its in pairs])
    cpu = [mine.cpu_ms / its.cpu_ms for mine, its in pairs if mine.cpu_ms and its.cpu_ms]
    if cpu:
        found["cpu_ratio"] = measure.median_of(cpu)
    return found


def _medians(turns: Sequence[Turn]) -> dict[str, float]:
    columns = [asdict(turn) for turn in turns]
    known = [name for name in columns[0] if all(column[name] is not None for column in columns)]
    return {name: statistics.median(column[name] for column in columns) for name in known}


def memory(servers: dict[str, Server]) -> dict[str, list[dict[str, int]]]:
    """Return resident bytes of each process of each server, the server itself first. Empty lists where unknown."""
    return {
        name: [asdict(each) | {"resident": each.resident} for each in memory_by_process(server.pid)]
        for name, server in servers.items()
    }


def requests_for(clients: int, waves: int) -> int:
    """Return the requests of a turn: `waves` for each client, and at least eight."""
    return max(8, clients * waves)


def table(figures: dict[str, Any]) -> str:
    """Return the figures as tables for the terminal."""
    lines = [
        f"{'clients':>7}{'thread':>10}{'process':>10} tok/s{'ratio':>8} (range)"
        f"{'TTFT':>16}{'process':>9}{'added':>8} ms{'CPU':>9}"
    ]
    for clients, found in figures["clients"].items():
        ratio, added = found["throughput_ratio"], found["ttft_added_ms"]
        thread, process = found[THREAD], found[PROCESS]
        cpu = f"{found['cpu_ratio']['median']:9.1%}" if "cpu_ratio" in found else f"{'–':>9}"
        lines.append(
            f"{clients:>7}{thread['tok_s']:10.1f}{process['tok_s']:10.1f}{ratio['median']:14.1%} "
            f"({ratio['least']:.1%} to {ratio['greatest']:.1%})"
            f"{thread['ttft_ms']:9.2f}{process['ttft_ms']:9.2f}{added['median']:+8.2f}   {cpu}"
        )
    for name, processes in figures["memory"].items():
        for number, each in enumerate(processes):
            sizes = ", ".join(f"{key} {each[key] / MIB:,.0f}" for key in ("anonymous", "file", "kv", "proportional"))
            what = "server" if number == 0 else "engine process"
            lines.append(f"{name}: {what} {each['resident'] / MIB:,.0f} MiB resident ({sizes})")
    return "\n".join(lines)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Start both servers, run all rounds; return the figures."""
    clients: dict[str, Any] = {}
    with ExitStack() as stack:
        flags = ("--kv-memory", options.kv_memory) if options.kv_memory else ()
        servers = {name: stack.enter_context(serve(options.model, *FLAGS[name], *flags)) for name in FLAGS}
        arms = Arms(servers, options)
        for count in options.clients:
            requests = requests_for(count, options.waves)
            arms.round(count, measure.warmup_size(requests))
            clients[str(count)] = compare([arms.round(count, requests) for _ in range(options.rounds)])
        return {"clients": clients, "memory": memory(servers)}


def arguments() -> argparse.ArgumentParser:
    parser = measure.parser("engine_process", __doc__)
    parser.add_argument("--model", default="storyteller", help="a built-in name or a folder")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--prompt", type=int, default=128, help="tokens per prompt (default 128)")
    parser.add_argument("--out", type=int, default=64, help="tokens per completion (default 64)")
    parser.add_argument("--rounds", type=int, default=9, help="measured rounds (default 9)")
    parser.add_argument("--waves", type=int, default=4, help="requests per client and round (default 4, at least 8)")
    add_token_range(parser)
    parser.add_argument("--kv-memory", help="size of each KV cache, where two by default do not fit")
    return parser


def main(options: argparse.Namespace, report: measure.Report) -> None:
    figures = run(options)
    print(table(figures))
    report(figures)


if __name__ == "__main__":
    measure.run(arguments(), main)
