"""Runs a batch with limited concurrency; each result is saved as soon as it arrives."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Iterator, KeysView
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from msgspec.json import encode as encoded

from onward.api.ids import request_id
from onward.api.openai.batch_lines import answered, unanswered
from onward.cli.batch.journal import BatchJournal, record_id
from onward.cli.batch.lines import CheckedLines, InvalidLine, Line, check_lines, opened_input, read_lines
from onward.cli.batch.patience import BUSY_STATUSES, Patience, RequestLost
from onward.cli.batch.progress import Counts, print_summary, shown_bar
from onward.cli.interrupt import run
from onward.cli.output.errors import error_object
from onward.cli.output.terminal import warn
from onward.cli.session import Session
from onward.cli.source.base import Document, RemoteError, Source
from onward.cli.source.open import open_source, unknown_models
from onward.errors import ApiError, EngineStopped, InvalidRequest, ModelNotFound, SetupError

Keys = KeysView[str | int]


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
    num_expected = len(checked.requests)
    with BatchJournal(batch.output, num_expected) as results, BatchJournal(batch.errors) as rejections:
        _check_unchanged(batch, checked.requests, results, "use another file for the results, or move this one away")
        _check_unchanged(batch, checked.requests, rejections, "delete it to run its lines again")
        pending = _count(checked, results.keys, rejections.keys, counts)
        for bad in checked.invalid:
            if bad.number not in rejections.keys:
                rejections.write(_unsent(bad), bad.number)
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


def _count(checked: CheckedLines, answered: Keys, rejected: Keys, counts: Counts) -> list[Line]:
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
            rejections.write(_rejected(line, _model_not_found(model, unknown[model])), line.custom_id, line.digest)
            counts.rejected += 1
        else:
            to_run[line.number] = line.digest
    if not to_run:
        return
    source = open_source(batch.session.connection, [model for model in models if model not in unknown], quiet=True)
    with closing(read_lines(file, batch.model)) as lines, shown_bar(counts):
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
        self._patience = Patience(source)
        self._last_failure: RemoteError | None = None
        self._has_reported_model = False

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
        if line.body.get("stream"):  # nothing was sent, so this says nothing about the server
            problem = InvalidRequest("A batch cannot stream: remove `stream`.", param="stream")
            self._reject(line, _rejected(line, problem))
            return
        try:
            document = await self._patience.complete(lambda: self._source.complete(line.body))
        except EngineStopped:
            raise
        except RequestLost as problem:
            self._reject(line, _lost(line, problem))
        except (ApiError, RemoteError) as problem:
            if isinstance(problem, RemoteError) and _is_temporary(problem):
                self._skip(problem)
                return
            if problem.status in (401, 403):
                raise
            if isinstance(problem, RemoteError) and problem.is_unknown_model:
                self._report_unknown_model(line, problem)
            self._reject(line, _rejected(line, problem))
        else:
            self._results.write(_completed(line, document), line.custom_id, line.digest)
            self._counts.tokens += (document.value.get("usage") or {}).get("completion_tokens") or 0
            self._counts.answered += 1
        self._patience.finished()

    def _report_unknown_model(self, line: Line, problem: RemoteError) -> None:
        """Report, once, which models the server has. Raises the problem if every other line would fail in the same
        way."""
        if self._batch.model is not None:
            raise problem
        if not self._has_reported_model:
            self._has_reported_model = True
            warn(f"Line {line.number}: {problem.message} {problem.suggestion}".rstrip())

    def _reject(self, line: Line, record: bytes) -> None:
        self._rejections.write(record, line.custom_id, line.digest)
        self._counts.rejected += 1

    def _skip(self, problem: RemoteError) -> None:
        """Leave a line for the next run. Raises the problem if other lines would fail as well."""
        self._counts.unanswered += 1
        if problem.status in BUSY_STATUSES:
            raise problem
        self._last_failure = problem


def _is_temporary(problem: RemoteError) -> bool:
    """Return whether the server failed temporarily rather than rejected the line."""
    return problem.status in (408, 429) or problem.status >= 500


def _completed(line: Line, document: Document) -> bytes:
    """Return the line of a request that was completed, with the seed it was sampled with, if known."""
    seed = line.body.get("seed") if document.seed is None else document.seed
    ids = record_id(line.digest), document.request_id or request_id()
    return answered(*ids, encoded(line.custom_id), 200, document.raw.encode(), seed if isinstance(seed, int) else None)


def _rejected(line: Line, problem: ApiError | RemoteError) -> bytes:
    named = problem.request_id if isinstance(problem, RemoteError) else None
    ids = record_id(line.digest), named or request_id()
    return answered(*ids, encoded(line.custom_id), problem.status, encoded({"error": error_object(problem)}), None)


def _lost(line: Line, problem: RequestLost) -> bytes:
    """Return the line of a request that the server never answered, though it answers others."""
    message = f"Line {line.number}: {problem} The server answers other requests: this one may be too large for it."
    error = {"code": "connection_lost", "message": message}
    return unanswered(record_id(line.digest), encoded(line.custom_id), error)


def _unsent(line: InvalidLine) -> bytes:
    """Return the line of a request that was never sent: an error instead of a response."""
    error = {"code": line.code, "message": line.message, "line": line.number}
    return unanswered(record_id(secrets.token_hex(12)), encoded(line.custom_id), error)
