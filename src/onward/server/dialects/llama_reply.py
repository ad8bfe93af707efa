"""The answers of llama.cpp's server (server-task.cpp: to_json_non_oaicompat of the partial and the final result)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from onward.errors import ApiError
from onward.protocol.request import CompletionRequest
from onward.protocol.response import Choice, Usage
from onward.protocol.sse import KEEP_ALIVE, data_event
from onward.server.dialects.line_limits import LineLimits
from onward.server.dialects.llama_errors import error_object
from onward.server.dialects.services import Services
from onward.server.dialects.stopwatch import Stopwatch
from onward.server.dialects.token_records import TokenRecord, all_tokens, cut_stop, token_records

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class LlamaOptions:
    """What a request asks of its answer. `num_tokens` is `n_predict`, -1 for none; `max_seconds` is
    `t_max_predict_ms`."""

    num_tokens: int = -1
    min_indent: int = 0
    max_seconds: float = 0.0
    num_probs: int = 0
    returns_tokens: bool = False
    times_every_token: bool = False
    fields: tuple[str, ...] = ()


@dataclass(slots=True)
class _Part:
    """One choice so far."""

    limits: LineLimits
    texts: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    probabilities: list[Object] = field(default_factory=list)
    num_tokens: int = 0
    num_characters: int = 0
    first_offset: int | None = None
    """The offset of the first token: the length of the prompt."""
    stop_type: str = "none"
    stopping_word: str = ""


class LlamaReply:
    """Writes one answer: an object, or an array of them where there are several choices; or events."""

    content_type = "text/event-stream"
    keep_alive = KEEP_ALIVE

    def __init__(
        self,
        request: CompletionRequest,
        options: LlamaOptions,
        services: Services,
        stopwatch: Stopwatch,
        settings: Callable[[str], Object],
    ) -> None:
        """`settings` returns `generation_settings` and `prompt` for a model's name."""
        self._request = request
        self._options = options
        self._services = services
        self._stopwatch = stopwatch
        self._settings = settings
        self._model = ""
        self._parts: dict[int, _Part] = {}
        self._finals: dict[int, Object] = {}

    def begin(self, model: str) -> None:
        self._model = model

    @property
    def is_complete(self) -> bool:
        return len(self._finals) == self._request.n

    async def feed(self, parts: list[Choice], usage: Usage) -> bytes:
        self._stopwatch.mark()
        events: list[Object] = []
        for choice in parts:
            if choice.index not in self._finals:
                events += await self._accept(choice, usage)
        return b"".join(map(data_event, events))

    async def end(self, usage: Usage) -> bytes:
        if self._request.stream:
            return b""
        finals = [self._finals[index] for index in sorted(self._finals)]
        return msgspec.json.encode(finals[0] if self._request.n == 1 else finals)

    def error(self, error: ApiError) -> bytes:
        return data_event({"error": error_object(error)})

    async def _accept(self, choice: Choice, usage: Usage) -> list[Object]:
        """Return the events that a part of a choice leads to; the last one when it has ended."""
        part = self._parts.get(choice.index)
        if part is None:
            options = self._options
            part = self._parts[choice.index] = _Part(LineLimits(options.min_indent, options.max_seconds))
        text = choice.text
        if choice.finish_reason == "stop":
            text, part.stopping_word = cut_stop(text, self._request.stop)
            part.stop_type = "word" if part.stopping_word else "eos"
        elif choice.finish_reason:
            part.stop_type = "limit"
        text, is_limited = part.limits.feed(text, self._stopwatch.decode_seconds)
        if is_limited:
            part.stop_type, part.stopping_word = "limit", ""
        records = token_records(choice, self._options.num_probs)
        part.num_tokens += len(records)
        part.num_characters += len(text)
        records = _of_content(records, part)
        probabilities = await self._probabilities(records)
        events = [self._partial(choice.index, part, text, records, probabilities, usage)] if text or records else []
        part.texts.append(text)
        part.tokens += [record.token for record in records]
        part.probabilities += probabilities
        if part.stop_type != "none":
            final = self._finals[choice.index] = self._final(choice.index, part, usage)
            events.append(final)
        return events

    def _partial(
        self,
        index: int,
        part: _Part,
        text: str,
        records: list[TokenRecord],
        probabilities: list[Object],
        usage: Usage,
    ) -> Object:
        event: Object = {
            "index": index,
            "content": text,
            "tokens": [record.token for record in records],
            "stop": False,
            "id_slot": -1,
            "tokens_predicted": part.num_tokens,
            "tokens_evaluated": usage.prompt_tokens,
        }
        if self._options.times_every_token:
            event["timings"] = self._timings(part, usage)
        if probabilities:
            event["completion_probabilities"] = probabilities
        return event

    def _final(self, index: int, part: _Part, usage: Usage) -> Object:
        is_stream = self._request.stream
        limit = self._options.num_tokens
        whole: Object = {
            "index": index,
            "content": "" if is_stream else "".join(part.texts),
            "tokens": part.tokens if self._options.returns_tokens and not is_stream else [],
            "id_slot": -1,
            "stop": True,
            "model": self._model,
            "tokens_predicted": part.num_tokens,
            "tokens_evaluated": usage.prompt_tokens,
            **self._settings(self._model),
            "has_new_line": part.limits.has_new_line,
            "truncated": part.stop_type == "limit" and self._filled_context(part, limit),
            "stop_type": part.stop_type,
            "stopping_word": part.stopping_word,
            "tokens_cached": usage.prompt_tokens_details.cached_tokens,
            "timings": self._timings(part, usage),
        }
        if part.probabilities and not is_stream:
            whole["completion_probabilities"] = part.probabilities
        return selected(whole, self._options.fields)

    def _filled_context(self, part: _Part, limit: int) -> bool:
        """Whether a choice ended at a limit that is neither the request's nor one of its lines."""
        is_by_lines = self._options.min_indent > 0 or self._options.max_seconds > 0
        return not is_by_lines and (limit < 0 or part.num_tokens < limit)

    def _timings(self, part: _Part, usage: Usage) -> Object:
        cached = usage.prompt_tokens_details.cached_tokens
        watch = self._stopwatch
        return {
            "cache_n": cached,
            **_timing("prompt", usage.prompt_tokens - cached, watch.prompt_seconds),
            **_timing("predicted", part.num_tokens, watch.decode_seconds),
        }

    async def _probabilities(self, records: list[TokenRecord]) -> list[Object]:
        if not self._options.num_probs or not records:
            return []
        texts = await self._services.tokens_by_id(self._model, all_tokens(records))
        return [
            _probability(record.token, record.logprob, texts)
            | {"top_logprobs": [_probability(token, value, texts) for token, value in record.top]}
            for record in records
        ]


