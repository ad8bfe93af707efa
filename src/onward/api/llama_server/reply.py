"""The answers of llama.cpp's server (server-task.cpp: to_json_non_oaicompat of the partial and the final result), and
its errors (format_error_response in server-common.cpp)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from onward.api.errors import ErrorWords
from onward.api.numbers import most_likely, wire_number
from onward.api.openai.errors import MAX_FIELD_CHARS, openai_error
from onward.api.reply import ReplyEvent, Stopwatch
from onward.api.routes import JSON_UTF8
from onward.api.sse import KEEP_ALIVE, data_event
from onward.completions.answer import Answer, Delta, Finish, TokenCounts, merged
from onward.completions.rejections import ContextExceeded
from onward.completions.request import CompletionRequest
from onward.errors import ApiError, InvalidRequest, RequestRejected
from onward.text.assembler import TokenRecord

Object = dict[str, Any]
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    503: "unavailable_error",
}


class ContextTooSmall(InvalidRequest):
    """ERROR_TYPE_EXCEED_CONTEXT_SIZE, which has its own fields."""

    def __init__(self, num_prompt_tokens: int, context_length: int) -> None:
        super().__init__(
            f"request ({num_prompt_tokens} tokens) exceeds the available context size ({context_length} tokens), "
            "try increasing it"
        )
        self.fields = {"n_prompt_tokens": num_prompt_tokens, "n_ctx": context_length}


def say(fact: RequestRejected) -> ApiError:
    """Return the error of a request that cannot be completed: llama.cpp's where it has one."""
    match fact:
        case ContextExceeded(prompt_tokens, _, limit):
            return ContextTooSmall(prompt_tokens, limit)
    return openai_error(fact)


def error_object(error: ApiError) -> dict[str, object]:
    """Return code, message and type."""
    message = error.message[:MAX_FIELD_CHARS]
    if isinstance(error, ContextTooSmall):
        return {"code": 400, "message": message, "type": "exceed_context_size_error", **error.fields}
    kind = _TYPES.get(error.status, "server_error" if error.status >= 500 else "invalid_request_error")
    return {"code": error.status, "message": message, "type": kind}


def _body(error: ApiError) -> tuple[int, bytes, str]:
    return error.status, msgspec.json.encode({"error": error_object(error)}), JSON_UTF8


def _event(error: ApiError) -> bytes:
    return data_event({"error": error_object(error)})


ERRORS = ErrorWords(say, _body, _event)


class LineLimits:
    """Finds where one choice's text ends by `n_indent` and `t_max_predict_ms`; 0 turns either off."""

    def __init__(self, min_indent: int, max_seconds: float) -> None:
        self._min_indent = min_indent
        self._max_seconds = max_seconds
        self._indent: int | None = None
        """Width of the current line's indentation so far; None once it has ended, and on the first line."""
        self.has_new_line = False

    def feed(self, text: str, decode_seconds: float) -> tuple[str, bool]:
        """Return the text up to the limit, and whether it was reached.

        A line that is indented by too little is cut after its indentation. `decode_seconds` have passed since the
        first token; the time limit counts only once there is a line break.
        """
        end = self._shallow_line(text) if self._min_indent else None
        if end is not None:
            text = text[:end]
        self.has_new_line = self.has_new_line or "\n" in text
        is_late = self.has_new_line and 0 < self._max_seconds < decode_seconds
        return text, end is not None or is_late

    def _shallow_line(self, text: str) -> int | None:
        """Return where the first line that is indented by too little begins, after its indentation."""
        for position, character in enumerate(text):
            if self._indent is not None:
                if character in " \t":
                    self._indent += 1
                    continue
                if self._indent < self._min_indent:
                    return position
            self._indent = 0 if character == "\n" else None
        return None


