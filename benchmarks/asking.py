"""Single requests and small groups of them, timed, where a load of one shape says too little."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Sequence
from typing import Any

from benchmarks.http_client import Connection, Received, Target, parse
from benchmarks.load import run_async
from benchmarks.outcome import Outcome, outcome_of
from benchmarks.server_process import Server

FIRST_TOKEN_ID = 256
"""Prompts are drawn from here on: below lie special tokens and single bytes."""
STREAMED = {
    "temperature": 0.8,
    "top_p": 0.95,
    "ignore_eos": True,
    "stream": True,
    "stream_options": {"include_usage": True},
}


class Watched(Connection):
    """Says when so many pieces of its answer have come, or all of it."""

    def __init__(self, pieces: int) -> None:
        super().__init__()
        self._left_to_come = pieces
        self.underway = asyncio.Event()

    async def ask(self, request: bytes, sent: float | None = None) -> Received:
        try:
            return await super().ask(request, sent)
        finally:
            self.underway.set()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._left_to_come -= 1
        if self._left_to_come <= 0:
            self.underway.set()


class Asker:
    """Asks one server. Prompts are seeded random ids, never the same twice.

    Every method raises RuntimeError when an answer is not whole.
    """

    def __init__(self, server: Server, model: str, vocabulary: int) -> None:
        self._target = Target.parse(server.url)
        self._model, self._vocabulary = model, vocabulary
        self._seeds = itertools.count()

    def fresh(self, size: int) -> list[int]:
        """A new prompt."""
        drawn = random.Random(f"prompt {next(self._seeds)}")
        return [drawn.randrange(min(FIRST_TOKEN_ID, self._vocabulary - 1), self._vocabulary) for _ in range(size)]

    def seconds(self, bodies: Sequence[dict[str, Any]]) -> float:
        """From the first request's start to the last one's end, all sent at once and answered whole."""
        answers = run_async(lambda: self._together(bodies))
        for received in answers:
            if (status := parse(received).status) != 200:
                raise RuntimeError(f"status {status}: {parse(received).body[:300].decode(errors='replace')}")
        return max(each.ended for each in answers) - min(each.sent for each in answers)

    def first_token(self, prompt: list[int]) -> float:
        """Seconds to the first token of a streamed completion."""
        received = run_async(lambda: self._together([self._streamed(prompt, 2)]))[0]
        first = whole(received).first
        assert first is not None
        return first

    def beside(
        self, streams: int, quiet: int, out: int, *, prompt: int, intruder: int
    ) -> tuple[list[float], list[float]]:
        """Seconds between tokens of `streams` streams of `out` tokens: before and while another prompt is read.

        The other one, of `intruder` tokens, is sent when each stream has come to `quiet` pieces.
        """
        bodies = [self._streamed(self.fresh(prompt), out) for _ in range(streams)]
        late = self._streamed(self.fresh(intruder), 1)
        running, other = run_async(lambda: self._intrude(bodies, late, quiet))
        outcomes = [whole(received) for received in running]
        first = whole(other).first
        begin = max(outcome.sent + (outcome.first or 0.0) for outcome in outcomes)
        end = other.sent + (first or 0.0)
        if min(outcome.ended for outcome in outcomes) < end:
            raise RuntimeError(f"streams of {out} tokens ended before a prompt of {intruder} was read")
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
                    *(each.ask(self._request(body)) for each, body in zip(connections, bodies, strict=True))
                )
            )
        finally:
            for each in connections:
                each.close()

    async def _intrude(
        self, bodies: Sequence[dict[str, Any]], late: dict[str, Any], pieces: int
    ) -> tuple[list[Received], Received]:
        connections = [await self._connect(pieces) for _ in (*bodies, late)]
        *running, other = connections
        try:
            asked = [
                asyncio.create_task(each.ask(self._request(body))) for each, body in zip(running, bodies, strict=True)
            ]
            await asyncio.gather(*(each.underway.wait() for each in running))
            received = await other.ask(self._request(late))
            return list(await asyncio.gather(*asked)), received
        finally:
            for each in connections:
                each.close()

    async def _connect(self, pieces: int) -> Watched:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(lambda: Watched(pieces), self._target.host, self._target.port)
        return connection

    def _request(self, body: dict[str, Any]) -> bytes:
        return self._target.request({"model": self._model, **body})


def gaps_between(outcome: Outcome, begin: float, end: float) -> list[float]:
    """The stream's gaps that end in this span of the run's clock, in seconds."""
    assert outcome.first is not None
    moments = itertools.accumulate(outcome.gaps, initial=outcome.sent + outcome.first)
    next(moments)
    return [gap for gap, moment in zip(outcome.gaps, moments, strict=True) if begin < moment <= end]


def whole(received: Received) -> Outcome:
    """Raises RuntimeError unless it is a whole stream."""
    outcome = outcome_of(received)
    if outcome.error:
        raise RuntimeError(f"a request failed: {outcome.error}")
    return outcome
