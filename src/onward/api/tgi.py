"""text-generation-inference's own API (router/src/lib.rs and server.rs, db931fc, 2026-01): /generate,
/generate_stream, / and /info. Statuses of errors are those of infer/mod.rs, messages those of validation.rs."""

from __future__ import annotations

import codecs
from dataclasses import dataclass
from typing import Any

import msgspec

import onward
from onward.api.decoder import UNLIMITED_TOKENS, check_fields, request_fields
from onward.api.errors import ErrorWords
from onward.api.fields import only, own, refused, same, shared
from onward.api.numbers import most_likely, wire_number
from onward.api.openai.errors import MAX_FIELD_CHARS, openai_error
from onward.api.parameter import FieldTable, Parameter
from onward.api.reply import OneChoice
from onward.api.routes import EVENTS, JSON, Exchange, Route, Services, respond_json, with_words
from onward.api.sse import KEEP_ALIVE, data_event
from onward.completions.answer import Answer, Delta, TokenCounts
from onward.completions.rejections import ContextExceeded
from onward.completions.request import CompletionRequest
from onward.errors import ApiError, EngineStopped, InvalidRequest, Overloaded, RequestRejected
from onward.text.assembler import TokenRecord

Object = dict[str, Any]
NAME = "tgi"

PARAMETERS: tuple[Parameter, ...] = (
    own(
        "max_new_tokens", "integer", NAME,
        "Maximum number of tokens to generate; by default as many as the context has room for.", minimum=1, example=20,
    ),
    own("do_sample", "boolean", NAME, "Sample. Without it, and without any sampling parameter, decoding is greedy."),
    *shared(NAME, "temperature", "top_k", "top_p", "repetition_penalty", "frequency_penalty", "seed"),
    same("stop", "stop", NAME, max_items=64, lenient_max_items=64),
    same("adapter_id", "model", NAME, help="A model; by default the first one. LoRA adapters are models here."),
    own("return_full_text", "boolean", NAME, "Return the prompt in front of the text.", default=False),
    own("details", "boolean", NAME, "Return tokens, their number and the reason of the end.", default=False),
    own(
        "top_n_tokens", "integer", NAME, "Return this many of the most likely tokens at each position.",
        minimum=0, maximum=20, default=0,
    ),
    same("typical_p", "typical_p", NAME),
    only("best_of", NAME, 1, why="Only 1 is accepted; /v1/completions has `best_of`."),
    only("decoder_input_details", NAME, False, why="/v1/completions scores prompts, by `echo` with `logprobs`."),
    only("watermark", NAME, False, why="Only `false` is accepted."),
    refused("truncate", NAME, "A prompt that does not fit is an error."),
    own(
        "grammar", "typed_grammar", NAME,
        'What the text must match: `{"type": "json", "value": {…}}` with a JSON Schema, or `{"type": "regex", "value": '
        '"…"}`.',
        example={"type": "regex", "value": "[a-z]+"},
    ),
)  # fmt: skip

GENERATE = FieldTable(
    own("inputs", "string", NAME, "The text to continue.", required=True, example="Once upon a time"),
    own("parameters", "object", NAME, "How to continue it.", inner=PARAMETERS, example={"max_new_tokens": 20}),
)
COMPATIBLE = FieldTable(
    *GENERATE.values(),
    own("stream", "boolean", NAME, "Send the completion while it is generated, as server-sent events.", default=False),
)


def say(fact: RequestRejected) -> ApiError:
    """Return the error of a request that cannot be completed: the router's where it has one."""
    match fact:
        case ContextExceeded(prompt_tokens, 0, limit):
            return InvalidRequest(f"`inputs` must have less than {limit} tokens. Given: {prompt_tokens}")
        case ContextExceeded(prompt_tokens, max_tokens, limit):
            at_least = "at least " if fact.is_minimum else ""
            return InvalidRequest(
                f"`inputs` tokens + `max_new_tokens` must be <= {limit}. Given: {at_least}{prompt_tokens} `inputs` "
                f"tokens and {max_tokens} `max_new_tokens`"
            )
    return openai_error(fact)


def error_object(error: ApiError) -> dict[str, str]:
    """Return error and error_type."""
    message = error.message[:MAX_FIELD_CHARS]
    match error:
        case InvalidRequest():
            return {"error": f"Input validation error: {message}", "error_type": "validation"}
        case EngineStopped():
            return {"error": message, "error_type": "unhealthy"}
        case Overloaded():
            return {"error": message, "error_type": "overloaded"}
    return {"error": message, "error_type": "generation" if error.status >= 500 else "request"}


