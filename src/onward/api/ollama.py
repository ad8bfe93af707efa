"""Ollama's native API (api/types.go and docs/api.md, fb30760, 2026-08): /api/generate, and what plug-ins ask before:
tags, show, ps, version. Answers are newline-delimited JSON, with durations in nanoseconds."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import msgspec

import onward
from onward.api.decoder import UNLIMITED_TOKENS, request_fields
from onward.api.errors import ErrorWords
from onward.api.fields import only, own, refused, same, shared, unused
from onward.api.numbers import most_likely, wire_number
from onward.api.openai.errors import MAX_FIELD_CHARS, openai_error
from onward.api.openai.parameters import KEEP_ALIVE
from onward.api.parameter import FieldTable
from onward.api.reply import OneChoice, Stopwatch
from onward.api.routes import JSON, JSON_UTF8, LINES, Exchange, Route, Services, respond_json, with_words
from onward.completions.answer import Delta, TokenCounts
from onward.completions.rejections import UnknownModel
from onward.completions.request import CompletionRequest
from onward.errors import ApiError, InvalidRequest, ModelNotFound, RequestRejected
from onward.models.registry import ListedModel
from onward.text.assembler import TokenRecord

Object = dict[str, Any]
NAME = "ollama"
TEMPLATE = "{{ .Prompt }}"
"""Ollama's template of a model whose prompts are used as they are."""
_AT_START = "it is set when the server starts."
_RUNNER_SWITCHES = (
    "numa", "low_vram", "f16_kv", "logits_all", "vocab_only", "use_mmap", "use_mlock", "embedding_only",
)  # fmt: skip

OPTIONS = FieldTable.with_whole_floats(
    own(
        "num_predict", "integer", NAME,
        "Maximum number of tokens to generate; -1, the default, or -2: until the context is full. Never more than fit.",
        minimum=-2, default=-1, example=64,
    ),
    same("temperature", "temperature", NAME, default=0.8),
    same("top_k", "top_k", NAME, default=40),
    same("top_p", "top_p", NAME, default=0.9),
    same("min_p", "min_p", NAME),
    same("repeat_penalty", "repetition_penalty", NAME),
    *shared(NAME, "presence_penalty", "frequency_penalty", "seed"),
    same("stop", "stop", NAME, max_items=64, lenient_max_items=64),
    same("typical_p", "typical_p", NAME),
    same("tfs_z", "tfs", NAME),
    *shared(NAME, "mirostat", "mirostat_tau", "mirostat_eta"),
    unused("repeat_last_n", "integer", NAME, "penalties look at the whole completion."),
    unused("penalize_newline", "boolean", NAME, "it no longer has an effect in Ollama."),
    unused("num_keep", "integer", NAME, "a context that is full ends the completion."),
    unused("num_ctx", "integer", NAME, _AT_START),
    unused("num_batch", "integer", NAME, "the engine decides with every step."),
    unused("num_gpu", "integer", NAME, _AT_START),
    unused("main_gpu", "integer", NAME, _AT_START),
    unused("num_thread", "integer", NAME, _AT_START),
    unused("draft_num_predict", "integer", NAME, "the engine decides with every step."),
    *(unused(name, "boolean", NAME, _AT_START) for name in _RUNNER_SWITCHES),
)  # fmt: skip

GENERATE = FieldTable(
    same("model", "model", NAME, required=True, help="A model's name; `:latest` may follow it."),
    own("prompt", "string", NAME, "The text to continue. Without one, nothing is generated: the model is loaded."),
    same("suffix", "suffix", NAME),
    same("stream", "stream", NAME, default=True, help="Send the completion while it is generated, a line per step."),
    own(
        "options", "object", NAME, "Ollama's sampling options.", inner=tuple(OPTIONS.values()),
        example={"temperature": 0.7},
    ),
    own("logprobs", "boolean", NAME, "Return the log probability of every token.", default=False),
    own(
        "top_logprobs", "integer", NAME, "With `logprobs`, also those of this many of the most likely tokens.",
        minimum=0, maximum=20, default=0,
    ),
    replace(KEEP_ALIVE, dialect=NAME),
    unused("raw", "boolean", NAME, "there are no prompt templates, so every prompt is raw."),
    only("system", NAME, "", why="There is no prompt template for it: put it into `prompt`."),
    only("template", NAME, "", TEMPLATE, why="There are no prompt templates: put everything into `prompt`."),
    only("context", NAME, [], why="Send the text so far in `prompt`: the prefix cache finds it."),
    only("images", NAME, [], why="Models of this server read text only."),
    only("think", NAME, False, why="A model's reasoning is part of its text."),
    own(
        "format", "json_format", NAME, '"json", or a JSON Schema that the response is valid by.', example="json",
        alias_of="json_schema",
    ),
    only("truncate", NAME, False, why="A prompt that does not fit is an error."),
    only("shift", NAME, False, why="A context that is full ends the completion."),
    only("_debug_render_only", NAME, False, why="There are no prompt templates to render."),
)  # fmt: skip

