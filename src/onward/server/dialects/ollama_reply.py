"""Ollama's answers (GenerateResponse in api/types.go): newline-delimited JSON, durations in nanoseconds."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

from onward.errors import ApiError
from onward.protocol.error_body import MAX_FIELD_CHARS
from onward.protocol.request import CompletionRequest
from onward.protocol.response import Choice, Usage
from onward.server.dialects.run import OneChoice
from onward.server.dialects.services import Services
from onward.server.dialects.stopwatch import Stopwatch
from onward.server.dialects.token_records import TokenRecord, all_tokens, token_records

Object = dict[str, Any]


def now() -> str:
    """Return the time in RFC 3339."""
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


def error_body(error: ApiError) -> tuple[int, bytes, str]:
    """Return status, body and content type of an error."""
    body = msgspec.json.encode({"error": error.message[:MAX_FIELD_CHARS]})
    return error.status, body, "application/json; charset=utf-8"


class OllamaReply(OneChoice):
    """Writes one answer. `name` is the model as the client named it."""

    content_type = "application/x-ndjson"
    keep_alive = b""

    def __init__(
        self, request: CompletionRequest, name: str, num_top: int, services: Services, stopwatch: Stopwatch
    ) -> None:
        super().__init__()
        self._request = request
        self._name = name
        self._num_top = num_top
        self._services = services
        self._stopwatch = stopwatch
        self._logprobs: list[Object] = []
        self._finish = "stop"

    async def feed(self, parts: list[Choice], usage: Usage) -> bytes:
        self._stopwatch.mark()
        (choice,) = parts
        self._finish = choice.finish_reason or self._finish
        logprobs = await self._entries(token_records(choice, self._num_top))
        if not self._request.stream:
            self._texts.append(choice.text)
            self._logprobs += logprobs
            return b""
        if not choice.text and not logprobs:
            return b""
        line: Object = {"response": choice.text, "done": False}
        return self._line(line | ({"logprobs": logprobs} if logprobs else {}))

    async def end(self, usage: Usage) -> bytes:
        line: Object = {
            "response": "".join(self._texts),
            "done": True,
            "done_reason": self._finish,
            "total_duration": _nanoseconds(self._stopwatch.total_seconds),
            "load_duration": 0,
            "prompt_eval_count": usage.prompt_tokens,
            "prompt_eval_duration": _nanoseconds(self._stopwatch.prompt_seconds),
            "eval_count": usage.completion_tokens,
            "eval_duration": _nanoseconds(self._stopwatch.decode_seconds),
        }
        return self._line(line | ({"logprobs": self._logprobs} if self._logprobs else {}))

    def error(self, error: ApiError) -> bytes:
        return error_body(error)[1] + b"\n"

    def _line(self, fields: Object) -> bytes:
        line = msgspec.json.encode({"model": self._name, "created_at": now(), **fields})
        return line + b"\n" if self._request.stream else line

    async def _entries(self, records: list[TokenRecord]) -> list[Object]:
        if not records:
            return []
        texts = await self._services.tokens_by_id(self._model, all_tokens(records))
        return [_entry(record, texts) for record in records]


def _entry(record: TokenRecord, texts: dict[int, bytes]) -> Object:
    entry = _token(record.token, record.logprob, texts)
    if record.top:
        entry["top_logprobs"] = [_token(token, value, texts) for token, value in record.top]
    return entry


def _token(token: int, logprob: float | None, texts: dict[int, bytes]) -> Object:
    raw = texts[token]
    return {"token": raw.decode(errors="replace"), "logprob": logprob, "bytes": list(raw)}


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)
