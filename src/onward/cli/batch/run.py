"""Runs a batch: a bounded number of requests under way, each result kept as soon as it is there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onward.cli.batch.journal import Journal, new_id
from onward.cli.batch.lines import Checked, Line, Unreadable, check_lines, read_lines
from onward.cli.batch.progress import Progress, summary
from onward.cli.output.errors import error_object
from onward.cli.output.terminal import note
from onward.cli.session import Session
from onward.cli.source.base import Source
from onward.cli.source.errors import RemoteError
from onward.cli.source.open import open_source, unknown_models
from onward.errors import ApiError, EngineStopped, InvalidRequest, ModelNotFound, Overloaded, SetupError
from onward.protocol.ids import request_id

FULL_QUEUE_SECONDS = 0.2
"""How long a request waits when this process's own queue is full; what is under way makes room."""
BUSY = (429, 502, 503)
"""A server's answers that say nothing of the line: it has too much to do, or is not there just now."""
PATIENCE_SECONDS = 600.0
"""A busy server that has answered none of the lines for so long ends the run; one answer may take as long."""


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
    """Where the lines of a file stand: `total` of them, 0 until they are known.

    `answered`, `refused` and `unsent` (what is no request) include those of earlier runs: `before`, of which
    `answered_before`. `unanswered` are those that a server neither answered nor refused: they are in no file. `tokens`
    are the completion tokens of this run.
    """

    total: int = 0
    before: int = 0
    answered_before: int = 0
    answered: int = 0
    refused: int = 0
    unsent: int = 0
    tokens: int = 0
    unanswered: int = 0

    @property
    def failed(self) -> int:
        return self.refused + self.unsent

    @property
    def lines(self) -> int:
        """How many have come to an end, in this run or before."""
        return self.answered + self.failed


def run_batch(batch: Batch, done: Done) -> None:
    """Answer what is not answered yet, counting in `done`.

    Raises SetupError, and what ends a run: ConnectionFailed, a refused key, a server that stays busy. When all others
    are done: what a server said of a line that it did not answer.
    """
    _check_apart(batch)
    checked, started = check_lines(batch.source), time.monotonic()
    with Journal(batch.output) as answers, Journal(batch.errors) as refusals:
        pending = _count(checked, answers.done, refusals.done, done)
        for bad in checked.unreadable:
            if bad.number not in refusals.done:
                refusals.append(_unread(bad))
                done.unsent += 1
        if pending:
            _answer_all(batch, pending, answers, refusals, done)
    summary(done, time.monotonic() - started, batch.errors)


def _count(checked: Checked, answered: set[str | int], refused: set[str | int], done: Done) -> list[Line]:
    """The requests that earlier runs left; counts all other lines in `done`."""
    done.total = len(checked.requests) + len(checked.unreadable)
    done.answered = sum(line.custom_id in answered for line in checked.requests)
    pending = [line for line in checked.requests if line.custom_id not in answered | refused]
    done.refused = len(checked.requests) - len(pending) - done.answered
    done.unsent = sum(line.number in refused for line in checked.unreadable)
    done.before, done.answered_before = done.lines, done.answered
    return pending


def _check_apart(batch: Batch) -> None:
    source, output, errors = (path.resolve() for path in (batch.source, batch.output, batch.errors))
    if source in (output, errors):
        raise SetupError(f"{batch.source} is the input: give another file for the results.")
    if output == errors:
        raise SetupError(f"{batch.output} is for the answers: give --errors another file.")


def _answer_all(batch: Batch, pending: list[Line], answers: Journal, refusals: Journal, done: Done) -> None:
    asked = {line.body["model"] for line in pending if isinstance(line.body["model"], str) and line.body["model"]}
    models = [batch.model] if batch.model else sorted(asked)
    unknown = {} if batch.model else unknown_models(batch.session.connection, models)
    wanted: set[int] = set()
    for line in pending:
        model = None if batch.model else line.body["model"]
        if isinstance(model, str) and model in unknown:
            refusals.append(_refused(line, _no_model(model, unknown[model])))
            done.refused += 1
        else:
            wanted.add(line.number)
    if not wanted:
        return
    source = open_source(batch.session.connection, [model for model in models if model not in unknown], quiet=True)
    requests = (line for line in read_lines(batch.source) if isinstance(line, Line) and line.number in wanted)
    with Progress(done) as progress:
        asyncio.run(_Run(source, batch, answers, refusals, done, progress).all(requests))


def _no_model(name: str, why: str) -> ModelNotFound:
    """What a server says of a model that it lacks, and why this process cannot have it."""
    return ModelNotFound(f"The model `{name}` does not exist or you do not have access to it. {why}")


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
        self._heard = time.monotonic()
        """When a line was answered last; before that, when the run began."""
        self._waited = False
        self._unanswered: RemoteError | None = None

    async def all(self, requests: Iterator[Line]) -> None:
        """Raises the first failure that ends the run, when all others are cancelled; at the end, what left a line."""
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._batch.concurrency):
                    group.create_task(self._work(requests))
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        finally:
            await self._source.aclose()
        if self._unanswered is not None:
            raise self._unanswered

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
            if isinstance(problem, RemoteError) and _is_unanswered(problem):
                self._leave(problem)
                return
            if problem.status in (401, 403):
                raise
            self._refusals.append(_refused(line, problem))
            self._done.refused += 1
        else:
            self._answers.append(_record(line, 200, document.value, document.request_id))
            self._done.tokens += (document.value.get("usage") or {}).get("completion_tokens") or 0
            self._done.answered += 1
        self._heard = time.monotonic()
        self._progress.show()

    async def _patiently(self, fields: dict[str, Any]) -> Any:
        """The answer. A queue of this process that others fill is waited for, and so is a busy server."""
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
                    delay = FULL_QUEUE_SECONDS
                except RemoteError as problem:
                    delay = self._patience(problem)
                await asyncio.sleep(delay)
        finally:
            self._under_way -= 1

    def _patience(self, problem: RemoteError) -> float:
        """Seconds until a busy server is asked again. Raises the problem where there is no point in it."""
        silent = time.monotonic() - self._heard
        if problem.status not in BUSY or problem.again_in is None or silent > PATIENCE_SECONDS:
            raise problem
        if not self._waited:
            self._waited = True
            note(f"{problem} Lines wait, and are asked again.")
        return problem.again_in

    def _leave(self, problem: RemoteError) -> None:
        """A line for the next run. Raises the problem where other lines would fare no better."""
        self._done.unanswered += 1
        if problem.status in BUSY:
            raise problem
        self._unanswered = problem


def _is_unanswered(problem: RemoteError) -> bool:
    """Whether the server could not answer just now, rather than refused the line."""
    return problem.status in (408, 429) or problem.status >= 500


def _record(line: Line, status: int, body: dict[str, Any], named: str | None) -> dict[str, Any]:
    """A line of OpenAI's batch output."""
    response = {"status_code": status, "request_id": named or request_id(), "body": body}
    return {
        "id": new_id(),
        "custom_id": line.custom_id,
        "response": response,
        "error": None,
    }


def _refused(line: Line, problem: ApiError | RemoteError) -> dict[str, Any]:
    named = problem.request_id if isinstance(problem, RemoteError) else None
    return _record(line, problem.status, {"error": error_object(problem)}, named)


def _unread(line: Unreadable) -> dict[str, Any]:
    """A line of OpenAI's batch output for what was never sent: no response, but an error of the batch itself."""
    return {
        "id": new_id(),
        "custom_id": line.custom_id,
        "response": None,
        "error": {"code": line.code, "message": line.message, "line": line.number},
    }
