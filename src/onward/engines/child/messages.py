"""What passes between a server and an engine process, encoded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import msgspec

from onward.engine.client import Command, EngineInfo, Submit
from onward.engine.events import Decoded, Event, Prefilled
from onward.engine.job import Job
from onward.engines.child.link import StepReport
from onward.ipc.frames import decoded

T = TypeVar("T")

MAX_MESSAGE_TOKENS = 1_000_000
"""Token ids in one message down, above which it is split."""
MAX_REPORT_LOGPROBS = 16_384
"""Entries of log-probabilities in one report, above which it is split: decoding one holds the interpreter lock, for
about 0.1 µs per entry."""


class Configure(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The first message down. `payload` says which engine to load: opaque to the transport."""

    payload: bytes


class Describe(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The second message down. `vocabulary` is what the engine has to know of the tokenizer: opaque to the transport.

    It may come long after the first: the server loads the tokenizer while the engine's process loads the model.
    """

    vocabulary: bytes


class Ready(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The engine is loaded and takes commands."""

    info: EngineInfo


class Progressed(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A stage of loading begins: a sentence."""

    stage: str


class CouldNotStart(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The engine cannot be loaded. `reason` is a sentence for the operator, as of a SetupError; `blames_files`: whether
    the model's files are why."""

    reason: str
    blames_files: bool = False


class Logged(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A log record of the engine's process. `level` is a number of `logging`, `exception` a traceback or empty."""

    level: int
    logger: str
    message: str
    exception: str = ""


class Crashed(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The engine has crashed, and its process ends. `reason` is for the log."""

    reason: str


Upward = Ready | Progressed | CouldNotStart | Logged | Crashed | StepReport
Downward = Configure | Describe | Command

_encoder = msgspec.msgpack.Encoder()
_upward: msgspec.msgpack.Decoder[Upward] = msgspec.msgpack.Decoder(Upward)
_downward: msgspec.msgpack.Decoder[Downward] = msgspec.msgpack.Decoder(Downward)


def encode(message: Upward | Downward) -> bytes:
    """Return the payload of one frame."""
    return _encoder.encode(message)


def decode_upward(payload: bytes) -> Upward:
    """Raises BrokenMessage."""
    return decoded(_upward, payload, "a message from the engine's process")


def decode_downward(payload: bytes) -> Downward:
    """Raises BrokenMessage."""
    return decoded(_downward, payload, "a message to the engine's process")


def is_large(command: Command) -> bool:
    """Whether encoding takes milliseconds, so that it does not belong on an event loop."""
    return isinstance(command, Submit) and sum(map(_job_size, command.jobs)) > MAX_MESSAGE_TOKENS // 50


def split_command(command: Command) -> Iterator[Command]:
    """Yield commands with the same effect, of at most about MAX_MESSAGE_TOKENS each: a single job may exceed it, whose
    size is limited by the context length."""
    if not isinstance(command, Submit):
        yield command
        return
    yield from (Submit(jobs) for jobs in _batches(command.jobs, _job_size, MAX_MESSAGE_TOKENS))


def split_report(report: StepReport) -> Iterator[StepReport]:
    """Yield reports with the same events in the same order, of at most about MAX_REPORT_LOGPROBS each, except for
    single events. Only the last one may be idle."""
    if len(report.events) < 2 or sum(map(_event_size, report.events)) <= MAX_REPORT_LOGPROBS:
        yield report
        return
    *first, last = _batches(report.events, _event_size, MAX_REPORT_LOGPROBS)
    yield from (StepReport(events, report.load) for events in first)
    yield msgspec.structs.replace(report, events=last)


def _job_size(job: Job) -> int:
    """The token ids of a job, roughly."""
    resumed = sum(len(choice.tokens) for choice in job.resume or () if choice is not None)
    tokens = len(job.prompt) + len(job.prediction) + 2 * len(job.sampling.logit_bias) + resumed
    return 100 + tokens + len(job.grammar) // 4


def _event_size(event: Event) -> int:
    """The entries of log-probabilities of an event, roughly."""
    match event:
        case Prefilled():
            return 1 + sum(1 + len(scored.top) for scored in event.scores or () if scored is not None)
        case Decoded():
            return 1 + sum(1 + len(sampled.top) for sampled in event.tokens)
        case _:
            return 1


def _batches(items: list[T], size: Callable[[T], int], max_size: int) -> Iterator[list[T]]:
    """Yield all items in order, in lists of at most `max_size` together; a larger one is alone in its list."""
    batch: list[T] = []
    total = 0
    for item in items:
        if batch and total + size(item) > max_size:
            yield batch
            batch, total = [], 0
        batch.append(item)
        total += size(item)
    yield batch
