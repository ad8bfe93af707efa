"""Runs a batch with limited concurrency; each result is saved as soon as it arrives."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Iterator, KeysView
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from onward.api.ids import request_id
from onward.cli.batch.journal import BatchJournal, record_id
from onward.cli.batch.lines import CheckedLine, InvalidLine, Line, check_lines, opened_input, read_lines
from onward.cli.batch.progress import Counts, Progress, print_summary
from onward.cli.interrupt import run
from onward.cli.output.errors import error_object
from onward.cli.output.terminal import note
from onward.cli.session import Session
from onward.cli.source.base import ConnectionFailed, RemoteError, Source
from onward.cli.source.open import open_source, unknown_models
from onward.errors import ApiError, EngineStopped, InvalidRequest, ModelNotFound, Overloaded, SetupError

Keys = KeysView[str | int]

FULL_QUEUE_DELAY_SECONDS = 0.2
"""How long a request waits if the queue of this process is full; running requests make room."""
BUSY_STATUSES = (429, 502, 503)
"""Statuses of a server that is overloaded or temporarily down; they say nothing about the line."""
MAX_SILENCE_SECONDS = 600.0
"""The run ends if a busy or lost server completes no line for this long; one completion may take as long."""
MAX_LOST = 2
"""A line is rejected when its connection was lost this many times, by a server that answered in between. Each time it
was sent as often as the source retries."""
RECONNECT_SECONDS = 2.0
"""How long a request waits for a server that has completed lines of this run and can no longer be reached."""


class _LineLost(Exception):
    """The server closed the connection whenever a line was sent, and answered other requests."""


@dataclass(frozen=True, slots=True)
class BatchRun:
    """A batch to run: the requests in `source`, one per line, with at most `concurrency` of them running at a time.

    Results are appended to `output`, rejected and invalid lines to `errors`.
    """

    source: Path
    output: Path
    errors: Path
    session: Session
    concurrency: int
    model: str | None
    """Overrides the model of every line; None: no override."""


def run_batch(batch: BatchRun, counts: Counts) -> None:
    """Run the requests that have no result yet; updates `counts`.

    Raises SetupError, and errors that end the run: no connection, an invalid key, a server that stays busy or lost.
    After all other lines: the last error of a line that the server failed to complete.
    """
    _check_apart(batch)
    with opened_input(batch.source) as file:
        _run_file(batch, file, counts)


def _run_file(batch: BatchRun, file: BinaryIO, counts: Counts) -> None:
    checked, started = check_lines(file, batch.source, batch.model), time.monotonic()
    with BatchJournal(batch.output) as results, BatchJournal(batch.errors) as rejections:
        _check_unchanged(batch, checked.requests, results, "use another file for the results, or move this one away")
        _check_unchanged(batch, checked.requests, rejections, "delete it to run its lines again")
        pending = _count(checked, results.keys, rejections.keys, counts)
        for bad in checked.invalid:
            if bad.number not in rejections.keys:
                rejections.append(_unsent_record(bad))
                counts.unsent += 1
        if pending:
            _run_pending(batch, file, pending, results, rejections, counts)
    print_summary(counts, time.monotonic() - started, batch.errors)


def _check_unchanged(batch: BatchRun, requests: list[Line], journal: BatchJournal, advice: str) -> None:
    """Raise SetupError if a line is not the request that the result under its custom_id belongs to."""
    for line in requests:
        if journal.digests.get(line.custom_id, "") not in ("", line.digest):
            raise SetupError(
                f"{journal.path} has a result of another request than line {line.number} of {batch.source} for the "
                f"custom_id {line.custom_id!r}: {advice}."
            )


def _count(checked: CheckedLine, answered: Keys, rejected: Keys, counts: Counts) -> list[Line]:
    """Return the requests that earlier runs left; count all lines in `counts`."""
    counts.total = len(checked.requests) + len(checked.invalid)
    counts.answered = sum(line.custom_id in answered for line in checked.requests)
    pending = [line for line in checked.requests if line.custom_id not in answered and line.custom_id not in rejected]
    counts.rejected = len(checked.requests) - len(pending) - counts.answered
    counts.unsent = sum(line.number in rejected for line in checked.invalid)
    counts.finished_before, counts.answered_before = counts.finished, counts.answered
    return pending


def _check_apart(batch: BatchRun) -> None:
    source, output, errors = (path.resolve() for path in (batch.source, batch.output, batch.errors))
    if source in (output, errors):
        raise SetupError(f"{batch.source} is the input: use another file for the results.")
    if output == errors:
        raise SetupError(f"{batch.output} is for the results: set --errors to another file.")


def _run_pending(
    batch: BatchRun,
    file: BinaryIO,
    pending: list[Line],
    results: BatchJournal,
    rejections: BatchJournal,
    counts: Counts,
) -> None:
    named = {line.body["model"] for line in pending if isinstance(line.body["model"], str) and line.body["model"]}
    models = [batch.model] if batch.model else sorted(named)
    unknown = {} if batch.model else unknown_models(batch.session.connection, models)
    to_run: dict[int, str] = {}
    for line in pending:
        model = None if batch.model else line.body["model"]
        if isinstance(model, str) and model in unknown:
            rejections.append(_rejected_record(line, _model_not_found(model, unknown[model])))
            counts.rejected += 1
        else:
            to_run[line.number] = line.digest
    if not to_run:
        return
    source = open_source(batch.session.connection, [model for model in models if model not in unknown], quiet=True)
    with closing(read_lines(file, batch.model)) as lines, Progress(counts):
        requests = (line for line in lines if isinstance(line, Line) and to_run.get(line.number) == line.digest)
        run(_Run(source, batch, results, rejections, counts).all(requests))
    if counts.finished + counts.unanswered < counts.total:
        raise SetupError(f"{batch.source} has changed since it was checked: run the same command again.")


def _model_not_found(name: str, why: str) -> ModelNotFound:
    """Return the error a server sends for an unknown model, with the reason why this process cannot load it."""
    return ModelNotFound(f"The model `{name}` does not exist or you do not have access to it. {why}")


class _Run:
    """The running requests. Used on one event loop."""

    def __init__(
        self,
        source: Source,
        batch: BatchRun,
        results: BatchJournal,
        rejections: BatchJournal,
        counts: Counts,
    ) -> None:
        self._source = source
        self._batch = batch
        self._results = results
        self._rejections = rejections
        self._counts = counts
        self._running = 0
        self._last_finished = time.monotonic()
        """When the last line finished; before that, when the run started."""
        self._has_finished = False
        self._has_waited = False
        self._last_failure: RemoteError | None = None

    async def all(self, requests: Iterator[Line]) -> None:
        """Run all requests. Raises the first error that ends the run, after cancelling the others; at the end, the last
        error of a skipped line."""
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._batch.concurrency):
                    group.create_task(self._work(requests))
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        finally:
            await self._source.aclose()
        if self._last_failure is not None:
            raise self._last_failure

    async def _work(self, requests: Iterator[Line]) -> None:
        for line in requests:
            await self._one(line)

    async def _one(self, line: Line) -> None:
        try:
            if line.body.get("stream"):
                raise InvalidRequest("A batch cannot stream: remove `stream`.", param="stream")
            document = await self._complete(line)
        except EngineStopped:
            raise
        except _LineLost as problem:
            self._rejections.append(_lost_record(line, problem))
            self._counts.rejected += 1
        except (ApiError, RemoteError) as problem:
            if isinstance(problem, RemoteError) and _is_temporary(problem):
                self._skip(problem)
                return
            if problem.status in (401, 403):
                raise
            self._rejections.append(_rejected_record(line, problem))
            self._counts.rejected += 1
        else:
            self._results.append(_record(line, 200, document.value, document.request_id))
            self._counts.tokens += (document.value.get("usage") or {}).get("completion_tokens") or 0
            self._counts.answered += 1
        self._last_finished, self._has_finished = time.monotonic(), True

    async def _complete(self, line: Line) -> Any:
        """Return the completion; waits while this process's queue is full or the server is busy. Raises _LineLost."""
        num_lost = 0
        self._running += 1
        try:
            while True:
                try:
                    return await self._source.complete(line.body)
                except EngineStopped:
                    raise
                except Overloaded:
                    if self._running == 1:
                        raise
                    delay = FULL_QUEUE_DELAY_SECONDS
                except RemoteError as problem:
                    delay = self._retry_delay(problem)
                except ConnectionFailed as problem:
                    if await self._server_answers():
                        num_lost += 1
                        if num_lost == MAX_LOST:
                            raise _LineLost(str(problem)) from None
                        delay = RECONNECT_SECONDS
                    else:
                        delay = self._retry_delay(problem)
                await asyncio.sleep(delay)
        finally:
            self._running -= 1

    async def _server_answers(self) -> bool:
        """Return whether the server answers another request than one whose connection was lost."""
        answers = getattr(self._source, "answers", None)
        return answers is not None and await answers()

    def _retry_delay(self, problem: RemoteError | ConnectionFailed) -> float:
        """Return the seconds until the next attempt. Raises the problem if another attempt is pointless."""
        delay = self._reconnect_delay() if isinstance(problem, ConnectionFailed) else _busy_delay(problem)
        if delay is None or time.monotonic() - self._last_finished > MAX_SILENCE_SECONDS:
            raise problem
        if not self._has_waited:
            self._has_waited = True
            note(f"{problem} Waiting; lines will be retried.")
        return delay

    def _reconnect_delay(self) -> float | None:
        """None for a server that has not completed any line: its address may be wrong."""
        return RECONNECT_SECONDS if self._has_finished else None

    def _skip(self, problem: RemoteError) -> None:
        """Leave a line for the next run. Raises the problem if other lines would fail as well."""
        self._counts.unanswered += 1
        if problem.status in BUSY_STATUSES:
            raise problem
        self._last_failure = problem


