"""The requests of /tokenize and /detokenize: vLLM's fields, and those of llama-server on the same path."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from onward.api import refusals
from onward.errors import InvalidRequest

_VLLM = {"model", "prompt", "add_special_tokens", "return_token_strs", "return_token_bytes"}
_LLAMA_SERVER = {"model", "content", "add_special", "parse_special", "with_pieces"}


@dataclass(frozen=True, slots=True)
class TokenizeRequest:
    """What to tokenize, and what to return beside token ids. `is_llama`: in the shape of llama-server's answer."""

    model: str | None
    text: str
    add_special: bool
    with_strings: bool = False
    with_bytes: bool = False
    with_pieces: bool = False
    is_llama: bool = False

    @property
    def field(self) -> str:
        """The name of the text's field."""
        return "content" if self.is_llama else "prompt"

    @property
    def needs_bytes(self) -> bool:
        return self.with_strings or self.with_bytes or self.with_pieces


def tokenize_request(fields: dict[str, Any], *, knows_llama: bool) -> TokenizeRequest:
    """Check the fields. llama-server's request is one that has `content`. Raises InvalidRequest."""
    if knows_llama and "content" in fields:
        return _llama_request(fields)
    _check_known(fields, _VLLM)
    return TokenizeRequest(
        model=_take(fields, "model", "a string", _is_string, None),
        text=_take(fields, "prompt", "a string", _is_string),
        add_special=_take(fields, "add_special_tokens", "a boolean", _is_boolean, True),
        with_strings=_take(fields, "return_token_strs", "a boolean", _is_boolean, False),
        with_bytes=_take(fields, "return_token_bytes", "a boolean", _is_boolean, False),
    )


def _llama_request(fields: dict[str, Any]) -> TokenizeRequest:
    _check_known(fields, _LLAMA_SERVER)
    if not _take(fields, "parse_special", "a boolean", _is_boolean, True):
        raise refusals.unsupported_value("parse_special", False, "true")
    return TokenizeRequest(
        model=_take(fields, "model", "a string", _is_string, None),
        text=_take(fields, "content", "a string", _is_string),
        add_special=_take(fields, "add_special", "a boolean", _is_boolean, False),
        with_pieces=_take(fields, "with_pieces", "a boolean", _is_boolean, False),
        is_llama=True,
    )


def detokenize_request(fields: dict[str, Any]) -> tuple[str | None, list[int]]:
    """Return model and tokens. Raises InvalidRequest."""
    _check_known(fields, {"model", "tokens"})
    model = _take(fields, "model", "a string", _is_string, None)
    return model, _take(fields, "tokens", "an array of integers", _is_token_list)


def check_text(request: TokenizeRequest, max_bytes: int) -> None:
    """Raise InvalidRequest where the text is too long."""
    text = request.text
    num_bytes = len(text) if text.isascii() else len(text.encode())
    if num_bytes > max_bytes:
        raise InvalidRequest(
            f"The text has {num_bytes} bytes, but this server tokenizes at most {max_bytes} per request. Send it in "
            "parts.",
            param=request.field,
        )


def _check_known(fields: dict[str, Any], known: set[str]) -> None:
    if unknown := [name for name in fields if name not in known]:
        raise refusals.unrecognized(unknown, known)


_REQUIRED = object()


def _take(
    fields: dict[str, Any], name: str, expected: str, fits: Callable[[object], bool], default: object = _REQUIRED
) -> Any:
    """Return a field's value; null or absent is its default. Raises InvalidRequest."""
    value = fields.get(name)
    if value is None and default is not _REQUIRED:
        return default
    if not fits(value):
        raise refusals.wrong_type(name, expected, value)
    return value


def _is_string(value: object) -> bool:
    return isinstance(value, str)


def _is_boolean(value: object) -> bool:
    return isinstance(value, bool)


def _is_token_list(value: object) -> bool:
    return isinstance(value, list) and all(type(item) is int for item in value)