def _body(error: ApiError) -> tuple[int, bytes, str]:
    """Invalid requests are 422. Where there is no room the status is 429, which has Retry-After."""
    status = error.status
    if isinstance(error, InvalidRequest):
        status = 422
    elif isinstance(error, Overloaded) and not isinstance(error, EngineStopped):
        status = 429
    elif status == 500:
        status = 424
    return status, msgspec.json.encode(error_object(error)), "application/json"


def _event(error: ApiError) -> bytes:
    return data_event(error_object(error))


ERRORS = ErrorWords(say, _body, _event)


@dataclass(frozen=True, slots=True)
class TgiOptions:
    """What a request asks of its answer. `prompt` goes in front of the text. `end_token` is id and text of the model's
    end token, `special` the texts of all special tokens."""

    prompt: str
    has_details: bool
    num_top: int
    in_array: bool
    end_token: tuple[int, str]
    special: frozenset[str]


class TgiReply(OneChoice):
    """Writes one answer. An end token is an event of its own, without a log probability."""

    keep_alive = KEEP_ALIVE

    def __init__(self, request: CompletionRequest, options: TgiOptions) -> None:
        super().__init__(is_stream=request.stream)
        self._request = request
        self._options = options
        self._tokens: list[Object] = []
        self._top: list[list[Object]] = []
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._finish = "length"
        self._seed: int | None = None

    def begin(self, answer: Answer) -> None:
        super().begin(answer)
        if self._request.temperature:
            self._seed = answer.seed  # sampling has one in any case, which the details report

    def write(self, delta: Delta, counts: TokenCounts) -> bytes:
        self._texts.append(delta.text)
        if delta.finish is not None and delta.finish.reason == "stop":
            self._finish = "stop_sequence" if delta.finish.stop_string else "eos_token"
        first = len(self._tokens)
        for record in delta.tokens:
            self._add(record)
        if delta.finish is not None and (self._finish == "eos_token" or len(self._tokens) == first):
            token, text = self._options.end_token
            self._tokens.append({"id": token, "text": text, "logprob": None, "special": True})
            self._top.append([])
        is_end = delta.finish is not None
        last = len(self._tokens) - 1
        return b"".join(
            self._event(index, counts, is_last=is_end and index == last) for index in range(first, last + 1)
        )

    def finish(self, counts: TokenCounts) -> bytes:
        if self.is_stream:
            return b""
        answer: Object = {"generated_text": self._whole_text()}
        if self._options.has_details:
            answer["details"] = self._details() | {"prefill": [], "tokens": self._tokens}
            if self._options.num_top:
                answer["details"]["top_tokens"] = self._top
        return msgspec.json.encode([answer] if self._options.in_array else answer)

    def _add(self, record: TokenRecord) -> None:
        whole = record.token_bytes.decode(errors="replace")
        is_special = whole in self._options.special
        text = whole if is_special else self._decoder.decode(record.token_bytes)
        self._tokens.append(_token(record.token, text, wire_number(record.logprob), is_special=is_special))
        likely = most_likely(record, self._options.num_top)
        self._top.append([self._alternative(token, raw, logprob) for token, raw, logprob in likely])

    def _alternative(self, token: int, raw: bytes, logprob: float) -> Object:
        text = raw.decode(errors="replace")
        return _token(token, text, logprob, is_special=text in self._options.special)

    def _event(self, index: int, counts: TokenCounts, *, is_last: bool) -> bytes:
        if not self.is_stream:
            return b""
        event: Object = {"index": index + 1, "token": self._tokens[index]}
        if self._options.num_top:
            event["top_tokens"] = self._top[index]
        event["generated_text"] = self._whole_text() if is_last else None
        event["details"] = self._details() | {"input_length": counts.prompt} if is_last else None
        return data_event(event)

    def _whole_text(self) -> str:
        return self._options.prompt + "".join(self._texts)

    def _details(self) -> Object:
        return {
            "finish_reason": self._finish,
            "generated_tokens": len(self._tokens),
            "seed": self._seed,
        }


def _token(token: int, text: str, logprob: float | None, *, is_special: bool) -> Object:
    return {"id": token, "text": text, "logprob": logprob, "special": is_special}


MAX_STOPS = 64
_WARPERS = ("temperature", "top_k", "top_p", "typical_p")
"""Parameters that mean sampling, also without `do_sample`."""