SHOW = FieldTable(
    own("model", "string", NAME, "A model's name.", example="storyteller"),
    own("name", "string", NAME, "The older name of `model`.", alias_of="model"),
    unused("verbose", "boolean", NAME, "all that is known is always shown."),
    refused("system", NAME, "There are no system prompts."),
    refused("template", NAME, "There are no prompt templates."),
    refused("options", NAME, "Models have no options of their own."),
)


def now() -> str:
    """Return the time in RFC 3339."""
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


def error_body(error: ApiError) -> tuple[int, bytes, str]:
    """Return status, body and content type of an error."""
    body = msgspec.json.encode({"error": error.message[:MAX_FIELD_CHARS]})
    return error.status, body, JSON_UTF8


def _say(fact: RequestRejected) -> ApiError:
    """Return the error of a request that cannot be completed: that of server/routes.go where it has one."""
    match fact:
        case UnknownModel(name):
            return ModelNotFound(f"model '{name}' not found")
    return openai_error(fact)


def _error_line(error: ApiError) -> bytes:
    return error_body(error)[1] + b"\n"


ERRORS = ErrorWords(_say, error_body, _error_line)


class OllamaReply(OneChoice):
    """Writes one answer. `name` is the model as the client named it."""

    content_type = "application/x-ndjson"

    def __init__(self, request: CompletionRequest, name: str, stopwatch: Stopwatch) -> None:
        super().__init__(is_stream=request.stream)
        self._request = request
        self._name = name
        self._stopwatch = stopwatch
        self._logprobs: list[Object] = []
        self._finish = "stop"

    def write(self, delta: Delta, counts: TokenCounts) -> bytes:
        self._stopwatch.mark()
        self._finish = delta.finish.reason if delta.finish else self._finish
        num_top = self._request.logprobs
        logprobs = [] if num_top is None else [_entry(record, num_top) for record in delta.tokens]
        if not self.is_stream:
            self._texts.append(delta.text)
            self._logprobs += logprobs
            return b""
        if not delta.text and not logprobs:
            return b""
        line: Object = {"response": delta.text, "done": False}
        return self._line(line | ({"logprobs": logprobs} if logprobs else {}))

    def finish(self, counts: TokenCounts) -> bytes:
        line: Object = {
            "response": "".join(self._texts),
            "done": True,
            "done_reason": self._finish,
            "total_duration": _nanoseconds(self._stopwatch.total_seconds),
            "load_duration": 0,
            "prompt_eval_count": counts.prompt,
            "prompt_eval_duration": _nanoseconds(self._stopwatch.prompt_seconds),
            "eval_count": counts.completion,
            "eval_duration": _nanoseconds(self._stopwatch.decode_seconds),
        }
        return self._line(line | ({"logprobs": self._logprobs} if self._logprobs else {}))

    def _line(self, fields: Object) -> bytes:
        line = msgspec.json.encode({"model": self._name, "created_at": now(), **fields})
        return line + b"\n" if self.is_stream else line


def _entry(record: TokenRecord, num_top: int) -> Object:
    entry = _token(record.token_bytes, wire_number(record.logprob))
    if num_top:
        entry["top_logprobs"] = [_token(raw, logprob) for _, raw, logprob in most_likely(record, num_top)]
    return entry


def _token(raw: bytes, logprob: float) -> Object:
    return {"token": raw.decode(errors="replace"), "logprob": logprob, "bytes": list(raw)}


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)


LATEST = ":latest"
ARCHITECTURE = "onward"
"""Prefix of keys in `model_info`, where Ollama has a model's architecture."""
NEVER = "2318-01-01T00:00:00Z"
"""When a model expires: never, which Ollama writes as a date in the distant future."""


async def generate(services: Services, exchange: Exchange) -> None:
    """Complete a prompt. Without one, answer that the model is loaded, which it always is."""
    stopwatch = Stopwatch()
    checked = await services.fields(exchange, GENERATE)
    name = checked["model"] or ""
    model = _served_name(services, name)
    if not checked.get("prompt") and not checked.get("suffix"):
        services.model(model)
        loaded = {"model": name, "created_at": now(), "response": "", "done": True, "done_reason": "load"}
        await respond_json(exchange, loaded, media=JSON_UTF8)
        return
    request = _request(checked, model)
    reply = OllamaReply(request, name, stopwatch)
    await services.complete(exchange, request, reply)


