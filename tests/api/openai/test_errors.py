"""Errors on the wire, byte for byte (behaviour §11, behaviour W2, 6)."""

from __future__ import annotations

import json

import pytest

from onward import errors
from onward.api.errors import api_error
from onward.api.openai.errors import error_envelope, error_event
from onward.completions import rejections
from onward.errors import (
    ApiError,
    AuthenticationFailed,
    BodyTimeout,
    EngineStopped,
    Forbidden,
    HeadTooLarge,
    InvalidRequest,
    MethodNotAllowed,
    ModelNotFound,
    Overloaded,
    RateLimited,
    RequestCancelled,
    RequestRejected,
    RequestTooLarge,
    ServerError,
    SetupError,
    TextNotEncodable,
    UnknownUrl,
    UnreadableBody,
    UnsupportedContentType,
    UnsupportedEncoding,
)
from tests.tables import each_row

ENGINE = "application/json"
GATEWAY = "application/json; charset=utf-8"


def test_an_engine_error_is_indented_by_two_without_a_final_newline() -> None:
    error = InvalidRequest("Unrecognized request argument supplied: foo")
    assert error_envelope(error) == (
        b"{\n"
        b'  "error": {\n'
        b'    "message": "Unrecognized request argument supplied: foo",\n'
        b'    "type": "invalid_request_error",\n'
        b'    "param": null,\n'
        b'    "code": null\n'
        b"  }\n"
        b"}",
        ENGINE,
    )


def test_a_gateway_error_is_indented_by_four_with_a_final_newline_and_go_escapes() -> None:
    error = AuthenticationFailed("Incorrect <key> & more", code="invalid_api_key")
    assert error_envelope(error) == (
        b"{\n"
        b'    "error": {\n'
        b'        "message": "Incorrect \\u003ckey\\u003e \\u0026 more",\n'
        b'        "type": "invalid_request_error",\n'
        b'        "param": null,\n'
        b'        "code": "invalid_api_key"\n'
        b"    }\n"
        b"}\n",
        GATEWAY,
    )


def test_the_keys_of_an_unknown_url_are_in_the_recorded_order() -> None:
    body, _ = error_envelope(UnknownUrl("Unknown request URL: POST /x.", code="unknown_url"))
    assert list(json.loads(body)["error"]) == ["type", "code", "message", "param"]