@dataclass(frozen=True, slots=True)
class LlamaOptions:
    """The options of a request that shape its answer. `num_tokens` is `n_predict`, -1 for none; `max_seconds` is
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
        stopwatch: Stopwatch,
        settings: Callable[[str], Object],
    ) -> None:
        """`settings` returns `generation_settings` and `prompt` for a model's name."""
        self.is_stream = request.stream
        self._num_choices = request.n
        self._options = options
        self._stopwatch = stopwatch
        self._settings = settings
        self._model = ""
        self._parts: dict[int, _Part] = {}
        self._finals: dict[int, Object] = {}

    def begin(self, answer: Answer) -> None:
        self._model = answer.model

    @property
    def is_complete(self) -> bool:
        return len(self._finals) == self._num_choices

    async def feed(self, deltas: list[Delta], counts: TokenCounts) -> list[ReplyEvent]:
        self._stopwatch.mark()
        events: list[Object] = []
        for delta in merged(deltas):
            if delta.index not in self._finals:
                events += self._accept(delta, counts)
        return list(map(data_event, events)) if self.is_stream else []

    async def end(self, counts: TokenCounts) -> list[ReplyEvent]:
        if self.is_stream:
            return []
        finals = [self._finals[index] for index in sorted(self._finals)]
        return [msgspec.json.encode(finals[0] if self._num_choices == 1 else finals)]

    def _accept(self, delta: Delta, counts: TokenCounts) -> list[Object]:
        """Return the events that a delta of a choice leads to; the last one when it has ended."""
        part = self._parts.get(delta.index)
        if part is None:
            options = self._options
            part = self._parts[delta.index] = _Part(LineLimits(options.min_indent, options.max_seconds))
        text = delta.text
        if delta.finish is not None:
            part.stopping_word = delta.finish.stop_string
            text = text.removesuffix(part.stopping_word)
            part.stop_type = _stop_type(delta.finish)
        text, is_limited = part.limits.feed(text, self._stopwatch.decode_seconds)
        if is_limited:
            part.stop_type, part.stopping_word = "limit", ""
        part.num_tokens += len(delta.tokens)
        part.num_characters += len(text)
        records = _of_content(delta.tokens, part, is_cut=is_limited or bool(part.stopping_word))
        probabilities = self._probabilities(records)
        is_empty = not (text or records)
        events = [] if is_empty else [self._partial(delta.index, part, text, records, probabilities, counts)]
        part.texts.append(text)
        part.tokens += [record.token for record in records]
        part.probabilities += probabilities
        if part.stop_type != "none":
            final = self._finals[delta.index] = self._final(delta.index, part, counts)
            events.append(final)
        return events

    def _partial(
        self,
        index: int,
        part: _Part,
        text: str,
        records: list[TokenRecord],
        probabilities: list[Object],
        counts: TokenCounts,
    ) -> Object:
        event: Object = {
            "index": index,
            "content": text,
            "tokens": [record.token for record in records],
            "stop": False,
            "id_slot": -1,
            "tokens_predicted": part.num_tokens,
            "tokens_evaluated": counts.prompt,
        }
        if self._options.times_every_token:
            event["timings"] = self._timings(part, counts)
        if probabilities:
            event["completion_probabilities"] = probabilities
        return event

    def _final(self, index: int, part: _Part, counts: TokenCounts) -> Object:
        is_stream = self.is_stream
        limit = self._options.num_tokens
        whole: Object = {
            "index": index,
            "content": "" if is_stream else "".join(part.texts),
            "tokens": part.tokens if self._options.returns_tokens and not is_stream else [],
            "id_slot": -1,
            "stop": True,
            "model": self._model,
            "tokens_predicted": part.num_tokens,
            "tokens_evaluated": counts.prompt,
            **self._settings(self._model),
            "has_new_line": part.limits.has_new_line,
            "truncated": part.stop_type == "limit" and self._filled_context(part, limit),
            "stop_type": part.stop_type,
            "stopping_word": part.stopping_word,
            "tokens_cached": counts.cached,
            "timings": self._timings(part, counts),
        }
        if part.probabilities and not is_stream:
            whole["completion_probabilities"] = part.probabilities
        return selected(whole, self._options.fields)

    def _filled_context(self, part: _Part, limit: int) -> bool:
        """Whether a choice ended at a limit that is neither the request's nor one of its lines."""
        is_by_lines = self._options.min_indent > 0 or self._options.max_seconds > 0
        return not is_by_lines and (limit < 0 or part.num_tokens < limit)

    def _timings(self, part: _Part, counts: TokenCounts) -> Object:
        cached = counts.cached
        watch = self._stopwatch
        return {
            "cache_n": cached,
            **_timing("prompt", counts.prompt - cached, watch.prompt_seconds),
            **_timing("predicted", part.num_tokens, watch.decode_seconds),
        }

    def _probabilities(self, records: list[TokenRecord]) -> list[Object]:
        num_top = self._options.num_probs
        if not num_top:
            return []
        return [
            _probability(record.token, record.token_bytes, wire_number(record.logprob))
            | {"top_logprobs": [_probability(*likely) for likely in most_likely(record, num_top)]}
            for record in records
        ]


def _stop_type(finish: Finish) -> str:
    if finish.reason != "stop":
        return "limit"
    return "word" if finish.stop_string else "eos"


def _of_content(records: list[TokenRecord], part: _Part, *, is_cut: bool) -> list[TokenRecord]:
    """Return the records of the content: those that begin before the stop string, or the line, that was cut off."""
    if part.first_offset is None and records:
        part.first_offset = records[0].offset
    if not is_cut or part.first_offset is None:
        return records
    end = part.first_offset + part.num_characters
    return [record for record in records if record.offset < end]


def _probability(token: int, raw: bytes, logprob: float) -> Object:
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
