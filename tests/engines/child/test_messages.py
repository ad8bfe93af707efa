"""Messages between a server and an engine process: encoded and decoded; large ones are split."""

from __future__ import annotations

import math

import pytest

from onward.engine.client import Cancel, CancelChoice, Command, EngineInfo, Stop, Submit
from onward.engine.events import Decoded, Event, Failed, Prefilled
from onward.engine_load import EngineLoad
from onward.engines.child import messages
from onward.engines.child.link import StepReport
from onward.engines.child.messages import (
    Configure,
    CouldNotStart,
    Crashed,
    Describe,
    Logged,
    Progressed,
    Ready,
    Upward,
    decode_downward,
    decode_upward,
    encode,
    is_large,
    split_command,
    split_report,
)
from onward.ipc.frames import BrokenMessage
from onward.sampling.outputs import Sampled
from tests.engine.harness import make_job

EVENTS: list[Event] = [
    Prefilled(1, 3, [None, Sampled(5, -0.25, ((5, -0.25), (6, -math.inf)), rank=1)]),
    Decoded(1, 0, [Sampled(7, -1.5, ())], "stop", 2, 1),
    Failed(2, "crashed", "why"),
]
REPORT = StepReport(EVENTS, EngineLoad(num_running=3), [1, 2], is_idle=True)


@pytest.mark.parametrize(
    "message",
    [REPORT, Ready(EngineInfo(9, 8, 7, "fp")), Progressed("x"), CouldNotStart("y"), Logged(10, "a", "b"), Crashed("z")],
    ids=lambda message: type(message).__name__,
)
def test_messages_of_an_engine_survive_encoding(message: Upward) -> None:
    assert decode_upward(encode(message)) == message


@pytest.mark.parametrize(
    "message",
    [Configure(b"{}"), Describe(b"words"), Submit([make_job(max_tokens=3)]), Cancel(4), CancelChoice(5, 6), Stop()],
    ids=lambda message: type(message).__name__,
)
def test_messages_to_an_engine_survive_encoding(message: Configure | Describe | Command) -> None:
    assert decode_downward(encode(message)) == message


@pytest.mark.parametrize("payload", [b"", b"\x00", b"\xff" * 9, b"\x91\xa1\xff", b"\x91" * 10**5, encode(Stop())])
def test_what_is_not_a_message_is_an_error(payload: bytes) -> None:
    with pytest.raises(BrokenMessage):
        decode_upward(payload)


def test_a_large_submission_is_split_by_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "MAX_MESSAGE_TOKENS", 400)
    jobs = [make_job(max_tokens=3) for _ in range(10)]
    parts = list(split_command(Submit(jobs)))
    assert len(parts) > 2 and [job for part in parts if isinstance(part, Submit) for job in part.jobs] == jobs
    assert is_large(Submit(jobs)) and not is_large(Cancel(1)) and list(split_command(Stop())) == [Stop()]


def test_a_large_report_is_split_by_event_and_only_its_last_part_is_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(split_report(REPORT)) == [REPORT]
    monkeypatch.setattr(messages, "MAX_REPORT_LOGPROBS", 4)
    parts = list(split_report(REPORT))
    assert [event for part in parts for event in part.events] == EVENTS and len(parts) == 2
    assert [(part.admitted, part.is_idle) for part in parts] == [([], False), ([1, 2], True)]
