"""One request, asked and shown: whole or streamed, live text or documents."""

from __future__ import annotations

import asyncio
import difflib
import json
import sys
from collections.abc import AsyncGenerator
from contextlib import ExitStack, aclosing
from dataclasses import dataclass
from typing import Any, Protocol

from onward.cli.output.formats import NOTHING_FOUND, leads_somewhere, render
from onward.cli.output.live import LiveText
from onward.cli.output.loading import loading
from onward.cli.output.stats import Stats
from onward.cli.output.terminal import Style, style_of, warn
from onward.cli.session import Output, Session
from onward.cli.source.base import Document, Source
from onward.cli.source.errors import RemoteError
from onward.cli.source.open import open_source
from onward.protocol.decode import check_request


@dataclass(frozen=True, slots=True)
class Asked:
    """A request and how it is to be shown. `max_items` bounds the chunks of a stream, None: all of them."""

    fields: dict[str, Any]
    session: Session
    stats: bool = False
    max_items: int | None = None


class View(Protocol):
    """Takes documents as they come; `finish` is called when they have ended."""

    def add(self, document: Document) -> None: ...

    def finish(self) -> None: ...


def ask(asked: Asked) -> None:
    """Send, show, and close all. Raises what `Source` raises, SetupError, BrokenPipeError, KeyboardInterrupt."""
    model = asked.fields.get("model")
    if asked.session.connection.base_url is None:
        # What is wrong with a request is told before a model is loaded for it; the model's own checks follow.
        check_request({**asked.fields, "model": "any"} if model is None else asked.fields)
    source = open_source(asked.session.connection, [model] if isinstance(model, str) else [])
    asyncio.run(_ask(source, asked))


async def _ask(source: Source, asked: Asked) -> None:
    fields, view = _sent(asked), _view(asked)
    unasked_usage = fields.get("stream_options") != asked.fields.get("stream_options")
    stats = Stats(streamed=bool(fields.get("stream")))
    try:
        with ExitStack() as waiting:
            waiting.enter_context(loading())(f"Waiting for {source.name}")
            async with aclosing(_documents(source, fields, asked.max_items)) as documents:
                async for document in documents:
                    waiting.close()
                    stats.add(document.value)
                    if not (unasked_usage and _is_usage(document.value)):
                        view.add(document)
        view.finish()
    except RemoteError as problem:
        await _suggest_model(source, problem, fields)
        raise
    finally:
        await source.aclose()
    if asked.stats:
        print(style_of(sys.stderr).dim(stats.words()), file=sys.stderr, flush=True)


def _is_usage(chunk: dict[str, Any]) -> bool:
    """Whether a chunk of a stream brings nothing but its usage."""
    return chunk.get("choices") == [] and bool(chunk.get("usage"))


async def _documents(source: Source, fields: dict[str, Any], limit: int | None) -> AsyncGenerator[Document, None]:
    if not fields.get("stream"):
        yield await source.whole(fields)
        return
    count = 0
    async with aclosing(source.chunks(fields)) as chunks:
        async for chunk in chunks:
            yield chunk
            count += 1
            if limit is not None and count >= limit:
                return


def is_live(output: Output) -> bool:
    """Whether text is shown instead of documents."""
    if output.transform is not None or output.raw_strings:
        return False
    return output.format == "text" or (output.format == "auto" and sys.stdout.isatty())


def _sent(asked: Asked) -> dict[str, Any]:
    """The request as it is sent: a person gets a stream where nothing speaks against it."""
    fields = dict(asked.fields)
    if fields.get("stream") is None and _can_stream(fields) and is_live(asked.session.output) and sys.stdout.isatty():
        fields["stream"] = True
    if asked.stats and fields.get("stream") is True and not _says_usage(fields):
        fields["stream_options"] = {**(fields.get("stream_options") or {}), "include_usage": True}
    return fields


def _says_usage(fields: dict[str, Any]) -> bool:
    """Whether the user said something of the usage of a stream, or something that only its check can judge."""
    said = fields.get("stream_options")
    return said is not None and (not isinstance(said, dict) or said.get("include_usage") is not None)


def _can_stream(fields: dict[str, Any]) -> bool:
    n, best_of = fields.get("n") or 1, fields.get("best_of") or 1
    return isinstance(n, int) and isinstance(best_of, int) and best_of <= n


def _view(asked: Asked) -> View:
    output = asked.session.output
    if is_live(output):
        return _Text(asked.fields)
    return _Documents(output)


class _Text:
    """Live text; off a terminal the text alone, as the old Python command line wrote it."""

    def __init__(self, fields: dict[str, Any]) -> None:
        terminal = sys.stdout.isatty()
        self._text = LiveText(_write, style_of(sys.stdout), fields, bare=not terminal)

    def add(self, document: Document) -> None:
        self._text.add(document.value)

    def finish(self) -> None:
        self._text.finish()


class _Documents:
    """Each document in the chosen format, flushed at once."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._style: Style = style_of(sys.stdout)
        self._written = 0
        self._missed = False

    def add(self, document: Document) -> None:
        output = self._output
        if not self._missed and not leads_somewhere(document.value, output.transform):
            self._missed = True
            warn(NOTHING_FOUND)
        if self._written and output.format == "yaml" and not output.raw_strings:
            _write("---\n")
        self._written += 1
        text = render(
            document.value,
            raw=document.raw,
            format=output.format,
            transform=output.transform,
            raw_strings=output.raw_strings,
            terminal=sys.stdout.isatty(),
            colour=self._style.on,
        )
        _write(text + "\n")

    def finish(self) -> None:
        pass


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


async def _suggest_model(source: Source, problem: RemoteError, fields: dict[str, Any]) -> None:
    """Put "Did you mean …?" on a model that the server does not know, when its list can be had."""
    request = getattr(source, "request", None)
    model = fields.get("model")
    if problem.status != 404 or request is None or not isinstance(model, str):
        return
    try:
        listed = json.loads(await asyncio.wait_for(request("GET", "/models"), timeout=5))
        known = [str(each["id"]) for each in listed["data"]]
    except Exception:  # an embellishment of an error must not become another one
        return
    near = difflib.get_close_matches(model, known, n=1)
    served = f"Served at {source.name} are: {', '.join(known[:8])}. "
    problem.suggestion = f"Did you mean {near[0]!r}? " if near else served
