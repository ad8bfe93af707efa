"""The chunks of one stream, over one connection or over several."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import httpx2
import msgspec

from onward.cli.source.base import ConnectionFailed, Document, stream_error, too_large, unusable
from onward.cli.source.transport import MAX_ANSWER_BYTES, connection_failed
from onward.network import without_secrets

PREFERENCE = "resumable"
"""In the header Prefer, which servers that do not know it ignore: keep the stream if its connection is lost."""


class ChunkStream:
    """The state of a stream: which choices have ended, and where another connection has to resume."""

    def __init__(self, url: str, window_seconds: float | None) -> None:
        """`window_seconds`: how long the server keeps the stream after a connection was lost; None: not at all."""
        self.url = url
        self.window_seconds = window_seconds
        self.last_event_id = ""
        self._id = ""
        self._unfinished: set[int] = set()
        self._has_started = False

    @property
    def own_url(self) -> str | None:
        """URL at which another connection resumes the stream, None if that is impossible."""
        return f"{self.url}/{self._id}" if self.window_seconds and self._id and self.last_event_id else None

    async def read(self, response: httpx2.Response) -> AsyncGenerator[Document, None]:
        """Yield chunks up to `[DONE]`. Without it a stream is complete if every choice has a finish reason.

        Raises ConnectionFailed; RemoteError for an error event.
        """
        response.encoding = "utf-8-sig"  # the encoding of the standard, whatever the content type says
        try:
            async for event in httpx2.EventSource(response, MAX_ANSWER_BYTES):
                self.last_event_id = event.id or self.last_event_id
                if event.data == "[DONE]":
                    return
                if event.data:
                    document = _chunk(event.data, self.url)
                    self._note(document)
                    yield document
        except httpx2.SSEError as problem:
            raise too_large(self.url) from problem
        except httpx2.TransportError as problem:
            raise connection_failed(problem, self.url) from None
        if self._unfinished or not self._has_started:
            raise ConnectionFailed(f"The stream from {without_secrets(self.url)} ended before it was complete.")

    def _note(self, document: Document) -> None:
        self._has_started = True
        self._id = str(document.value.get("id") or "")
        for choice in document.value.get("choices") or ():
            update = self._unfinished.discard if choice.get("finish_reason") else self._unfinished.add
            update(choice.get("index", 0))


def is_event_stream(response: httpx2.Response) -> bool:
    """Return whether the body of a response is a stream of events."""
    content_type, _, _ = response.headers.get("content-type", "").partition(";")
    return content_type.strip().lower() == "text/event-stream"


def resume_window(headers: Mapping[str, str]) -> float | None:
    """Return for how many seconds a server keeps the stream that begins with these headers, None: it does not."""
    for applied in headers.get("preference-applied", "").split(","):
        name, *parameters = (each.strip() for each in applied.split(";"))
        for parameter in parameters if name == PREFERENCE else ():
            key, _, value = parameter.partition("=")
            if key.strip() == "window":
                try:
                    seconds = float(value)
                except ValueError:
                    return None
                return seconds if math.isfinite(seconds) else None
    return None


def _chunk(data: str, url: str) -> Document:
    document = parse_document(data, url)
    if "error" in document.value and document.value["error"] is not None:
        raise stream_error(document.value["error"], url=url)
    return document


class _Choice(msgspec.Struct):
    index: int | None = None
    text: str | None = None
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Completion(msgspec.Struct):
    """The parts of a completion or a chunk that are used here."""

    id: str | None = None
    choices: list[_Choice] | None = None
    usage: _Usage | None = None


def parse_document(text: str, url: str) -> Document:
    """Parse a completion or a chunk. Raises RemoteError if it is neither."""
    return Document(parse_object(text, url, _Completion), text)


def parse_object(text: str | bytes, url: str, form: type[msgspec.Struct]) -> dict[str, Any]:
    """Parse a JSON object that has the fields of `form`, or an error. Raises RemoteError if it is neither."""
    try:
        value = msgspec.json.decode(text)
        if isinstance(value, dict):
            if value.get("error") is None:
                msgspec.convert(value, form)
            return value
    except msgspec.ValidationError as problem:
        message = f"{without_secrets(url)} sent something that is not part of the Completions API ({problem})."
        raise unusable(message, url) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    message = f"{without_secrets(url)} did not return a JSON object; is it a Completions API?"
    raise unusable(message, url)
