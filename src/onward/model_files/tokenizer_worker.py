"""`python -m onward.model_files.tokenizer_worker`: encodes texts for the process that started it.

The first message is a tokenizer.json, each other one a text. Processor time and memory are limited; what exceeds them
ends the process, and the other side knows which text did.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from tokenizers import Tokenizer as Library

from onward.ipc.frames import BrokenFrame, FrameReader, write_frame
from onward.ipc.worker_end import (
    ignore_server_signals,
    limit_memory,
    limited_processor_time,
    open_nothing,
    prefer_as_oom_victim,
    take_connection,
)
from onward.model_files.tokenizer_process import LOAD_SECONDS, TextToEncode, Tokens, allowed_seconds

MAX_EXTRA_MEMORY = 2 << 30
"""Bytes of addresses, not counting those that the process has when it begins: 262,000 tokens take a quarter, and a text
a hundred per character."""
MAX_REASON_CHARACTERS = 200


class _Worker:
    """Answers the messages of one connection."""

    def __init__(self) -> None:
        self._library: Library | None = None

    def answer(self, message: bytes) -> Tokens:
        if self._library is None:
            with limited_processor_time(LOAD_SECONDS):
                return _reported(lambda: self._load(message))
        asked = msgspec.msgpack.decode(message, type=TextToEncode)
        with limited_processor_time(allowed_seconds(asked.text)):
            return _reported(lambda: self._encode(asked))

    def _load(self, tokenizer: bytes) -> Tokens:
        library = Library.from_buffer(tokenizer)
        library.no_truncation()
        library.no_padding()
        self._library = library
        return Tokens([])

    def _encode(self, asked: TextToEncode) -> Tokens:
        assert self._library is not None
        return Tokens(self._library.encode(asked.text, add_special_tokens=asked.add_special_tokens).ids)


def _reported(work: Callable[[], Tokens]) -> Tokens:
    """Return what some work returns, or why the library fails: it panics with a BaseException of its own."""
    try:
        return work()
    except BaseException as error:
        return Tokens([], str(error)[:MAX_REASON_CHARACTERS] or type(error).__name__)


def main() -> None:
    """Serve the connection that is standard input."""
    ignore_server_signals()
    prefer_as_oom_victim()
    down, up = take_connection()
    limit_memory(MAX_EXTRA_MEMORY)
    open_nothing()
    worker = _Worker()
    try:
        for message in FrameReader(down):
            write_frame(up, msgspec.msgpack.encode(worker.answer(message)))
    except (BrokenFrame, OSError):
        return  # the other side is gone


if __name__ == "__main__":
    main()