def _busy_delay(problem: RemoteError) -> float | None:
    """Return the seconds that a server which is busy or temporarily down asks for; None for other errors."""
    return problem.retry_in_seconds if problem.status in BUSY_STATUSES else None


def _is_temporary(problem: RemoteError) -> bool:
    """Return whether the server failed temporarily rather than rejected the line."""
    return problem.status in (408, 429) or problem.status >= 500


def _record(line: Line, status: int, body: dict[str, Any], named: str | None) -> dict[str, Any]:
    """Return a line of OpenAI's batch output."""
    response = {"status_code": status, "request_id": named or request_id(), "body": body}
    return {
        "id": record_id(line.digest),
        "custom_id": line.custom_id,
        "response": response,
        "error": None,
    }


def _rejected_record(line: Line, problem: ApiError | RemoteError) -> dict[str, Any]:
    named = problem.request_id if isinstance(problem, RemoteError) else None
    return _record(line, problem.status, {"error": error_object(problem)}, named)


def _lost_record(line: Line, problem: _LineLost) -> dict[str, Any]:
    """Return a line of OpenAI's batch output for a request that the server never answered, though it answers others."""
    message = f"Line {line.number}: {problem} The server answers other requests: this one may be too large for it."
    error = {"code": "connection_lost", "message": message}
    return {"id": record_id(line.digest), "custom_id": line.custom_id, "response": None, "error": error}


def _unsent_record(line: InvalidLine) -> dict[str, Any]:
    """Return a line of OpenAI's batch output for a request that was never sent: an error instead of a response."""
    return {
        "id": record_id(secrets.token_hex(12)),
        "custom_id": line.custom_id,
        "response": None,
        "error": {"code": line.code, "message": line.message, "line": line.number},
    }
