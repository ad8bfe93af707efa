"""Errors on the wire, byte for byte (behaviour §11, behaviour W2, 6)."""

from __future__ import annotations

import json

import pytest

from onward import errors
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
    RequestTooLarge,
    ServerError,
    SetupError,
    UnknownUrl,
    UnreadableBody,
    UnsupportedContentType,
)
from onward.protocol.error_body import error_envelope, error_event, to_api_error

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
        (BodyTimeout("x"), GATEWAY),
        (RateLimited("x", retry_after=2), GATEWAY),
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
    assert len(classes - {ApiError}) == 16  # NotFound itself is not raised; a new class needs a layer


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
    assert to_api_error(error) is error


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
    error = to_api_error(exception)
    assert type(error) is ServerError
    assert error.message == ServerError.DEFAULT_MESSAGE
    assert error.__cause__ is exception
    body, _ = error_envelope(error)
    assert b"secret" not in body
