"""Ollama's answers (GenerateResponse in api/types.go): newline-delimited JSON, durations in nanoseconds."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

from onward.api.errors import ErrorWords
from onward.api.numbers import most_likely, wire_number
from onward.api.openai.words import openai_error
from onward.api.reply import OneChoice, Stopwatch
from onward.completions.delta import Delta, TokenCounts
from onward.completions.rejections import UnknownModel
from onward.completions.request import CompletionRequest
from onward.errors import ApiError, ModelNotFound, RequestRejected
from onward.protocol.error_body import MAX_FIELD_CHARS
from onward.text.assembler import TokenRecord

Object = dict[str, Any]


def now() -> str:
    """Return the time in RFC 3339."""
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


def error_body(error: ApiError) -> tuple[int, bytes, str]:
    """Return status, body and content type of an error."""
    body = msgspec.json.encode({"error": error.message[:MAX_FIELD_CHARS]})
    return error.status, body, "application/json; charset=utf-8"


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
