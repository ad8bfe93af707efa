"""/tokenize, /detokenize and /tokenizer_info, in the shapes that evaluation harnesses expect (behaviour §14): vLLM's
fields, and those of llama-server on the same path; and llama-server's /apply-template. Also below /m/NAME, for clients
that cannot name a model there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

from onward.api import operations, refusals
from onward.api.body import decode_object
from onward.api.dialects import served_dialects
from onward.api.openai.routes import check_content_type
from onward.api.operations import MODEL_ID, MODEL_QUERY, get
from onward.api.routes import JSON, Exchange, JsonObject, Route, Services, respond_json
from onward.errors import InvalidRequest
from onward.offload import inline_or_on_thread
from onward.templates.render import Message, Render, TemplateError, render

T = TypeVar("T")

_VLLM = {"model", "prompt", "add_special_tokens", "return_token_strs", "return_token_bytes"}
_LLAMA_SERVER = {"model", "content", "add_special", "parse_special", "with_pieces"}


@dataclass(frozen=True, slots=True)
class TokenizeRequest:
    """What to tokenize, and what to return apart from token ids. `is_llama`: in the shape of llama-server's answer."""

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
        model=_string(fields, "model", None),
        text=_string(fields, "prompt"),
        add_special=_boolean(fields, "add_special_tokens", True),
        with_strings=_boolean(fields, "return_token_strs", False),
        with_bytes=_boolean(fields, "return_token_bytes", False),
    )


def _llama_request(fields: dict[str, Any]) -> TokenizeRequest:
    _check_known(fields, _LLAMA_SERVER)
    if not _boolean(fields, "parse_special", True):
        raise refusals.unsupported_value("parse_special", False, "true")
    return TokenizeRequest(
        model=_string(fields, "model", None),
        text=_string(fields, "content"),
        add_special=_boolean(fields, "add_special", False),
        with_pieces=_boolean(fields, "with_pieces", False),
        is_llama=True,
    )


def detokenize_request(fields: dict[str, Any]) -> tuple[str | None, list[int]]:
    """Return model and tokens. Raises InvalidRequest."""
    _check_known(fields, {"model", "tokens"})
    model = _string(fields, "model", None)
    return model, _take(fields, "tokens", expected="an array of integers", fits=_is_token_list)


def template_request(fields: dict[str, Any]) -> tuple[str | None, list[Message], bool]:
    """Return model, conversation, and whether it ends where the model's answer begins. Raises InvalidRequest."""
    _check_known(fields, {"model", "messages", "add_generation_prompt"})
    model = _string(fields, "model", None)
    turns = _take(fields, "messages", expected="an array of objects with 'role' and 'content'", fits=_is_message_list)
    messages = [Message(each["role"], each["content"]) for each in turns]
    return model, messages, _boolean(fields, "add_generation_prompt", True)


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
    fields: dict[str, Any], name: str, default: object = _REQUIRED, *, expected: str, fits: Callable[[object], bool]
) -> Any:
    """Return a field's value; null or absent is its default. Raises InvalidRequest."""
    value = fields.get(name)
    if value is None and default is not _REQUIRED:
        return default
    if not fits(value):
        raise refusals.wrong_type(name, expected, value)
    return value


_string = partial(_take, expected="a string", fits=lambda value: isinstance(value, str))
_boolean = partial(_take, expected="a boolean", fits=lambda value: isinstance(value, bool))


def _is_token_list(value: object) -> bool:
    return isinstance(value, list) and all(type(item) is int for item in value)


def _is_message_list(value: object) -> bool:
    return (
        isinstance(value, list)
        and all(isinstance(each, dict) and each.keys() == {"role", "content"} for each in value)
        and all(isinstance(each[name], str) for each in value for name in each)
    )


async def tokenize(services: Services, exchange: Exchange) -> None:
    """{"prompt", "model"?, "add_special_tokens"?, "return_token_strs"?, …} → {"tokens", "count", …}.

    Or llama-server's {"content", "add_special"?, "with_pieces"?, …} → {"tokens"}.
    """
    request = await _decode(services, exchange, partial(tokenize_request, knows_llama=_knows_llama(services)))
    model = _model(services, exchange, request.model)
    check_text(request, services.settings.max_text)
    info = await services.backend.tokenizer_info(model)
    tokens = await services.backend.tokenize(model, request.text, request.add_special)
    token_bytes = await services.backend.token_bytes(model, tokens) if request.needs_bytes else []

    def body() -> bytes:
        if request.is_llama:
            pieces = [{"id": token, "piece": _piece(raw)} for token, raw in zip(tokens, token_bytes, strict=False)]
            return msgspec.json.encode({"tokens": pieces if request.with_pieces else tokens})
        strings = list(map(_text, token_bytes)) if request.with_strings else None
        answer = {"count": len(tokens), "max_model_len": info.context_length, "tokens": tokens}
        hexadecimal = {"token_bytes": [each.hex() for each in token_bytes]} if request.with_bytes else {}
        return msgspec.json.encode(answer | {"token_strs": strings} | hexadecimal)

    await exchange.respond(200, await inline_or_on_thread(len(tokens), body), JSON)


