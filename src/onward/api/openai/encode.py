"""Encodes completions as JSON bodies and chunks as events: small ones at once, large ones in parts."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from onward.api.openai.response import Choice, Chunk, Completion, Logprobs, PromptLogprob
from onward.api.sse import DATA, EVENT_END

MIN_PART_BYTES = 131_072
"""Minimum size of a part; only the last one may be smaller."""
_SLICE_VALUES = 4096
"""Numbers and strings that are encoded at once. A slice takes a millisecond at most."""
MIN_OBFUSCATED_BYTES = 256
"""Size of the smallest obfuscated event."""
_FIELD, _CLOSE = b',"obfuscation":"', b'"}'
ENCODER = msgspec.json.Encoder()


def encode_completion(completion: Completion, *, schema: str | None = None) -> bytes:
    """Return the body of a response that is not streamed: two-space indent, final newline, non-ASCII not escaped.

    `schema` is the URL of the body's JSON Schema. It becomes the first key, `$schema` (behaviour §0, §10).
    """
    return msgspec.json.format(_with_schema(ENCODER.encode(completion), schema), indent=2) + b"\n"


def completion_parts(completion: Completion, *, schema: str | None = None) -> Iterator[bytes]:
    """Yield the body that `encode_completion` returns, in parts, for responses of many megabytes.

    The completion is consumed: its log probabilities are released as they are encoded, because releasing millions of
    objects at once would take as long as encoding them.
    """
    layout = _Layout(is_indented=True)
    head = _with_schema(ENCODER.encode(msgspec.structs.replace(completion, choices=[])), schema)
    yield from _joined(_with_choices(head, completion.choices, layout, end=b"\n"))


def chunk_parts(chunk: Chunk) -> Iterator[bytes]:
    """Yield a chunk's JSON on one line, in parts; the chunk is consumed, as in `completion_parts`."""
    head = ENCODER.encode(msgspec.structs.replace(chunk, choices=[]))
    yield from _joined(_with_choices(head, chunk.choices, _Layout(is_indented=False)))


def chunk_event(chunk: Chunk, *, obfuscate: bool = False) -> bytes:
    """Return a chunk as one event.

    With `obfuscate`, a random string pads it to 256, 512, 1024, … bytes, so that its size does not reveal the length of
    its text; `chunk.obfuscation` must then be None.
    """
    event = DATA + ENCODER.encode(chunk)
    if not obfuscate:
        return event + EVENT_END
    return event[:-1] + _padding(len(event) - 1) + EVENT_END


def chunk_event_parts(chunk: Chunk, *, obfuscate: bool = False) -> Iterator[bytes]:
    """Yield the event that `chunk_event` returns, in parts, for one of many megabytes. The chunk is consumed (see
    `chunk_parts`)."""
    waiting = DATA
    num_bytes = 0
    for part in chunk_parts(chunk):
        if num_bytes:
            yield waiting
            waiting = b""
        waiting += part
        num_bytes += len(part)
    yield (waiting[:-1] + _padding(len(DATA) + num_bytes - 1) if obfuscate else waiting) + EVENT_END


def _padding(num_bytes: int) -> bytes:
    """Return what follows an event of `num_bytes` without its last brace."""
    length = num_bytes + len(_FIELD) + len(_CLOSE) + len(EVENT_END)
    bucket = max(MIN_OBFUSCATED_BYTES, 1 << (length - 1).bit_length())
    return _FIELD + secrets.token_urlsafe(bucket - length)[: bucket - length].encode() + _CLOSE


def num_values(choices: list[Choice]) -> int:
    """Return about how many numbers and strings the choices contain, a long text counted as several."""
    total = 0
    for choice in choices:  # called for each chunk of a stream; most have only a short text
        total += 1 + len(choice.text) // 16
        if (logprobs := choice.logprobs) is not None:
            total += len(logprobs.tokens) * _values_per_token(logprobs)
        for ids in (choice.token_ids, choice.prompt_token_ids):
            if ids is not None:
                total += len(ids)
        if (scored := choice.prompt_logprobs) is not None:
            total += len(scored) * _values_per_entry(scored)
    return total


