"""One server asked in one way: the arms of a comparison, and how an arm is run."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.engine import Round
from benchmarks.http_client import Connection, Target, connect
from benchmarks.load import Bounds, Generator, run_async
from benchmarks.outcome import Outcome, summarise
from benchmarks.peer_build import SERVER
from benchmarks.server_process import Server
from benchmarks.workload import Workload

ONWARD, PEER = "Onward", SERVER
TOP_K = 40
"""llama-server's own default, without which it sorts the whole vocabulary for every token."""


def sampling(who: str, top_k: int) -> dict[str, Any]:
    """The request's fields that ask `who` for temperature, then top_k (0: off), then top_p, and nothing else."""
    body: dict[str, Any] = {"temperature": 0.8, "top_p": 0.95, "top_k": top_k, "min_p": 0.0}
    if who == PEER:
        body["samplers"] = (["top_k"] if top_k else []) + ["temperature", "top_p"]
        body["cache_prompt"] = False
    return body


class OneEach(Generator):
    """A new connection for every request, whoever is asked: llama-server promises to keep a connection and closes
    it after a stream."""

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Connection]:
        connection = await connect(self._target)
        try:
            yield connection
        finally:
            connection.close()


@dataclass(frozen=True, slots=True)
class Arm:
    """One server asked in one way. `name` is unique within a family and number of clients."""

    who: str
    precision: str
    server: Server
    model: str
    top_k: int

    @property
    def name(self) -> str:
        return f"{self.who} {self.precision}" + ("" if self.top_k else ", top_k off")


@dataclass(frozen=True, slots=True)
class Shape:
    """What every request looks like: tokens of prompt and output, and the ids that prompts are drawn from."""

    prompt: int
    out: int
    tokens: tuple[int, int]

    @property
    def length(self) -> int:
        """Tokens of prompt and output together."""
        return self.prompt + self.out


class Comparison:
    """Runs arms for one number of clients. No prompt is ever sent twice. `servers`: all that are alive."""

    def __init__(self, shape: Shape, clients: int, servers: list[Server], seeds: Iterator[int]) -> None:
        self._shape, self._clients, self._servers, self._seeds = shape, clients, servers, seeds
        self.idle_cpu: list[float] = []

    def run(self, arm: Arm, waves: int) -> Round:
        """One arm in one round. Raises RuntimeError unless every request wrote all its tokens."""
        shape = self._shape
        workload = Workload(
            arm.model,
            prompt=shape.prompt,
            tokens=shape.tokens,
            out=shape.out,
            seed=next(self._seeds),
            extra=sampling(arm.who, arm.top_k),
        )
        generator = OneEach(Target.parse(arm.server.url), workload, Bounds(self._clients * waves, timeout=600.0))
        idle = [server.pid for server in self._servers if server is not arm.server]
        before = sum(map(cpu_seconds, idle))
        outcomes = run_async(lambda: generator.closed(self._clients))
        figures = summarise(outcomes)
        self.idle_cpu.append((sum(map(cpu_seconds, idle)) - before) / figures["wall_s"])
        check_whole(arm.name, outcomes, shape.out)
        return Round(figures["output_tok_s"], None, outcomes)


def check_whole(name: str, outcomes: list[Outcome], out: int) -> None:
    """Raises RuntimeError for a request that failed, stopped early or was answered from a cache."""
    for outcome in outcomes:
        if outcome.error:
            raise RuntimeError(f"{name}: a request failed: {outcome.error}")
        if outcome.tokens != out or outcome.cached_tokens:
            raise RuntimeError(f"{name}: {outcome.tokens} of {out} tokens, {outcome.cached_tokens} cached")


def cpu_seconds(pid: int) -> float:
    """Processor time a process has used; 0 where the system does not tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