@pytest.mark.parametrize(
    ("error", "content_type"),
    [
        (InvalidRequest("x", param="stop", code="array_above_max_length"), ENGINE),
        (UnreadableBody("words"), GATEWAY),
        (UnsupportedContentType("x"), GATEWAY),
        (AuthenticationFailed("x"), GATEWAY),
        (Forbidden("x"), GATEWAY),
        (ModelNotFound("x"), GATEWAY),
        (UnknownUrl("x"), GATEWAY),
        (MethodNotAllowed("x", code="method_not_supported"), GATEWAY),
        (RequestTooLarge("x"), GATEWAY),
        (HeadTooLarge("x"), GATEWAY),
        (UnsupportedEncoding("x"), GATEWAY),
        (BodyTimeout("x"), GATEWAY),
        (RateLimited("x", headers={}), GATEWAY),
        (ServerError(), ENGINE),
        (Overloaded(), ENGINE),
        (EngineStopped(), ENGINE),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_error_has_four_keys_and_the_content_type_of_its_layer(error: ApiError, content_type: str) -> None:
    body, found = error_envelope(error)
    assert found == content_type
    assert json.loads(body) == {
        "error": {"message": error.message, "type": error.type, "param": error.param, "code": error.code}
    }
    assert list(json.loads(body)["error"]) == ["message", "type", "param", "code"]


def test_every_error_class_has_an_example_above() -> None:
    classes = {cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, ApiError)}
    assert len(classes - {ApiError}) == 17  # NotFound itself is not raised


def test_non_ascii_text_is_not_escaped() -> None:
    body, _ = error_envelope(InvalidRequest("Unrecognized request argument supplied: größe 🙂"))
    assert "größe 🙂".encode() in body


def test_an_error_event_is_one_compact_line() -> None:
    assert error_event(ServerError()) == (
        b'data: {"error":{"message":"The server had an error while processing your request. '
        b'Sorry about that!","type":"server_error","param":null,"code":null}}\n\n'
    )


def test_line_ends_in_a_message_do_not_split_an_event() -> None:
    event = error_event(InvalidRequest("a\r\nb\nc\u2028d"))
    assert event.count(b"\n") == 2 and b"\r" not in event


def test_an_api_error_is_returned_unchanged() -> None:
    error = InvalidRequest("x")
    assert api_error(error) is error


WORDS: list[tuple[RequestRejected, int, str | None, str]] = [
    (rejections.UnknownModel("x"), 404, None, "The model `x` does not exist"),
    (rejections.ContextExceeded(9, 4, 10), 400, None, "maximum context length is 10 tokens, however you requested 13"),
    (rejections.ContextExceeded(9, 4, 10, is_minimum=True), 400, None, "at least 13 tokens (at least 9 in your prompt"),
    (rejections.TooManyChoices(3, 2, 5, False), 400, None, "a total of 5. (HINT"),
    (rejections.TooManyChoices(3, 2, 5, True), 400, None, "a total of 5."),
    (rejections.TooManyPromptTokens(9, 8), 400, "prompt", "at least 9 tokens together"),
    (rejections.TooManyLogprobs("logprobs", 9, 3, 2, 8), 400, "logprobs", "Lower 'logprobs', 'max_tokens' or 'n'"),
    (rejections.TooManyLogprobs("prompt_logprobs", 9, 3, 2, 8), 400, "prompt_logprobs", "Lower 'prompt_logprobs' or"),
    (rejections.TokenOutOfRange("prompt", 9, 8), 400, None, "Invalid token in prompt: 9"),
    (rejections.TokenOutOfRange("logit_bias", 9, 8), 400, "logit_bias", "Maximum value is 8."),
    (rejections.TokenOutOfRange("tokens", 9, 8), 400, "tokens", "maximum value is 8 (inclusive)"),
    (rejections.TokenOutOfRange("banned_tokens", 9, 8, 1), 400, "banned_tokens[1]", "a value <= 8, but got 9"),
    (rejections.NotAvailable("mirostat", "`mirostat`"), 400, "mirostat", "does not have `mirostat`."),
    (rejections.NoLineBreakToken(), 400, "penalize_nl", "no token for a line break alone"),
    (rejections.NoInfillTokens(), 400, "suffix", "no fill-in-the-middle tokens"),
    (rejections.NoStartToken(), 400, "prompt", "its prompt cannot be empty"),
    (rejections.SuffixExcludesScores(), 400, None, "is not supported with 'suffix'"),
    (rejections.ParametersExclude(("a", "b"), "a"), 400, "a", "Setting 'a' and 'b' at the same time"),
    (rejections.InvalidBadWord(7), 400, "bad_words", "1 to 7 characters"),
    (rejections.BadWordTooLong(9, 8), 400, "bad_words", "a word has 9 tokens; at most 8"),
    (rejections.NoTokenLeft("banned_tokens"), 400, "banned_tokens", "No token would be left"),
    (rejections.InvalidConstraint("regex", "it ends early."), 400, "regex", "Invalid 'regex': it ends early."),
    (TextNotEncodable("too many spaces"), 400, None, "cannot encode this text: too many spaces"),
]


@each_row(("fact", "status", "param", "words"), WORDS, ids=lambda value: type(value).__name__)
def test_a_rejection_has_openais_error_message(
    fact: RequestRejected, status: int, param: str | None, words: str
) -> None:
    error = api_error(fact)
    assert (error.status, error.param) == (status, param) and words in error.message


def test_every_rejection_has_an_error_message() -> None:
    facts = {each for each in vars(rejections).values() if isinstance(each, type)} - {RequestRejected}
    assert facts | {TextNotEncodable} == {type(row[0]) for row in WORDS}
    assert type(api_error(RequestRejected())) is ServerError, "one without words is an internal error"


@pytest.mark.parametrize(
    "exception",
    [
        RuntimeError("secret path /etc"),
        KeyError("token"),
        MemoryError(),
        SetupError("secret"),
        RequestCancelled(),
        KeyboardInterrupt(),
        UnicodeEncodeError("utf-8", "\ud800", 0, 1, "secret"),
    ],
    ids=lambda exception: type(exception).__name__,
)
def test_other_exceptions_become_a_server_error_with_openais_message(exception: BaseException) -> None:
    error = api_error(exception)
    assert type(error) is ServerError
    assert error.message == ServerError.DEFAULT_MESSAGE
    assert error.__cause__ is exception
    body, _ = error_envelope(error)
    assert b"secret" not in body