async def detokenize(services: Services, exchange: Exchange) -> None:
    """{"tokens", "model"?} → {"prompt", "content"}: the same text by vLLM's name and by llama-server's."""
    model, tokens = await _decode(services, exchange, detokenize_request)
    model = _model(services, exchange, model)
    token_bytes = await services.backend.token_bytes(model, tokens)

    def body() -> bytes:
        text = _text(b"".join(token_bytes))
        return msgspec.json.encode({"prompt": text} | ({"content": text} if _knows_llama(services) else {}))

    await exchange.respond(200, await inline_or_on_thread(len(tokens), body), JSON)


async def apply_template(services: Services, exchange: Exchange) -> None:
    """{"messages", "model"?, "add_generation_prompt"?} → {"prompt"}: what the model's own chat template makes of a
    conversation, as llama-server's route of this name. A start token that is added to every text is left out."""
    model, messages, ends_open = await _decode(services, exchange, template_request)
    model = _model(services, exchange, model)
    info = await services.backend.tokenizer_info(model)
    if not info.chat_template:
        raise InvalidRequest("This model's files have no chat template: write the marks of its turns yourself.")
    bos = info.bos_token or ""
    try:
        prompt = await render(Render(info.chat_template, messages, bos, info.eos_token or "", ends_open))
    except TemplateError as error:
        raise InvalidRequest(f"{str(error)[0].upper()}{str(error)[1:]}.", param="messages") from None
    await respond_json(exchange, {"prompt": prompt.removeprefix(bos) if info.adds_bos else prompt})


async def info(services: Services, exchange: Exchange) -> None:
    """Describe the tokenizer of the model in the path or in `?model=`; of the only one without."""
    model = _model(services, exchange, exchange.query("model"))
    info = await services.backend.tokenizer_info(model)
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
        "chat_template": info.chat_template or None,
    }
    await respond_json(exchange, answer | info.extra)


def _model(services: Services, exchange: Exchange, given: str | None) -> str | None:
    """Return the requested name, and record it. Raises InvalidRequest if none is given although several models are
    served, because tokens of one mean nothing to another, or if two are given."""
    path_model = exchange.path_value
    name = path_model or given
    exchange.record.model = name or "-"
    if given and path_model and given != path_model:
        raise InvalidRequest(f"The path names the model '{path_model}', but 'model' is '{given}'.", param="model")
    if name or len(served := services.backend.load()) < 2:
        return name
    raise InvalidRequest(
        f"This server has several models ({', '.join(served)}), each with its own tokenizer: name one in 'model', "
        f"or in the path (/m/{quote(next(iter(served)))}{exchange.path}).",
        param="model",
    )


async def _decode(services: Services, exchange: Exchange, arguments: Callable[[dict[str, Any]], T]) -> T:
    """Return what `arguments` makes of the body's fields. Raises InvalidRequest."""
    check_content_type(exchange)
    body = await exchange.body(services.settings.max_body)
    return await inline_or_on_thread(len(body), lambda: arguments(decode_object(body, services.body_limits)))


_TOKENS: JsonObject = {"count": 2, "max_model_len": 1024, "tokens": [788, 617], "token_strs": None}
_TOKENIZER: JsonObject = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": "<|endoftext|>",
    "bos_token_id": 0,
    "eos_token": "<|endoftext|>",
    "eos_token_id": 0,
    "add_bos_token": False,
    "additional_special_tokens": ["<|endoftext|>"],
    "vocab_size": 8192,
    "model_max_length": 1024,
    "infill": True,
    "chat_template": None,
}


def _routes(
    root: str, suffix: str, in_path: tuple[JsonObject, ...], in_query: tuple[JsonObject, ...]
) -> tuple[Route, ...]:
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
            tokenize,
            operation=operations.tokenize(suffix),
            example={JSON: _TOKENS},
            parameters=in_path,
        ),
        Route(
            "POST",
            f"{root}/detokenize",
            detokenize,
            operation=operations.detokenize(suffix),
            example={JSON: {"prompt": "Once upon"}},
            parameters=in_path,
        ),
        Route(
            "POST",
            f"{root}/apply-template",
            apply_template,
            operation=operations.apply_template(suffix),
            example={JSON: {"prompt": "<|im_start|>user\nTell a story.<|im_end|>\n<|im_start|>assistant\n"}},
            parameters=in_path,
        ),
        Route(
            "GET",
            f"{root}/tokenizer_info",
            info,
            operation=about,
            example={JSON: _TOKENIZER},
            parameters=in_path or in_query,
        ),
    )


def _knows_llama(services: Services) -> bool:
    return "llama-server" in served_dialects(services.settings.dialects)


def _piece(raw: bytes) -> str | list[int]:
    """Return a token's text, or its bytes where these are not text, as llama-server does."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return list(raw)


def _text(raw: bytes) -> str:
    """Return bytes as text; a token may hold a part of a character, which JSON cannot represent."""
    return raw.decode("utf-8", "replace")


ROUTES = (*_routes("", "", (), (MODEL_QUERY,)), *_routes("/m/{id}", "OfModel", (MODEL_ID,), ()))
