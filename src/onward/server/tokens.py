"""/tokenize, /detokenize and /tokenizer_info, in the shapes that evaluation harnesses expect (spec/applications C1).

Also below /m/NAME, for clients that cannot name a model there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from onward.backends.base import Backend
from onward.errors import InvalidRequest
from onward.offload import inline_or_on_thread
from onward.protocol import refusals
from onward.protocol.decode import decode_object
from onward.server.completions import body_limits, check_content_type
from onward.server.exchange import Exchange
from onward.settings import Settings

T = TypeVar("T")


class Tokens:
    """The tokenizer endpoints."""

    def __init__(self, backend: Backend, settings: Settings) -> None:
        self._backend = backend
        self._settings = settings
        self._body_limits = body_limits(settings)

    async def tokenize(self, exchange: Exchange, path_model: str | None = None) -> None:
        """{"prompt", "model"?, "add_special_tokens"?, "return_token_strs"?, …} → {"tokens", "count", …}."""
        model, text, special, with_strings, with_bytes = await self._decode(exchange, _tokenize_arguments)
        model = self._model(exchange, model, path_model)
        _check_text(text, self._settings.max_text)
        info = await self._backend.tokenizer_info(model)
        tokens = await self._backend.tokenize(model, text, special)
        token_bytes = await self._backend.token_bytes(model, tokens) if with_strings or with_bytes else []

        def body() -> bytes:
            strings = list(map(_text, token_bytes)) if with_strings else None
            answer = {"count": len(tokens), "max_model_len": info.context_length, "tokens": tokens}
            hexadecimal = {"token_bytes": [each.hex() for each in token_bytes]} if with_bytes else {}
            return msgspec.json.encode(answer | {"token_strs": strings} | hexadecimal)

        await _respond(exchange, await inline_or_on_thread(len(tokens), body))

    async def detokenize(self, exchange: Exchange, path_model: str | None = None) -> None:
        """{"tokens", "model"?} → {"prompt"}."""
        model, tokens = await self._decode(exchange, _detokenize_arguments)
        model = self._model(exchange, model, path_model)
        token_bytes = await self._backend.token_bytes(model, tokens)

        def body() -> bytes:
            return msgspec.json.encode({"prompt": _text(b"".join(token_bytes))})

        await _respond(exchange, await inline_or_on_thread(len(tokens), body))

    async def info(self, exchange: Exchange, path_model: str | None = None) -> None:
        """Describe the tokenizer of the model in the path or in `?model=`; of the only one without."""
        model = self._model(exchange, exchange.query("model"), path_model)
        info = await self._backend.tokenizer_info(model)
        answer: dict[str, object] = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": info.bos_token,
            "bos_token_id": info.bos_token_id,
            "eos_token": info.eos_token,
            "eos_token_id": info.eos_token_id,
            "add_bos_token": info.adds_bos,
            "additional_special_tokens": list(info.special_tokens),
            "vocab_size": info.vocab_size,
            "model_max_length": info.context_length,
            "infill": info.infill,
        }
        await _respond(exchange, msgspec.json.encode(answer | info.extra))

    def _model(self, exchange: Exchange, given: str | None, path_model: str | None) -> str | None:
        """Return the requested name, and record it. Raises InvalidRequest where none is given and several models are
        served, because tokens of one mean nothing to another, and where two are given."""
        name = path_model or given
        exchange.record.model = name or "-"
        if given and path_model and given != path_model:
            raise InvalidRequest(f"The path names the model '{path_model}', but 'model' is '{given}'.", param="model")
        if name or len(served := self._backend.load()) < 2:
            return name
        raise InvalidRequest(
            f"This server has several models ({', '.join(served)}), each with its own tokenizer: name one in 'model', "
            f"or in the path (/m/{next(iter(served))}{exchange.path}).",
            param="model",
        )

    async def _decode(self, exchange: Exchange, arguments: Callable[[dict[str, Any]], T]) -> T:
        """Return what `arguments` makes of the body's fields. Raises InvalidRequest."""
        check_content_type(exchange)
        body = await exchange.body(self._settings.max_body)
        return await inline_or_on_thread(len(body), lambda: arguments(decode_object(body, self._body_limits)))


def _tokenize_arguments(fields: dict[str, Any]) -> tuple[str | None, str, bool, bool, bool]:
    """Return model, text, and whether to add special tokens, and to return the tokens' strings and bytes."""
    _check_known(fields, {"model", "prompt", "add_special_tokens", "return_token_strs", "return_token_bytes"})
    return (
        _take(fields, "model", "a string", _is_string, None),
        _take(fields, "prompt", "a string", _is_string),
        _take(fields, "add_special_tokens", "a boolean", _is_boolean, True),
        _take(fields, "return_token_strs", "a boolean", _is_boolean, False),
        _take(fields, "return_token_bytes", "a boolean", _is_boolean, False),
    )


def _detokenize_arguments(fields: dict[str, Any]) -> tuple[str | None, list[int]]:
    """Return model and tokens."""
    _check_known(fields, {"model", "tokens"})
    model = _take(fields, "model", "a string", _is_string, None)
    return model, _take(fields, "tokens", "an array of integers", _is_token_list)


def _check_text(text: str, max_bytes: int) -> None:
    num_bytes = len(text) if text.isascii() else len(text.encode())
    if num_bytes > max_bytes:
        raise InvalidRequest(
            f"The text has {num_bytes} bytes, but this server tokenizes at most {max_bytes} per request. Send it in "
            "parts.",
            param="prompt",
        )


def _check_known(fields: dict[str, Any], known: set[str]) -> None:
    if unknown := [name for name in fields if name not in known]:
        raise refusals.unrecognized(unknown)


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


def _text(raw: bytes) -> str:
    """Return bytes as text; a token may hold a part of a character, which JSON cannot represent."""
    return raw.decode("utf-8", "replace")


async def _respond(exchange: Exchange, body: bytes) -> None:
    await exchange.respond(200, body, "application/json")
