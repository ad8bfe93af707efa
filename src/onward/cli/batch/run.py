"""Runs a batch: a bounded number of requests under way, each result kept as soon as it is there."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onward.cli.batch.journal import Journal
from onward.cli.batch.lines import Line, check_lines, read_lines
from onward.cli.batch.progress import Progress, summary
from onward.cli.session import Session
from onward.cli.show.failures import error_object
from onward.cli.where.errors import RemoteError
from onward.cli.where.open import open_source
from onward.cli.where.source import Source
from onward.errors import ApiError, EngineStopped, InvalidRequest, Overloaded, SetupError
from onward.protocol.ids import request_id

FULL_QUEUE_SECONDS = 0.2
"""How long a request waits when this process's own queue is full; what is under way makes room."""


@dataclass(frozen=True, slots=True)
class Batch:
    source: Path
    output: Path
    errors: Path
    session: Session
    concurrency: int
    model: str | None
    """Asked instead of each line's own model; None: what the line says."""


@dataclass(slots=True)
class Done:
    """What a run has done so far: lines, of these failed ones, and completion tokens."""

    lines: int = 0
    failed: int = 0
    tokens: int = 0


def run_batch(batch: Batch) -> Done:
    """Answer what is not answered yet. Raises SetupError, and what ends a run: ConnectionFailed, a refused key."""
    if batch.source.resolve() in (batch.output.resolve(), batch.errors.resolve()):
        raise SetupError(f"{batch.source} is the input: give another file for the results.")
    lines = check_lines(batch.source)
    done, started = Done(), time.monotonic()
    with Journal(batch.output) as answers, Journal(batch.errors) as refusals:
        known = answers.done | refusals.done
        pending = [line for line in lines if line.custom_id not in known]
        before = len(lines) - len(pending)
        if pending:
            _answer_all(batch, pending, answers, refusals, done, before)
        failed = len(refusals.done)
    summary(done, before, time.monotonic() - started, batch.errors if failed else None, failed)
    done.failed = failed
    return done


def _answer_all(
    batch: Batch, pending: list[Line], answers: Journal, refusals: Journal, done: Done, before: int
) -> None:
    models = [batch.model] if batch.model else sorted({str(model) for line in pending if (model := line.body["model"])})
    source = open_source(batch.session.connection, models)
    wanted = {line.custom_id for line in pending}
    requests = (line for line in read_lines(batch.source) if line.custom_id in wanted)
    with ExitStack() as stack:
        progress = stack.enter_context(Progress(before + len(pending), before))
        asyncio.run(_Run(source, batch, answers, refusals, done, progress).all(requests))


class _Run:
    """The requests under way. Everything here happens on one event loop."""

    def __init__(
        self,
        source: Source,
        batch: Batch,
        answers: Journal,
        refusals: Journal,
        done: Done,
        progress: Progress,
    ) -> None:
        self._source = source
        self._batch = batch
        self._answers = answers
        self._refusals = refusals
        self._done = done
        self._progress = progress
        self._under_way = 0

    async def all(self, requests: Iterator[Line]) -> None:
        """Raises the first failure that ends the run, when all others are cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._batch.concurrency):
                    group.create_task(self._work(requests))
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        finally:
            await self._source.aclose()

    async def _work(self, requests: Iterator[Line]) -> None:
        for line in requests:
            await self._one(line)

    async def _one(self, line: Line) -> None:
        fields = {**line.body, "model": self._batch.model} if self._batch.model else line.body
        try:
            if fields.get("stream"):
                raise InvalidRequest("A batch cannot stream: leave `stream` out.", param="stream")
            document = await self._patiently(fields)
        except EngineStopped:
            raise
        except (ApiError, RemoteError) as problem:
            if problem.status in (401, 403):
                raise
            self._refusals.append(_record(line, problem.status, {"error": error_object(problem)}, _request_id(problem)))
            self._done.failed += 1
        else:
            self._answers.append(_record(line, 200, document.value, document.request_id))
            self._done.tokens += (document.value.get("usage") or {}).get("completion_tokens") or 0
        self._done.lines += 1
        self._progress.show(self._done)

    async def _patiently(self, fields: dict[str, Any]) -> Any:
        """The answer; a queue of this process that others fill is waited for."""
        self._under_way += 1
        try:
            while True:
                try:
                    return await self._source.whole(fields)
                except EngineStopped:
                    raise
                except Overloaded:
                    if self._under_way == 1:
                        raise
                await asyncio.sleep(FULL_QUEUE_SECONDS)
        finally:
            self._under_way -= 1


def _record(line: Line, status: int, body: dict[str, Any], named: str | None) -> dict[str, Any]:
    """A line of OpenAI's batch output."""
    response = {"status_code": status, "request_id": named or request_id(), "body": body}
    return {
        "id": f"batch_req_{secrets.token_hex(12)}",
        "custom_id": line.custom_id,
        "response": response,
        "error": None,
    }


def _request_id(problem: ApiError | RemoteError) -> str | None:
    return problem.request_id if isinstance(problem, RemoteError) else None