async def generate(services: Services, exchange: Exchange) -> None:
    """Complete a prompt."""
    await _complete(services, exchange, GENERATE)


async def generate_stream(services: Services, exchange: Exchange) -> None:
    """Complete a prompt as a stream."""
    await _complete(services, exchange, GENERATE, stream=True)


async def compatible(services: Services, exchange: Exchange) -> None:
    """Complete a prompt, as a stream if the body says so; a whole answer is an array of one."""
    await _complete(services, exchange, COMPATIBLE, in_array=True)


async def _complete(
    services: Services, exchange: Exchange, rows: FieldTable, *, stream: bool = False, in_array: bool = False
) -> None:
    profile = services.profile

    def check(fields: dict[str, object]) -> tuple[dict[str, Any], bool]:
        return check_fields(fields, rows, profile), fields.get("parameters") is not None

    checked, has_parameters = await services.decode(exchange, check)
    stream = stream or checked.get("stream", False)
    request = _request(checked, stream=stream, samples_by_default=not has_parameters)
    info = await services.backend.tokenizer_info(request.model)
    end = info.eos_token or ""
    ids = await services.backend.tokenize(request.model, end, False) if end else []
    options = TgiOptions(
        prompt=checked["inputs"] or "" if checked["return_full_text"] else "",
        has_details=checked["details"],
        num_top=checked["top_n_tokens"],
        in_array=in_array,
        end_token=(ids[0] if len(ids) == 1 else 0, end),
        special=frozenset(info.special_tokens),
    )
    await services.complete(exchange, request, TgiReply(request, options))


async def info(services: Services, exchange: Exchange) -> None:
    """Describe the server and the first model."""
    model = services.model(None)
    described = await services.backend.tokenizer_info(model.id)
    answer = {
        "model_id": model.id,
        "model_sha": None,
        "model_pipeline_tag": "text-generation",
        "max_concurrent_requests": services.settings.max_waiting,
        "max_best_of": 1,
        "max_stop_sequences": MAX_STOPS,
        "max_input_tokens": described.context_length - 1,
        "max_total_tokens": described.context_length,
        "validation_workers": 1,
        "max_client_batch_size": 1,
        "router": "onward",
        "version": onward.__version__,
        "sha": None,
        "docker_label": None,
    }
    await respond_json(exchange, answer)


def _request(checked: dict[str, Any], *, stream: bool, samples_by_default: bool) -> CompletionRequest:
    """Return the request. Stop strings are part of the text.

    Without `parameters` the server samples, with them only where they say so (default_parameters).
    """
    fields = request_fields(checked, "stream", "grammar") | (checked.get("grammar") or {})
    limit = checked.get("max_new_tokens")
    samples = checked.get("do_sample", samples_by_default) or any(checked.get(name) is not None for name in _WARPERS)
    if not samples:
        fields["temperature"] = 0.0
        fields.pop("seed", None)
    return CompletionRequest(
        **fields,
        prompt=checked["inputs"] or "",
        stream=stream,
        max_tokens=UNLIMITED_TOKENS if limit is None else limit,
        fill_context=limit is None,
        logprobs=checked["top_n_tokens"],
        include_stop_str_in_output=True,
    )


_STREAM_EXAMPLE = (
    'data: {"index":1,"token":{"id":617,"text":" upon","logprob":-0.1,"special":false},"generated_text":null}\n\n'
)

ROUTES = with_words(
    ERRORS,
    Route(
        "POST",
        "/generate",
        generate,
        "tgiGenerate",
        "Continue a prompt.",
        body=GENERATE,
        example={JSON: {"generated_text": " upon a time"}},
    ),
    Route(
        "POST",
        "/generate_stream",
        generate_stream,
        "tgiStream",
        "Continue a prompt as a stream.",
        body=GENERATE,
        stream=EVENTS,
        example={JSON: {"generated_text": " upon a time"}, EVENTS: _STREAM_EXAMPLE},
    ),
    Route(
        "POST",
        "/",
        compatible,
        "tgiCompatible",
        "Continue a prompt, as a stream or not.",
        body=COMPATIBLE,
        stream=EVENTS,
        example={JSON: [{"generated_text": " upon a time"}], EVENTS: _STREAM_EXAMPLE},
    ),
    Route(
        "GET",
        "/info",
        info,
        "tgiInfo",
        "Describe the server.",
        example={JSON: {"model_id": "storyteller", "max_total_tokens": 1024, "router": "onward", "version": "0.1.0"}},
    ),
)
