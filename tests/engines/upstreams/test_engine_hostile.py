"""Upstreams with invalid answers: each is one sentence in the log, and has one outcome for the client.

What cannot be an answer fails its request alone, or is resumed at another address; what says that the server or its
engine is lost is asked for again; what does not end is given up before it takes memory.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import pytest

from onward.backends.embedded import EmbeddedBackend
from onward.compose import compose
from onward.engines.upstreams.wire import Wire
from onward.errors import EngineStopped, ServerError, SetupError
from tests.engines.upstreams.harness import ask, complete, on, settings, spell
from tests.engines.upstreams.standin import CONTEXT, Fault, Handler, StandIn, stand_in
from tests.examples import slow_but
from tests.waiting import PATIENCE_SECONDS

KINDS = ("llama", "vllm", "sglang")
MAX_SENT = 48 << 20
"""What may be on its way to a client that has stopped reading: its own limit, and the buffers of two sockets."""
Value = Any
Path = tuple[str | int, ...]

TOKENS: dict[str, Path] = {
    "llama": ("tokens",),
    "vllm": ("choices", 0, "token_ids"),
    "sglang": ("output_ids",),
}
LOGPROB: dict[str, Path] = {
    "llama": ("completion_probabilities", 0, "logprob"),
    "vllm": ("choices", 0, "logprobs", "token_logprobs", 0),
    "sglang": ("meta_info", "output_token_logprobs", 0, 0),
}
ALTERNATIVES: dict[str, Path] = {
    "llama": ("completion_probabilities", 0, "top_logprobs"),
    "vllm": ("choices", 0, "logprobs", "top_logprobs", 0),
    "sglang": ("meta_info", "output_top_logprobs", 0),
}
INDEX: dict[str, Path] = {"llama": ("index",), "vllm": ("choices", 0, "index"), "sglang": ("index",)}


def alternatives(kind: str, *pairs: tuple[Value, Value]) -> Value:
    """The most likely tokens at a position, as (token id, log-probability) pairs."""
    match kind:
        case "llama":
            return [{"id": token, "logprob": value} for token, value in pairs]
        case "vllm":
            return {f"token_id:{token}": value for token, value in pairs}
    return [[value, token, None] for token, value in pairs]


def event(kind: str, *tokens: Value) -> dict[str, Any]:
    """An event, or an answer, with these tokens, each as likely as the other, and the last ones."""
    top = [alternatives(kind, (98, -1.0)) for _ in tokens]
    match kind:
        case "llama":
            probabilities = [
                {"id": token, "logprob": -0.5, "top_logprobs": each} for token, each in zip(tokens, top, strict=True)
            ]
            return {"tokens": list(tokens), "completion_probabilities": probabilities, "stop": True}
        case "vllm":
            names = [f"token_id:{token}" for token in tokens]
            logprobs = {"tokens": names, "token_logprobs": [-0.5 for _ in tokens], "top_logprobs": top}
            choice = {"index": 0, "token_ids": list(tokens), "logprobs": logprobs, "finish_reason": "length"}
            return {"choices": [choice]}
    meta = {
        "completion_tokens": len(tokens),
        "finish_reason": {"type": "length"},
        "output_token_logprobs": [[-0.5, token, None] for token in tokens],
        "output_top_logprobs": top,
    }
    return {"output_ids": list(tokens), "meta_info": meta}


def changed(message: dict[str, Any], path: Path, value: Value) -> dict[str, Any]:
    message = deepcopy(message)
    target: Any = message
    for step in path[:-1]:
        target = target[step]
    target[path[-1]] = value
    return message


def raw(content: bytes) -> Fault:
    """Send the rest of an event."""

    def answer(handler: Handler, body: dict[str, Any]) -> None:
        handler.begin_stream()
        handler.send_chunk((b"data: " if not content.startswith(b"error") else b"") + content + b"\n\n")
        handler.send_chunk(b"data: [DONE]\n\n")
        handler.send_chunk(b"")

    return answer


def one(message: object) -> Fault:
    """Send one event, and end."""
    return raw(json.dumps(message).encode())


def status(code: int, message: object) -> Fault:
    return lambda handler, body: handler.send_json(message, code)


@pytest.fixture(params=KINDS)
def server(request: pytest.FixtureRequest) -> Iterator[StandIn]:
    with stand_in(request.param) as running:
        yield running


OTHER_FORM = "sent an answer of another form than was asked for"
ANSWERS: dict[str, tuple[Callable[[str], dict[str, Any]], str]] = {
    "tokens in a text": (lambda kind: changed(event(kind, 97), TOKENS[kind], "97"), OTHER_FORM),
    "a token with a fraction": (lambda kind: changed(event(kind, 97), TOKENS[kind], [97.5]), OTHER_FORM),
    "a token as a float": (lambda kind: changed(event(kind, 97), TOKENS[kind], [97.0]), OTHER_FORM),
    "a boolean token": (lambda kind: changed(event(kind, 97), TOKENS[kind], [True]), OTHER_FORM),
    "a token that is null": (lambda kind: changed(event(kind, 97), TOKENS[kind], [None]), OTHER_FORM),
    "tokens in an object": (lambda kind: changed(event(kind, 97), TOKENS[kind], {"97": 97}), OTHER_FORM),
    "a token beyond all vocabularies": (lambda kind: event(kind, 10**9), "token 1000000000, which"),
    "a negative token": (lambda kind: event(kind, -7), "token -7, which the tokenizer does not have"),
    "a token beyond 64 bits": (lambda kind: event(kind, 10**30), "which the tokenizer does not have"),
    "more tokens than asked for": (lambda kind: event(kind, 97, 98, 99, 100), "more than the 3 tokens"),
    "a log-probability in a text": (lambda kind: changed(event(kind, 97), LOGPROB[kind], "nan"), OTHER_FORM),
    "a probability above 1": (lambda kind: changed(event(kind, 97), LOGPROB[kind], 5), "sent the log-probability 5"),
    "no log-probability": (lambda kind: changed(event(kind, 97), LOGPROB[kind], None), "without its log-probability"),
    "an alternative beyond all vocabularies": (
        lambda kind: changed(event(kind, 97), ALTERNATIVES[kind], alternatives(kind, (10**8, -1.0))),
        "token 100000000, which",
    ),
    "an alternative above 1": (
        lambda kind: changed(event(kind, 97), ALTERNATIVES[kind], alternatives(kind, (98, 0.5))),
        "sent the log-probability 0.5",
    ),
    "an alternative in a text": (
        lambda kind: changed(event(kind, 97), ALTERNATIVES[kind], alternatives(kind, (98, "-1"))),
        OTHER_FORM,
    ),
    "too few alternatives": (
        lambda kind: changed(event(kind, 97), ALTERNATIVES[kind], alternatives(kind)),
        "sent 0 alternatives to a token instead of 1",
    ),
    "another choice": (lambda kind: changed(event(kind, 97), INDEX[kind], 1), "sent choice 1"),
    "log-probabilities of others": (
        lambda kind: changed(event(kind, 97), TOKENS[kind], [99]),
        "the log-probabilities of other tokens",
    ),
}


@pytest.mark.parametrize("name", slow_but([*ANSWERS][::2], ANSWERS))
def test_an_impossible_answer_fails_its_request_alone(
    server: StandIn, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    make, words = ANSWERS[name]

    async def test(backend: EmbeddedBackend) -> None:
        server.faults = [one(make(server.kind))]
        with pytest.raises(ServerError):
            await complete(backend, max_tokens=3, logprobs=1)
        assert len(server.requests) == 1 and words in caplog.text and server.url in caplog.text
        assert backend.health().state == "ready"
        assert (await complete(backend, max_tokens=3, logprobs=1)).choices[0].finish_reason == "length"

    on(server, test)


@pytest.mark.parametrize("name", ["a negative token", "a probability above 1", "a boolean token"])
def test_an_impossible_answer_is_asked_for_at_another_address(name: str) -> None:
    with stand_in("vllm") as first, stand_in("vllm") as second:
        for server in (first, second):
            spell(server, "fine")
            server.faults = [one(ANSWERS[name][0]("vllm"))] if server is first else []
        answers = [ask_both(first, second) for _ in range(2)]
    assert answers == ["fine", "fine"]


def ask_both(*servers: StandIn) -> str:
    return str(on(list(servers), lambda backend: complete(backend, max_tokens=9, logprobs=1)).choices[0].text)


@pytest.mark.parametrize(
    "content", [b"null", b"[]", b"5", b"", b"{", b'{"a":NaN}', b'"\xff"', b'{"a":' + b"[" * 50_000]
)
def test_an_invalid_message_fails_its_request_alone(
    server: StandIn, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    server.faults = [raw(content)]
    with pytest.raises(ServerError):
        ask(server, max_tokens=80)
    assert len(server.requests) == 1
    assert OTHER_FORM in caplog.text or "did not answer with JSON" in caplog.text


def test_a_probability_of_zero_becomes_the_lowest_log_probability(server: StandIn) -> None:
    """llama-server sends the lowest float32 for -inf, and JSON has null for it; vLLM sends -9999."""
    least = {"llama": -3.4028234663852886e38, "vllm": -9999.0, "sglang": None}[server.kind]
    message = changed(event(server.kind, 97), ALTERNATIVES[server.kind], alternatives(server.kind, (98, least)))
    server.faults = [one(message)]
    [choice] = ask(server, max_tokens=1, logprobs=1).choices
    assert choice.logprobs is not None and choice.logprobs.top_logprobs == [{"a": -0.5, "b": -9999.0}]


def test_a_sum_that_was_rounded_is_a_probability_of_one(server: StandIn) -> None:
    server.faults = [one(changed(event(server.kind, 97), LOGPROB[server.kind], 1.2e-7))]
    [choice] = ask(server, max_tokens=1, logprobs=1).choices
    assert choice.logprobs is not None and choice.logprobs.token_logprobs == [0.0]


LOST: dict[str, tuple[Fault, str]] = {
    "a line of an older llama-server": (
        raw(b'error: {"code":500,"message":"out of memory","type":"server_error"}'),
        "refused the request: out of memory",
    ),
    "the status of a dead engine": (
        status(500, {"error": {"message": "EngineCore encountered an issue.", "code": 500}}),
        "refused the request: EngineCore encountered an issue (status 500).",
    ),
    "an event of a dead engine": (
        one({"error": {"message": "EngineCore encountered an issue.", "type": "InternalServerError", "code": 500}}),
        "refused the request: EngineCore encountered an issue.",
    ),
    "a status without a reason": (status(503, {}), "answered with status 503."),
    "an error that is no JSON": (
        lambda handler, body: handler.send_content("text/plain", b"Internal Server Error", 500),
        "did not answer with JSON, but with 'Internal Server Error' (status 500).",
    ),
}


@pytest.mark.parametrize("name", LOST)
def test_an_answer_that_says_that_the_engine_is_lost_is_asked_for_again(
    server: StandIn, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    fault, words = LOST[name]
    spell(server, "goes on")
    server.faults = [fault]
    [choice] = ask(server, max_tokens=20).choices
    assert (choice.text, choice.finish_reason) == ("goes on", "stop")
    assert len(server.requests) == 2 and words in caplog.text


def test_an_engine_that_stays_lost_is_reported_as_lost(server: StandIn, caplog: pytest.LogCaptureFixture) -> None:
    server.faults = [LOST["an event of a dead engine"][0]] * 3
    with pytest.raises(EngineStopped, match=r"was lost and does not answer\. Retry your request later\."):
        ask(server, max_tokens=9)
    assert len(server.requests) == 3


@pytest.mark.parametrize("code", [400, 413, 422, "422"])
def test_an_event_that_refuses_the_request_is_final(server: StandIn, code: int | str) -> None:
    server.faults = [one({"error": {"message": "too\nlong\x1b[2J" + "!" * 5000, "code": code}})]
    with pytest.raises(ServerError):
        ask(server, max_tokens=9)
    assert len(server.requests) == 1


def test_the_reason_of_a_loss_is_one_line_of_the_log(server: StandIn, caplog: pytest.LogCaptureFixture) -> None:
    server.faults = [one({"error": {"message": "too\nlong\x1b[2J" + "!" * 5000}})]
    with pytest.raises(ServerError):
        ask(server, max_tokens=9)
    [message] = [record.getMessage() for record in caplog.records if "refused" in record.getMessage()]
    assert "too long [2J!!" in message and len(message) < 500


def head(status_line: str, **headers: str) -> bytes:
    fields = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {status_line}\r\n{fields}\r\n".encode()


def endless(begin: bytes, content: bytes) -> Fault:
    def answer(handler: Handler, body: dict[str, Any]) -> None:
        handler.wfile.write(begin)
        handler.send_endlessly(content)

    return answer


EVENTS = head("200 OK", content_type="text/event-stream")
TOO_MUCH = "sent more than what it was asked for takes"
ENDLESS: dict[str, tuple[Fault, str]] = {
    "headers": (endless(b"HTTP/1.1 200 OK\r\n", b"a: b\r\n" * 5_000), "sent headers that are too long"),
    "interim answers": (endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 999), "sent headers that are too long"),
    "an event": (endless(EVENTS + b'data: {"tokens":[', b"97," * 30_000), TOO_MUCH),
    "a line": (endless(EVENTS, b"x" * 90_000), TOO_MUCH),
    "comments": (endless(EVENTS, b": ping\n\n" * 9_000), TOO_MUCH),
    "empty lines": (endless(EVENTS, b"\n" * 90_000), TOO_MUCH),
}


@pytest.mark.parametrize("name", slow_but(["headers", "an event", "comments"], ENDLESS))
def test_an_answer_without_end_is_given_up(server: StandIn, name: str, caplog: pytest.LogCaptureFixture) -> None:
    fault, words = ENDLESS[name]
    server.faults = [fault]
    with pytest.raises(ServerError):
        on(server, lambda backend: complete(backend, max_tokens=3), engine_timeout=0)
    assert words in caplog.text and server.was_left.wait(PATIENCE_SECONDS) and server.num_sent < MAX_SENT


@pytest.mark.parametrize("kind", slow_but(["vllm"], KINDS))
def test_an_answer_that_ends_again_and_again_is_given_up(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    with stand_in(kind) as server:
        ends = b"data: " + json.dumps(event(kind)).encode() + b"\n\n"
        server.faults = [endless(EVENTS, ends * 9_000)]
        with pytest.raises(ServerError):
            on(server, lambda backend: complete(backend, max_tokens=3), engine_timeout=0)
        assert TOO_MUCH in caplog.text and server.was_left.wait(PATIENCE_SECONDS) and server.num_sent < MAX_SENT


def test_an_endless_reason_is_not_read(server: StandIn) -> None:
    spell(server, "goes on")
    server.faults = [endless(head("500 Internal Server Error", content_length="1500000000"), b'{"error": "' * 9_000)]
    [choice] = ask(server, max_tokens=20).choices
    assert choice.text == "goes on" and server.was_left.wait(PATIENCE_SECONDS) and server.num_sent < MAX_SENT


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_in_one_piece_has_a_limit(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    with stand_in(kind) as server:
        server.faults = [endless(head("200 OK", content_length="1500000000"), b'{"tokens":[' + b"97," * 30_000)]
        with pytest.raises(ServerError):  # llama-server scores prompts by such answers too
            ask(server, max_tokens=0, echo=True, logprobs=1)
        assert TOO_MUCH in caplog.text and server.was_left.wait(PATIENCE_SECONDS) and server.num_sent < MAX_SENT


def drip(begin: bytes, content: bytes) -> Fault:
    def answer(handler: Handler, body: dict[str, Any]) -> None:
        handler.close_connection = True
        handler.wfile.write(begin)
        try:
            while not handler.server_state.release.wait(0.02):
                handler.wfile.write(content)
        except OSError:
            handler.server_state.was_left.set()

    return answer


SILENCE = [b": ping\n\n", b"\n", b"x", b'data: {"tokens":[],"choices":[]}\n\n']


def hurry(server: StandIn, monkeypatch: pytest.MonkeyPatch, *, silence: float = 0.0, body: float = math.inf) -> None:
    """Wait so many seconds for a token, or for the whole body, of the first answer that a server is asked for; for
    others as always, however slow the machine is."""
    expect = Wire.expect

    def expected(wire: Wire, num_bytes: int, seconds: float = math.inf, *, data_counts: bool = False) -> None:
        if len(server.requests) == 1:
            wire._silence, seconds = silence or wire._silence, min(seconds, body)
        expect(wire, num_bytes, seconds, data_counts=data_counts)

    monkeypatch.setattr(Wire, "expect", expected)


@pytest.mark.parametrize("content", slow_but([SILENCE[0], SILENCE[-1]], SILENCE))
def test_a_stream_that_brings_no_token_counts_as_silent(
    content: bytes, server: StandIn, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurry(server, monkeypatch, silence=0.3)
    if content.startswith(b"data") and server.kind == "sglang":
        content = b'data: {"output_ids":[],"meta_info":{}}\n\n'
    spell(server, "late")
    server.faults = [drip(EVENTS, content)]
    answer = on(server, lambda backend: complete(backend, max_tokens=9))
    assert answer.choices[0].text == "late" and "sent no token for too long" in caplog.text
    assert server.was_left.wait(PATIENCE_SECONDS)


def test_an_answer_that_comes_byte_by_byte_is_lost(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with stand_in("vllm") as server:
        hurry(server, monkeypatch, body=0.3)
        server.faults = [drip(head("200 OK", content_length="100000"), b" ")]
        [choice] = ask(server, max_tokens=0, echo=True, logprobs=1).choices
        assert choice.text and "takes too long to send its answer" in caplog.text and len(server.requests) == 2


def scored(kind: str, tokens: list[int]) -> dict[str, Any]:
    if kind == "vllm":
        names = [f"token_id:{token}" for token in tokens]
        top: list[Value] = [None, *({name: -0.5} for name in names[1:])]
        logprobs = {"tokens": names, "token_logprobs": [None, *(-0.5 for _ in tokens[1:])], "top_logprobs": top}
        ranks = [None, *({str(token): {"rank": 1}} for token in tokens[1:])]
        return {"choices": [{"index": 0, "logprobs": logprobs, "prompt_logprobs": ranks, "finish_reason": "length"}]}
    values = [[None if index == 0 else -0.5, token, None] for index, token in enumerate(tokens)]
    top = [None, *([[-0.5, token, None]] for token in tokens[1:])]
    return {"output_ids": [], "meta_info": {"input_token_logprobs": values, "input_top_logprobs": top}}


SCORES: dict[str, Path] = {
    "vllm": ("choices", 0, "logprobs", "token_logprobs"),
    "sglang": ("meta_info", "input_token_logprobs"),
}


@pytest.mark.parametrize("kind", SCORES)
@pytest.mark.parametrize(
    ("value", "words"),
    [
        (5, "sent the log-probability 5"),
        (None, "without its log-probability"),
        ("nan", OTHER_FORM),
        ([], OTHER_FORM),
    ],
)
def test_scores_are_those_of_the_prompt(kind: str, value: Value, words: str, caplog: pytest.LogCaptureFixture) -> None:
    message = scored(kind, [83, 97, 121])
    place = (*SCORES[kind], 1) if kind == "vllm" else (*SCORES[kind], 1, 0)
    scores_fail(kind, changed(message, place, value), words, caplog)


@pytest.mark.parametrize("kind", SCORES)
@pytest.mark.parametrize("tokens", [[], [83], [83, 97], [83, 97, 121, 97], [97, 83, 121], [83, 97, 10**9]])
def test_scores_are_as_many_as_the_prompt_has_tokens(
    kind: str, tokens: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    scores_fail(kind, scored(kind, tokens), "of other tokens", caplog)


def scores_fail(kind: str, message: dict[str, Any], words: str, caplog: pytest.LogCaptureFixture) -> None:
    with stand_in(kind) as server:
        server.faults = [status(200, message)]
        with pytest.raises(ServerError):
            ask(server, prompt=[83, 97, 121], max_tokens=0, echo=True, logprobs=1)
        assert words in caplog.text and len(server.requests) == 1


@pytest.mark.parametrize("rank", [0, -1, 10**9, None])
def test_ranks_are_places_in_the_vocabulary(rank: Value, caplog: pytest.LogCaptureFixture) -> None:
    message = scored("vllm", [83, 97])
    message = changed(message, ("choices", 0, "prompt_logprobs", 1, "97", "rank"), rank)
    message = changed(message, ("choices", 0, "logprobs", "top_logprobs", 1), {"token_id:98": -0.25})
    with stand_in("vllm") as server:
        server.faults = [status(200, message)]
        with pytest.raises(ServerError):
            ask(server, prompt=[83, 97], max_tokens=0, prompt_logprobs=1)
        assert OTHER_FORM in caplog.text or f"a token of rank {rank}" in caplog.text


MODELS = "/v1/models"
DESCRIPTIONS: list[tuple[str, str, Value, str]] = [
    ("llama", "/props", {"default_generation_settings": {"n_ctx": "512"}, "total_slots": 1}, OTHER_FORM),
    ("llama", "/props", {"default_generation_settings": {"n_ctx": 0}, "total_slots": 1}, "a context length of 0"),
    ("llama", "/props", {"default_generation_settings": {"n_ctx": 10**12}, "total_slots": 1}, "a context length of 1"),
    ("llama", "/props", {"default_generation_settings": {"n_ctx": 512}, "total_slots": 10**9}, "a number of 10000000"),
    ("llama", "/props", {"default_generation_settings": {"n_ctx": 512}, "total_slots": True}, OTHER_FORM),
    ("llama", "/props", {}, OTHER_FORM),
    ("llama", MODELS, {"data": []}, "sent no model"),
    ("llama", MODELS, {"data": [{}]}, OTHER_FORM),
    ("vllm", MODELS, {"data": []}, "sent no model"),
    ("vllm", MODELS, {"data": [{"id": 5, "max_model_len": 512}]}, OTHER_FORM),
    ("vllm", MODELS, {"data": [{"id": "m", "max_model_len": None}]}, "a context length of None"),
    ("vllm", MODELS, {"data": [{"id": "m", "max_model_len": "512"}]}, OTHER_FORM),
    ("vllm", MODELS, {"data": [{"id": "m", "max_model_len": -1}]}, "a context length of -1"),
    ("vllm", "/version", [], OTHER_FORM),
    ("sglang", MODELS, {"data": {}}, OTHER_FORM),
    ("sglang", MODELS, {"data": [{"id": "m"}]}, "a context length of None"),
    ("sglang", MODELS, {"data": [{"id": "m", "max_model_len": 7}]}, "a context length of 0"),
    ("sglang", "/get_model_info", {"model_path": None}, OTHER_FORM),
    *((kind, "/tokenize", {"tokens": tokens}, words) for kind in KINDS for tokens, words in (
        ([], "what cannot be the tokens of a text"), ([-1], "what cannot be the tokens of a text"),
        (list(range(5000)), "what cannot be the tokens of a text"), (["1"], OTHER_FORM), ("12", OTHER_FORM),
    )),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "path", "answer", "words"), DESCRIPTIONS)
def test_an_impossible_description_is_refused_at_the_start(kind: str, path: str, answer: Value, words: str) -> None:
    with stand_in(kind) as server:
        server.described = {path: answer}
        with pytest.raises(SetupError) as refused:
            compose(settings(server))
        assert words in str(refused.value) and server.url in str(refused.value)


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_adapters_in_the_list_of_an_upstream_have_no_context_of_their_own(kind: str) -> None:
    """As in vLLM's entrypoints/openai/models/serving.py (0.32), and `available_models` of SGLang 0.5.23."""
    adapter = {"id": "tuned", "root": "/lora", "parent": "served", "max_model_len": None}
    with stand_in(kind) as server:
        served = {"id": "served", "root": "org/name", "max_model_len": CONTEXT}
        server.described = {MODELS: {"data": [served, adapter]}}
        assert ask(server, max_tokens=3).usage is not None


def test_a_context_is_shorter_than_that_of_the_upstream_or_refused() -> None:
    with stand_in("vllm") as server:
        with pytest.raises(SetupError, match=f"a context of {CONTEXT + 1} tokens was requested, and it has {CONTEXT}"):
            compose(settings(server, context_length=CONTEXT + 1))

        async def test(backend: EmbeddedBackend) -> None:
            assert backend.served["there"].engine.info.context_length == CONTEXT - 1

        on(server, test, context_length=CONTEXT - 1)


def test_a_vllm_whose_engine_is_dead_is_not_back() -> None:
    with stand_in("vllm") as server:
        server.is_unhealthy = True
        with pytest.raises(SetupError, match=r"\(status 503\)"):
            compose(settings(server))
