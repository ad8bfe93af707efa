"""Sends one request and prints its result: whole or streamed, as live text or as documents."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import ExitStack, aclosing
from dataclasses import dataclass, field
from typing import Any

from onward.api.openai.decode import check_request
from onward.cli.interrupt import keep_line, run
from onward.cli.output.formats import NO_MATCH, rendered, transform_matches
from onward.cli.output.live import LiveText, Stats
from onward.cli.output.progress import loading
from onward.cli.output.terminal import style_of, visible, warn
from onward.cli.session import Output, Session
from onward.cli.source.base import Document, Source
from onward.cli.source.open import open_source


@dataclass(frozen=True, slots=True)
class Call:
    """A request and how to print its result.

    `settings`, texts by name, are for a model in this process; they override the environment and the settings file.
    `max_items` limits the chunks of a stream; None: no limit.
    """

    fields: dict[str, Any]
    session: Session
    settings: Mapping[str, str] = field(default_factory=dict)
    show_stats: bool = False
    max_items: int | None = None


def send(call: Call) -> None:
    """Send the request, print the result, close the source.

    Raises what `Source` raises, SetupError, BrokenPipeError, KeyboardInterrupt.
    """
    model = call.fields.get("model")
    if call.session.connection.base_url is None:
        # Reject an invalid request before loading a model for it; checks that need the model follow.
        check_request({**call.fields, "model": "any"} if model is None else call.fields)
    source = open_source(call.session.connection, [model] if isinstance(model, str) else [], settings=call.settings)
    run(_send(source, call))


async def _send(source: Source, call: Call) -> None:
    fields, output = _fields_to_send(call), call.session.output
    live = (
        LiveText(_write, style_of(sys.stdout), call.fields, bare=not sys.stdout.isatty()) if is_live(output) else None
    )
    printer = _DocumentPrinter(output)
    added_usage = fields.get("stream_options") != call.fields.get("stream_options")
    stats = Stats(streamed=bool(fields.get("stream")))
    try:
        with ExitStack() as progress:
            progress.enter_context(loading())(f"Waiting for {source.name}")
            async with aclosing(_documents(source, fields, call.max_items)) as documents:
                async for document in documents:
                    progress.close()
                    stats.add(document.value)
                    if added_usage and _is_usage(document.value):
                        continue
                    if live is None:
                        printer.add(document)
                    else:
                        live.add(document.value)
        if live is not None:
            live.finish()
    finally:
        await source.aclose()
    if call.show_stats:
        print(style_of(sys.stderr).dim(visible(stats.summary())), file=sys.stderr, flush=True)


def _is_usage(chunk: dict[str, Any]) -> bool:
    """Return whether a chunk of a stream carries only usage."""
    return chunk.get("choices") == [] and bool(chunk.get("usage"))


async def _documents(source: Source, fields: dict[str, Any], limit: int | None) -> AsyncGenerator[Document, None]:
    if not fields.get("stream"):
        yield await source.complete(fields)
        return
    count = 0
    async with aclosing(source.chunks(fields)) as chunks:
        async for chunk in chunks:
            yield chunk
            count += 1
            if limit is not None and count >= limit:
                return


def is_live(output: Output) -> bool:
    """Return whether text is printed rather than documents."""
    if output.transform is not None or output.raw_strings:
        return False
    return output.format == "text" or (output.format == "auto" and sys.stdout.isatty())


def _fields_to_send(call: Call) -> dict[str, Any]:
    """Return the fields to send: on a terminal the request streams unless it cannot."""
    fields = dict(call.fields)
    if fields.get("stream") is None and _can_stream(fields) and is_live(call.session.output) and sys.stdout.isatty():
        fields["stream"] = True
    if call.show_stats and fields.get("stream") is True and not _sets_usage(fields):
        fields["stream_options"] = {**(fields.get("stream_options") or {}), "include_usage": True}
    return fields


def _sets_usage(fields: dict[str, Any]) -> bool:
    """Return whether the request sets `include_usage`, or sets `stream_options` to something invalid."""
    options = fields.get("stream_options")
    return options is not None and (not isinstance(options, dict) or options.get("include_usage") is not None)


def _can_stream(fields: dict[str, Any]) -> bool:
    n, best_of = fields.get("n") or 1, fields.get("best_of") or 1
    return isinstance(n, int) and isinstance(best_of, int) and best_of <= n and fields.get("prompt_logprobs") is None


class _DocumentPrinter:
    """Prints each document in the chosen format, and flushes."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._written = 0
        self._warned = False

    def add(self, document: Document) -> None:
        output = self._output
        if not self._warned and not transform_matches(document.value, output.transform):
            self._warned = True
            warn(NO_MATCH)
        if self._written and output.format == "yaml" and not output.raw_strings:
            _write("---\n")
        self._written += 1
        _write(rendered(document.value, output, sys.stdout, document.raw) + "\n")


def _write(text: str) -> None:
    keep_line()
    sys.stdout.write(text)
    sys.stdout.flush()
