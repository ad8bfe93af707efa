"""Random bodies: every response is a completion or a 4xx in the envelope, never a 5xx."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onward.api.openai.parameters import PARAMETERS
from tests.examples import UNICODE, examples
from tests.parity.servers import COMPLETIONS, Server

NAMES = [row.name for row in PARAMETERS]
BOUNDED = settings(
    max_examples=examples(150),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
NUMBERS = st.integers(-3, 130) | st.floats(-3, 3) | st.sampled_from([2**31, 2**63, -(2**63), 1e300, 10**30])
TEXTS = st.text(UNICODE, max_size=12) | st.sampled_from(["<|endoftext|>", "<|fim_prefix|>", "\u0000", "🙂" * 50])
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=8,
)
PLAUSIBLE: dict[str, st.SearchStrategy[Any]] = {
    "prompt": TEXTS
    | st.lists(TEXTS, max_size=3)
    | st.lists(st.integers(0, 275), max_size=20)
    | st.lists(st.lists(st.integers(0, 272), min_size=1, max_size=9), max_size=3),
    "max_tokens": st.integers(0, 30),
    "n": st.integers(1, 5),
    "best_of": st.integers(0, 6),
    "logprobs": st.integers(0, 25),
    "echo": st.booleans(),
    "stream": st.booleans(),
    "stream_options": st.fixed_dictionaries(
        {},
        optional={name: st.booleans() for name in ("include_usage", "include_obfuscation", "continuous_usage_stats")},
    ),
    "stop": TEXTS | st.lists(TEXTS, max_size=5),
    "suffix": TEXTS,
    "seed": st.integers(-(2**63), 2**63 - 1),
    "temperature": st.floats(0, 2),
    "top_p": st.floats(0, 1),
    "top_k": st.integers(-1, 300),
    "min_p": st.floats(0, 1),
    "min_tokens": st.integers(0, 9),
    "repetition_penalty": st.floats(0.01, 100),
    "frequency_penalty": st.floats(-2, 2),
    "presence_penalty": st.floats(-2, 2),
    "logit_bias": st.dictionaries(st.integers(0, 280).map(str), st.floats(-100, 100), max_size=4),
    "prediction": st.fixed_dictionaries(
        {"type": st.just("content")},
        optional={
            "content": TEXTS
            | st.lists(st.fixed_dictionaries({"type": st.just("text")}, optional={"text": TEXTS}), max_size=3)
        },
    ),
    "ignore_eos": st.booleans(),
    "skip_special_tokens": st.booleans(),
    "include_stop_str_in_output": st.booleans(),
    "return_tokens_as_token_ids": st.booleans(),
}
PLAUSIBLE_REQUESTS = st.fixed_dictionaries({"model": st.just("toy")}, optional=PLAUSIBLE)
TOKEN_REQUESTS = st.fixed_dictionaries(
    {},
    optional={
        "prompt": JSON,
        "tokens": st.lists(NUMBERS, max_size=5),
        "model": JSON,
        "add_special_tokens": JSON,
    },
)


def check(server: Server, body: bytes, path: str = COMPLETIONS) -> None:
    answer = server.send("POST", path, body, {"content-type": "application/json"})
    if answer.status == 200:
        if answer.headers["content-type"] == "text/event-stream":
            assert answer.chunks and "error" not in answer.chunks[-1]
        else:
            assert answer.json["object"] == "text_completion"
            assert all(choice["finish_reason"] for choice in answer.choices)
        return
    assert answer.status in (400, 404), answer.raw
    assert set(answer.error) == {"message", "type", "param", "code"}


@BOUNDED
@given(st.dictionaries(st.sampled_from(NAMES) | TEXTS, JSON, max_size=6))
def test_any_object_is_completed_or_rejected(server: Server, fields: dict[str, Any]) -> None:
    fields.setdefault("model", "toy")
    check(server, json.dumps(fields).encode())


@BOUNDED
@given(PLAUSIBLE_REQUESTS)
def test_plausible_requests_are_completed_or_rejected(server: Server, fields: dict[str, Any]) -> None:
    check(server, json.dumps(fields).encode())


@BOUNDED
@given(st.binary(max_size=60))
def test_any_bytes_are_rejected(server: Server, body: bytes) -> None:
    check(server, body)


@settings(BOUNDED, max_examples=examples(60))
@given(
    st.fixed_dictionaries({"model": st.just("toy")}, optional=PLAUSIBLE),
    st.integers(0, 200),
    st.binary(max_size=3),
)
def test_a_damaged_body_is_completed_or_rejected(server: Server, fields: Any, place: int, damage: bytes) -> None:
    body = json.dumps(fields).encode()
    check(server, body[:place] + damage + body[place + len(damage) :])


@settings(BOUNDED, max_examples=examples(60))
@given(st.sampled_from(["/tokenize", "/detokenize"]), JSON | TOKEN_REQUESTS)
def test_the_token_routes_respond_or_reject(server: Server, path: str, value: Any) -> None:
    answer = server.send("POST", path, json.dumps(value).encode())
    assert answer.status in (200, 400, 404), answer.raw
    assert answer.status == 200 or set(answer.error) == {"message", "type", "param", "code"}
