"""/tokenize, /detokenize and /tokenizer_info, in the shapes that evaluation harnesses expect (behaviour §14).

Also below /m/NAME, for clients that cannot name a model there."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import msgspec

from onward.api.dialects import served_dialects
from onward.api.openai.answer_examples import TOKENIZER, TOKENS
from onward.api.openai.decode import decode_object
from onward.api.openai.operations import MODEL_ID, MODEL_QUERY, detokenize, get, tokenize
from onward.api.routes import JSON, Node, Route
from onward.backends.base import Backend
from onward.errors import InvalidRequest
from onward.offload import inline_or_on_thread
from onward.server.completions import body_limits, check_content_type
from onward.server.exchange import Exchange
from onward.server.token_requests import check_text, detokenize_request, tokenize_request
from onward.settings import Settings

T = TypeVar("T")


class Tokens:
    """The tokenizer endpoints."""

    def __init__(self, backend: Backend, settings: Settings) -> None:
        self._backend = backend
        self._settings = settings
        self._body_limits = body_limits(settings)
        self._knows_llama = "llama-server" in served_dialects(settings.dialects)

    async def tokenize(self, exchange: Exchange) -> None:
        """{"prompt", "model"?, "add_special_tokens"?, "return_token_strs"?, …} → {"tokens", "count", …}.

        Or llama-server's {"content", "add_special"?, "with_pieces"?, …} → {"tokens"}.
        """
        request = await self._decode(exchange, partial(tokenize_request, knows_llama=self._knows_llama))
        model = self._model(exchange, request.model)
        check_text(request, self._settings.max_text)
        info = await self._backend.tokenizer_info(model)
        tokens = await self._backend.tokenize(model, request.text, request.add_special)
        token_bytes = await self._backend.token_bytes(model, tokens) if request.needs_bytes else []

        def body() -> bytes:
            if request.is_llama:
                pieces = [{"id": token, "piece": _piece(raw)} for token, raw in zip(tokens, token_bytes, strict=False)]
                return msgspec.json.encode({"tokens": pieces if request.with_pieces else tokens})
            strings = list(map(_text, token_bytes)) if request.with_strings else None
            answer = {"count": len(tokens), "max_model_len": info.context_length, "tokens": tokens}
            hexadecimal = {"token_bytes": [each.hex() for each in token_bytes]} if request.with_bytes else {}
            return msgspec.json.encode(answer | {"token_strs": strings} | hexadecimal)

        await _respond(exchange, await inline_or_on_thread(len(tokens), body))

    async def detokenize(self, exchange: Exchange) -> None:
        """{"tokens", "model"?} → {"prompt", "content"}: the same text by vLLM's name and by llama-server's."""
        model, tokens = await self._decode(exchange, detokenize_request)
        model = self._model(exchange, model)
        token_bytes = await self._backend.token_bytes(model, tokens)

        def body() -> bytes:
            text = _text(b"".join(token_bytes))
            return msgspec.json.encode({"prompt": text} | ({"content": text} if self._knows_llama else {}))

        await _respond(exchange, await inline_or_on_thread(len(tokens), body))

    async def info(self, exchange: Exchange) -> None:
        """Describe the tokenizer of the model in the path or in `?model=`; of the only one without."""
        model = self._model(exchange, exchange.query("model"))
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

    def _model(self, exchange: Exchange, given: str | None) -> str | None:
        """Return the requested name, and record it. Raises InvalidRequest where none is given and several models are
        served, because tokens of one mean nothing to another, and where two are given."""
        path_model = exchange.path_value
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


def _routes(root: str, suffix: str, in_path: tuple[Node, ...], in_query: tuple[Node, ...]) -> tuple[Route, ...]:
    """Return the routes below `root`, whose operations end in `suffix`."""
    about = get(
        f"tokenizerInfo{suffix}",
        "Information about a model's tokenizer.",
        schema="TokenizerInfo",
        errors=("401", "404"),
    )
    return (
        Route(
            "POST",
            f"{root}/tokenize",
            Tokens.tokenize,
            operation=tokenize(suffix),
            example={JSON: TOKENS},
            parameters=in_path,
        ),
        Route(
            "POST",
            f"{root}/detokenize",
            Tokens.detokenize,
            operation=detokenize(suffix),
            example={JSON: {"prompt": "Once upon"}},
            parameters=in_path,
        ),
        Route(
            "GET",
            f"{root}/tokenizer_info",
            Tokens.info,
            operation=about,
            example={JSON: TOKENIZER},
            parameters=in_path or in_query,
        ),
    )


ROUTES = (*_routes("", "", (), (MODEL_QUERY,)), *_routes("/m/{id}", "OfModel", (MODEL_ID,), ()))


def _piece(raw: bytes) -> str | list[int]:
    """Return a token's text, or its bytes where these are not text, as llama-server does."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return list(raw)


def _text(raw: bytes) -> str:
    """Return bytes as text; a token may hold a part of a character, which JSON cannot represent."""
    return raw.decode("utf-8", "replace")


async def _respond(exchange: Exchange, body: bytes) -> None:
    await exchange.respond(200, body, "application/json")
