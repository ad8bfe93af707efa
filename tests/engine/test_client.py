"""Every message that crosses the engine's boundary can be encoded, and decodes to an equal one."""

from __future__ import annotations

import math
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onward.engine.client import COMMANDS, Cancel, CancelChoice, Command, EngineInfo, EngineState, Report, Stop, Submit
from onward.engine.events import EVENTS, Decoded, Event, Failed, Prefilled
from onward.engine.job import Job, ResumedChoice
from onward.engine_load import DraftCounts, EngineLoad
from onward.sampling.outputs import Sampled
from onward.sampling.params import SamplingParams
from onward.text.assembler import TextRules
from tests.examples import UNICODE

IDS = st.integers(0, 2**31)
TOKENS = st.integers(0, 2**21)
LOGPROBS = st.floats(width=32, allow_nan=False)
SAMPLED = st.builds(Sampled, TOKENS, LOGPROBS, st.lists(st.tuples(TOKENS, LOGPROBS), max_size=3).map(tuple), TOKENS)
JOBS = st.builds(
    Job,
    id=IDS,
    request=IDS,
    prompt=st.lists(TOKENS, min_size=1, max_size=5).map(tuple),
    num_choices=st.just(2),
    max_tokens=IDS,
    sampling=st.builds(
        SamplingParams,
        temperature=st.floats(0, 2),
        logit_bias=st.lists(st.tuples(TOKENS, st.floats(-100, 100)), max_size=3).map(tuple),
        seed=st.integers(0, 2**64 - 1),
        logprobs=st.none() | st.integers(0, 20),
    ),
    rules=st.builds(TextRules, stops=st.lists(st.text(UNICODE, min_size=1), max_size=3).map(tuple)),
    end_tokens=st.frozensets(TOKENS, max_size=3),
    pending=st.binary(max_size=3),
    prediction=st.lists(TOKENS, max_size=3).map(tuple),
    resume=st.none() | st.tuples(st.none(), st.builds(ResumedChoice, tokens=st.lists(TOKENS, max_size=3).map(tuple))),
)
COMMAND_MESSAGES = st.one_of(
    st.builds(Submit, st.lists(JOBS, min_size=1, max_size=2)),
    st.builds(Cancel, IDS),
    st.builds(CancelChoice, IDS, IDS),
    st.just(Stop()),
)
EVENT_MESSAGES = st.one_of(
    st.builds(Prefilled, IDS, IDS, st.none() | st.lists(st.none() | SAMPLED, max_size=3)),
    st.builds(Decoded, IDS, IDS, st.lists(SAMPLED, max_size=3), st.sampled_from([None, "stop", "length"]), IDS, IDS),
    st.builds(Failed, IDS, st.sampled_from(["stopped", "crashed", "rejected"]), st.text(UNICODE)),
)


@given(COMMAND_MESSAGES)
def test_every_command_survives_encoding(command: Command) -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(command), type=Command) == command


@given(st.lists(EVENT_MESSAGES, max_size=4))
def test_the_events_of_a_step_survive_encoding(step: list[Event]) -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(step), type=list[Event]) == step


def test_the_nan_of_a_log_probability_that_was_not_requested_survives_encoding() -> None:
    event = Decoded(1, 0, [Sampled(5, math.nan, ())])
    decoded = msgspec.msgpack.decode(msgspec.msgpack.encode(event), type=Event)
    assert isinstance(decoded, Decoded) and math.isnan(decoded.tokens[0].logprob)


@pytest.mark.parametrize(
    "report",
    [
        EngineInfo(300, 2048, 64, "fp_1"),
        EngineState("crashed", "out of memory"),
        EngineLoad(3, 2, 10, drafts=DraftCounts(1, 2, 3, 4)),
        Failed(1, "stopped", "stopped"),
    ],
)
def test_whatever_comes_up_can_share_one_stream(report: Report) -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(report), type=Report) == report


def test_the_sets_of_messages_are_closed_and_tagged() -> None:
    assert set(get_args(Command)) == set(COMMANDS) and set(get_args(Event)) == set(EVENTS)
    for message in (*COMMANDS, *EVENTS):
        info = msgspec.inspect.type_info(message)
        assert isinstance(info, msgspec.inspect.StructType) and info.tag == message.__name__