def _values_per_entry(entries: Sequence[dict[int, PromptLogprob] | None]) -> int:
    return 1 + 4 * max(len(entries[-1] or ()) if entries else 0, 1)


def _values_per_token(logprobs: Logprobs) -> int:
    alternatives = logprobs.top_logprobs[-1] if logprobs.top_logprobs else None
    return 3 + 2 * len(alternatives or ())


def _with_schema(body: bytes, schema: str | None) -> bytes:
    return body if schema is None else b'{"$schema":' + ENCODER.encode(schema) + b"," + body[1:]


class _Layout:
    """The white space of a JSON document: none, or lines indented by two spaces per level."""

    def __init__(self, *, is_indented: bool) -> None:
        self._is_indented = is_indented
        self.colon = b": " if is_indented else b":"

    def apply(self, raw: bytes, depth: int) -> bytes:
        """Return a value without white space as it is laid out at a depth. Strings contain no line ends."""
        if not self._is_indented:
            return raw
        return msgspec.json.format(raw, indent=2).replace(b"\n", self.line(depth))

    def line(self, depth: int) -> bytes:
        """Return a line end and the indentation of the next line."""
        return b"\n" + b"  " * depth if self._is_indented else b""


def _with_choices(head: bytes, choices: list[Choice], layout: _Layout, end: bytes = b"") -> Iterator[bytes]:
    """Yield the document of which `head` is the encoding without choices. Inside a string, quotes are escaped: no text
    can contain what separates the document."""
    before, key, after = layout.apply(head, 0).partition(b'"choices"' + layout.colon)
    assert key
    yield before + key + b"["
    for index, choice in enumerate(choices):
        yield (b"," if index else b"") + layout.line(2)
        yield from _choice(choice, layout)
    yield (layout.line(1) if choices else b"") + after[1:] + end


def _choice(choice: Choice, layout: _Layout) -> Iterator[bytes]:
    logprobs, choice.logprobs = choice.logprobs, None
    scored, choice.prompt_logprobs = choice.prompt_logprobs, None
    whole = layout.apply(ENCODER.encode(choice), 2)
    if logprobs is not None:
        before, key, whole = whole.partition(b'"logprobs"' + layout.colon)
        assert key
        yield before + key
        yield from _logprobs(logprobs, layout)
        whole = whole.removeprefix(b"null")
    if scored is not None:
        closing = layout.line(2) + b"}"
        yield whole.removesuffix(closing) + b"," + layout.line(3) + b'"prompt_logprobs"' + layout.colon
        yield from _list(scored, max(1, _SLICE_VALUES // _values_per_entry(scored)), layout, 3)
        whole = closing
    yield whole


def _logprobs(logprobs: Logprobs, layout: _Layout) -> Iterator[bytes]:
    num_tokens = max(1, _SLICE_VALUES // _values_per_token(logprobs))
    for index, name in enumerate(logprobs.__struct_fields__):
        yield (b"," if index else b"{") + layout.line(4) + b'"' + name.encode() + b'"' + layout.colon
        yield from _list(getattr(logprobs, name), num_tokens, layout, 4)
    yield layout.line(3) + b"}"


def _list(values: list[Any] | None, step: int, layout: _Layout, depth: int) -> Iterator[bytes]:
    """Yield a list at a depth, `step` entries at a time, which are released."""
    if not values:
        yield b"null" if values is None else b"[]"
        return
    closing = layout.line(depth) + b"]"
    for start in range(0, len(values), step):
        part = values[start : start + step]
        values[start : start + step] = [None] * len(part)
        yield (b"," if start else b"[") + layout.apply(ENCODER.encode(part), depth)[1 : -len(closing)]
    yield closing


def _joined(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Join pieces to parts of at least MIN_PART_BYTES."""
    waiting: list[bytes] = []
    num_bytes = 0
    for piece in pieces:
        waiting.append(piece)
        num_bytes += len(piece)
        if num_bytes >= MIN_PART_BYTES:
            yield b"".join(waiting)
            waiting.clear()
            num_bytes = 0
    if waiting:
        yield b"".join(waiting)
