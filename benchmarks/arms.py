"""The arms of a comparison: one server with one kind of request each, and how an arm is run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from benchmarks.engine import Round
from benchmarks.http_client import Connection, Target, connect
from benchmarks.load import Bounds, LoadGenerator, run_async
from benchmarks.measure import BenchmarkError
from benchmarks.outcome import Outcome, summarise
from benchmarks.peer_build import SERVER
from benchmarks.processes import cpu_seconds
from benchmarks.server_process import Server
from benchmarks.workload import Workload

ONWARD, PEER = "Onward", SERVER
TOP_K = 40
"""llama-server's default; without top_k it sorts the whole vocabulary for every token."""


def sampling_fields(system: str, top_k: int, *, cached: bool = False) -> dict[str, Any]:
    """Return request fields that make `system` apply temperature, then top_k (0: off), then top_p, and nothing else.
    `cached`: the peer may reuse what its cache has of the prompt."""
    body: dict[str, Any] = {"temperature": 0.8, "top_p": 0.95, "top_k": top_k, "min_p": 0.0}
    if system == PEER:
        body["samplers"] = (["top_k"] if top_k else []) + ["temperature", "top_p"]
        body["cache_prompt"] = cached
    return body


class FreshConnectionGenerator(LoadGenerator):
    """Opens a new connection for every request: llama-server announces keep-alive, but closes the connection after a
    stream."""

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Connection]:
        connection = await connect(self._target)
        try:
            yield connection
        finally:
            connection.close()


@dataclass(frozen=True, slots=True)
class Arm:
    """One server with one kind of request. `name` is unique within a family and number of clients."""

    system: str
    precision: str
    server: Server
    model: str
    top_k: int

    @property
    def name(self) -> str:
        return f"{self.system} {self.precision}" + ("" if self.top_k else ", top_k off")


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of every request: tokens of prompt and output, and the range (low, high) of prompt token ids. The first
    `shared` tokens are the same in all prompts of a round, and both servers may keep them."""

    prompt: int
    out: int
    tokens: tuple[int, int]
    shared: int = 0

    @property
    def total_tokens(self) -> int:
        """Prompt and output together."""
        return self.prompt + self.out


class Comparison:
    """Runs arms with one number of clients. No prompt is ever sent twice. `servers`: all that are running."""

    def __init__(self, shape: Shape, clients: int, servers: list[Server], seeds: Iterator[int]) -> None:
        self._shape, self._clients, self._servers, self._seeds = shape, clients, servers, seeds
        self.idle_cpu: list[float] = []

    def run(self, arm: Arm, waves: int) -> Round:
        """Run one arm for one round. Raises BenchmarkError unless every request generated all its tokens."""
        shape = self._shape
        workload = Workload(
            arm.model,
            prompt=shape.prompt,
            shared=shape.shared,
            tokens=shape.tokens,
            out=shape.out,
            seed=next(self._seeds),
            extra=sampling_fields(arm.system, arm.top_k, cached=shape.shared > 0),
        )
        generator = FreshConnectionGenerator(
            Target.parse(arm.server.url), workload, Bounds(self._clients * waves, timeout=600.0)
        )
        idle = [server.pid for server in self._servers if server is not arm.server]
        before = sum(cpu_seconds(pid) or 0.0 for pid in idle)
        outcomes = run_async(lambda: generator.closed_loop(self._clients))
        figures = summarise(outcomes)
        used = sum(cpu_seconds(pid) or 0.0 for pid in idle) - before
        self.idle_cpu.append(used / figures["wall_s"])
        check_complete(arm.name, outcomes, shape.out, cached=shape.shared > 0)
        return Round(figures["output_tok_s"], None, outcomes)


SHARED_BY_CHANCE = 2
"""Tokens at the start of a random prompt that one of some hundred others may begin with, too."""


def check_complete(name: str, outcomes: list[Outcome], out: int, *, cached: bool = False) -> None:
    """Raise BenchmarkError for a request that failed, stopped early or, unless it may be `cached`, used a prefix
    cache for more than what random prompts share."""
    for outcome in outcomes:
        if outcome.error:
            raise BenchmarkError(f"{name}: a request failed: {outcome.error}")
        if outcome.tokens != out or (outcome.cached_tokens > SHARED_BY_CHANCE and not cached):
            raise BenchmarkError(f"{name}: {outcome.tokens} of {out} tokens, {outcome.cached_tokens} cached")