async def show(services: Services, exchange: Exchange) -> None:
    """Describe a model."""
    checked = await services.fields(exchange, SHOW)
    if not checked.get("model"):
        raise InvalidRequest("model is required", param="model")
    model = services.model(_served_name(services, checked["model"]))
    info = await services.backend.tokenizer_info(model.id)
    answer: Object = {
        "modelfile": "",
        "parameters": "",
        "template": TEMPLATE,
        "details": _details(info.context_length),
        "model_info": {
            "general.architecture": ARCHITECTURE,
            f"{ARCHITECTURE}.context_length": info.context_length,
            f"{ARCHITECTURE}.vocab_size": info.vocab_size,
        },
        "capabilities": ["completion", *(["insert"] if info.infill else [])],
        "modified_at": _modified(model),
    }
    await respond_json(exchange, answer, media=JSON_UTF8)


async def tags(services: Services, exchange: Exchange) -> None:
    """List the models."""
    models = services.backend.models()
    listed = [_listed(model) | {"modified_at": _modified(model)} for model in models]
    await respond_json(exchange, {"models": listed}, media=JSON_UTF8)


async def processes(services: Services, exchange: Exchange) -> None:
    """List the models that are loaded: all."""
    listed: list[Object] = []
    for model in services.backend.models():
        info = await services.backend.tokenizer_info(model.id)
        more = {"expires_at": NEVER, "size_vram": 0, "context_length": info.context_length}
        listed.append(_listed(model) | more)
    await respond_json(exchange, {"models": listed}, media=JSON_UTF8)


async def version(services: Services, exchange: Exchange) -> None:
    """Return Onward's version."""
    await respond_json(exchange, {"version": onward.__version__}, media=JSON_UTF8)


def _served_name(services: Services, name: str) -> str:
    """Return a model's name without the tag that Ollama's clients add."""
    short = name.removesuffix(LATEST)
    names = {model.id for model in services.backend.models()}
    return short if name not in names and short in names else name


def _request(checked: Object, model: str) -> CompletionRequest:
    fields = request_fields(checked, "model", "prompt", "logprobs")
    if fields.get("seed") == -1:
        del fields["seed"]
    limit = checked["num_predict"]
    return CompletionRequest(
        model=model,
        prompt=checked.get("prompt") or "",
        max_tokens=UNLIMITED_TOKENS if limit < 0 else limit,
        fill_context=True,
        logprobs=checked["top_logprobs"] if checked["logprobs"] else None,
        **fields,
    )


def _listed(model: ListedModel) -> Object:
    """Return a model's entry in lists. Its size is not known; the digest is that of its name."""
    digest = hashlib.sha256(model.id.encode()).hexdigest()
    return {"name": model.id, "model": model.id, "size": 0, "digest": digest, "details": _details()}


def _details(context_length: int = 0) -> Object:
    details: Object = {
        "parent_model": "",
        "format": "",
        "family": ARCHITECTURE,
        "families": [ARCHITECTURE],
        "parameter_size": "",
        "quantization_level": "",
    }
    return details | ({"context_length": context_length} if context_length else {})


def _modified(model: ListedModel) -> str:
    return datetime.fromtimestamp(model.created, UTC).isoformat().replace("+00:00", "Z")


_EXAMPLE: dict[str, Any] = {
    "model": "storyteller",
    "created_at": "2026-11-24T00:27:24.430857Z",
    "response": " upon a time",
    "done": True,
    "done_reason": "length",
    "prompt_eval_count": 1,
    "eval_count": 3,
}

_LINES_EXAMPLE = (
    '{"model":"storyteller","response":" upon","done":false}\n{"model":"storyteller","response":"","done":true}\n'
)

_MODEL_EXAMPLE: dict[str, Any] = {"name": "storyteller", "model": "storyteller", "details": {"family": "onward"}}

ROUTES = with_words(
    ERRORS,
    Route(
        "POST",
        "/api/generate",
        generate,
        "ollamaGenerate",
        "Continue a prompt.",
        body=GENERATE,
        stream=LINES,
        example={JSON: _EXAMPLE, LINES: _LINES_EXAMPLE},
    ),
    Route(
        "POST",
        "/api/show",
        show,
        "ollamaShow",
        "Describe a model.",
        body=SHOW,
        example={JSON: {"details": {"family": "onward"}, "capabilities": ["completion", "insert"]}},
    ),
    Route(
        "GET",
        "/api/tags",
        tags,
        "ollamaTags",
        "List the models.",
        example={JSON: {"models": [_MODEL_EXAMPLE]}},
    ),
    Route(
        "GET",
        "/api/ps",
        processes,
        "ollamaProcesses",
        "List the models that are loaded.",
        example={JSON: {"models": [{**_MODEL_EXAMPLE, "context_length": 1024}]}},
    ),
    Route(
        "GET",
        "/api/version",
        version,
        "ollamaVersion",
        "Return the server's version.",
        example={JSON: {"version": "0.1.0"}},
    ),
)