def _of_content(records: list[TokenRecord], part: _Part) -> list[TokenRecord]:
    """Return the records of the content: those that begin before the stop string that was cut off."""
    if part.first_offset is None and records:
        part.first_offset = records[0].offset
    if not part.stopping_word or part.first_offset is None:
        return records
    end = part.first_offset + part.num_characters
    return [record for record in records if record.offset < end]


def _probability(token: int, logprob: float | None, texts: dict[int, bytes]) -> Object:
    raw = texts[token]
    return {"id": token, "token": raw.decode(errors="replace"), "bytes": list(raw), "logprob": logprob}


def _timing(stage: str, num_tokens: int, seconds: float) -> Object:
    ms = seconds * 1000
    return {
        f"{stage}_n": num_tokens,
        f"{stage}_ms": round(ms, 3),
        f"{stage}_per_token_ms": round(ms / num_tokens, 3) if num_tokens else 0.0,
        f"{stage}_per_second": round(num_tokens / seconds, 3) if seconds else 0.0,
    }


def selected(whole: Object, fields: tuple[str, ...]) -> Object:
    """Return `response_fields` of an object, by their paths; all of it if there are none. Missing ones are omitted."""
    if not fields:
        return whole
    found: Object = {}
    for path in fields:
        value: Any = whole
        for name in path.split("/"):
            value = value.get(name, _MISSING) if isinstance(value, dict) else _MISSING
        if value is not _MISSING:
            found[path] = value
    return found


_MISSING = object()
