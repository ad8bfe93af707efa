"""A client that times single requests and small groups of them, for scenarios that a uniform load cannot measure."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Sequence
from typing import Any

from benchmarks.http_client import Connection, Received, Target, parse_response
from benchmarks.load import run_async
from benchmarks.measure import BenchmarkError
from benchmarks.outcome import Outcome, parse_outcome
from benchmarks.server_process import Server

FIRST_TOKEN_ID = 256
"""Lowest id of random prompts: below are special tokens and single bytes."""
STREAMED = {
    "temperature": 0.8,
    "top_p": 0.95,
    "ignore_eos": True,
    "stream": True,
    "stream_options": {"include_usage": True},
}


class WatchedConnection(Connection):
    """A connection that signals when `reads` socket reads of the response have arrived, or all of it."""

    def __init__(self, reads: int) -> None:
        super().__init__()
        self._reads_left = reads
        self.is_streaming = asyncio.Event()

    async def send(self, request: bytes, sent: float | None = None) -> Received:
        try:
            return await super().send(request, sent)
        finally:
            self.is_streaming.set()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._reads_left -= 1
        if self._reads_left <= 0:
            self.is_streaming.set()


class TimedClient:
    """Sends requests to one server. Prompts are seeded random ids, never the same twice.

    Every method that sends raises BenchmarkError if a response is incomplete or an error.
    """

    def __init__(self, server: Server, model: str, vocabulary: int) -> None:
        self._target = Target.parse(server.url)
        self._model, self._vocabulary = model, vocabulary
        self._seeds = itertools.count()

    def new_prompt(self, size: int) -> list[int]:
        """Return a prompt of `size` tokens that was not sent before."""
        rng = random.Random(f"prompt {next(self._seeds)}")
        return [rng.randrange(min(FIRST_TOKEN_ID, self._vocabulary - 1), self._vocabulary) for _ in range(size)]

    def seconds(self, bodies: Sequence[dict[str, Any]]) -> float:
        """Send all requests at once; return the seconds from the first start to the last end."""
        responses = run_async(lambda: self._together(bodies))
        for received in responses:
            if (status := parse_response(received).status) != 200:
                raise BenchmarkError(f"status {status}: {parse_response(received).body[:300].decode(errors='replace')}")
        return max(each.ended for each in responses) - min(each.sent for each in responses)

    def ttft(self, prompt: list[int]) -> float:
        """Return the seconds to the first token of a streamed completion."""
        received = run_async(lambda: self._together([self._streamed(prompt, 2)]))[0]
        ttft = complete_outcome(received).ttft
        assert ttft is not None
        return ttft

    def gaps_beside(
        self, streams: int, quiet: int, out: int, *, prompt: int, long_prompt: int
    ) -> tuple[list[float], list[float]]:
        """Return the seconds between tokens of running streams, before and during the prefill of a long prompt.

        `streams` streams have prompts of `prompt` tokens and generate `out` tokens. The request with a prompt of
        `long_prompt` tokens is sent after `quiet` socket reads of each stream.
        """
        bodies = [self._streamed(self.new_prompt(prompt), out) for _ in range(streams)]
        late = self._streamed(self.new_prompt(long_prompt), 1)
        running, other = run_async(lambda: self._send_late(bodies, late, quiet))
        outcomes = [complete_outcome(received) for received in running]
        ttft = complete_outcome(other).ttft
        begin = max(outcome.sent + (outcome.ttft or 0.0) for outcome in outcomes)
        end = other.sent + (ttft or 0.0)
        if min(outcome.ended for outcome in outcomes) < end:
            raise BenchmarkError(f"streams of {out} tokens ended before a prompt of {long_prompt} tokens was prefilled")
        return (
            [gap for each in outcomes for gap in gaps_between(each, begin, other.sent)],
            [gap for each in outcomes for gap in gaps_between(each, other.sent, end)],
        )

    def _streamed(self, prompt: list[int], out: int) -> dict[str, Any]:
        return {"prompt": prompt, "max_tokens": out, **STREAMED}

    async def _together(self, bodies: Sequence[dict[str, Any]]) -> list[Received]:
        connections = [await self._connect(1) for _ in bodies]
        try:
            return list(
                await asyncio.gather(
                    *(each.send(self._request(body)) for each, body in zip(connections, bodies, strict=True))
                )
            )
        finally:
            for each in connections:
                each.close()

    async def _send_late(
        self, bodies: Sequence[dict[str, Any]], late: dict[str, Any], reads: int
    ) -> tuple[list[Received], Received]:
        connections = [await self._connect(reads) for _ in (*bodies, late)]
        *running, other = connections
        try:
            pending = [
                asyncio.create_task(each.send(self._request(body))) for each, body in zip(running, bodies, strict=True)
            ]
            await asyncio.gather(*(each.is_streaming.wait() for each in running))
            received = await other.send(self._request(late))
            return list(await asyncio.gather(*pending)), received
        finally:
            for each in connections:
                each.close()

    async def _connect(self, reads: int) -> WatchedConnection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            lambda: WatchedConnection(reads), self._target.host, self._target.port
        )
        return connection

    def _request(self, body: dict[str, Any]) -> bytes:
        return self._target.request({"model": self._model, **body})


def gaps_between(outcome: Outcome, begin: float, end: float) -> list[float]:
    """Return the gaps of a stream that end between `begin` and `end` of the run's clock, in seconds."""
    chunk_times = outcome.chunk_times[1:]
    return [gap for gap, time in zip(outcome.gaps, chunk_times, strict=True) if begin < time <= end]


def complete_outcome(received: Received) -> Outcome:
    """Return the outcome of a complete stream. Raises BenchmarkError for any other."""
    outcome = parse_outcome(received)
    if outcome.error:
        raise BenchmarkError(f"a request failed: {outcome.error}")
    return outcome
