"""Values that name contents: `@file`, `@-`, `-`; and standard input, which is read at most once."""

from __future__ import annotations

import base64
import os
import select
import stat
import sys
from pathlib import Path
from typing import Any

import click

from onward.cli.output.terminal import excerpt, warn

STDIN_NAMES = ("-", "/dev/stdin", "/dev/fd/0")
POLL_SECONDS = 0.01
"""How long to wait for data on a pipe that no value refers to."""


class Stdin:
    """Standard input. The first reader takes all of it; a second one is a usage error."""

    def __init__(self) -> None:
        self._reader: str | None = None

    def take(self, reader: str) -> str:
        """Return all of it as text. Raises UsageError if it was taken before, is closed or is not UTF-8."""
        return _as_text(self.take_bytes(reader), "standard input")

    def take_bytes(self, reader: str) -> bytes:
        """Return all of it; `reader` names the flag or argument in errors. Blocks until standard input ends.

        Raises UsageError if it was taken before or is closed.
        """
        if self._reader is not None:
            raise click.UsageError(f"Standard input can be read only once: both {self._reader} and {reader} use it.")
        if sys.stdin is None:
            raise click.UsageError(f"{reader} reads standard input, which is closed.")
        self._reader = reader
        content: bytes = sys.stdin.buffer.read()
        return content

    def offered(self, *, wait: bool) -> str | None:
        """Return redirected or piped contents that no value refers to, None if there are none.

        A pipe without data is skipped, or, with `wait`, read to its end.
        """
        if self._reader is not None or not _offers(wait=wait):
            return None
        return self.take("a piped body or prompt") or None


def _offers(*, wait: bool) -> bool:
    if sys.stdin is None or sys.stdin.closed or sys.stdin.isatty():
        return False
    try:
        number = sys.stdin.fileno()
        status = os.fstat(number)
    except (OSError, ValueError, AttributeError):
        return True  # not an operating-system file: set by a program that embeds this one
    if stat.S_ISREG(status.st_mode):
        return status.st_size > 0
    if not (stat.S_ISFIFO(status.st_mode) or stat.S_ISSOCK(status.st_mode)):
        return False
    return wait or bool(select.select([number], [], [], POLL_SECONDS)[0])


def embed(value: Any, stdin: Stdin, flag: str) -> Any:
    """Return `value` with every string that begins with `@`, also nested ones, replaced by the contents it names.

    `@p` and `@file://p` are text, `@data://p` base64, `@-` standard input; `\\@` is a literal @. A name without `.`
    and `/` that is not a file is left unchanged. Raises UsageError, also for a file that is not UTF-8: OpenAI's tool
    sends it as base64, which no text field can use.
    """
    if isinstance(value, list):
        return [embed(item, stdin, flag) for item in value]
    if isinstance(value, dict):
        return {key: embed(item, stdin, flag) for key, item in value.items()}
    if not isinstance(value, str):
        return value
    if value.startswith("\\@"):
        return value[1:]
    return _contents(value[1:], value, stdin, flag) if value.startswith("@") else value


def _contents(name: str, literal: str, stdin: Stdin, flag: str) -> str:
    if name in STDIN_NAMES:
        return stdin.take(flag)
    if name.startswith("file://"):
        return _file_text(name.removeprefix("file://"), flag)
    if name.startswith("data://"):
        return base64.b64encode(_read(name.removeprefix("data://"), flag)).decode()
    if not _looks_like_a_path(name) and not Path(name).is_file():
        shown = excerpt(literal)
        warn(f"{flag}: there is no file {shown[1:]}; using {shown} as text. Write \\{shown} to silence this note.")
        return literal
    return _file_text(name, flag)


def _file_text(name: str, flag: str) -> str:
    return _as_text(_read(name, flag), f"{flag}: {name}", f" Use @data://{name} to send its bytes as base64.")


def _looks_like_a_path(name: str) -> bool:
    return "." in name or "/" in name


def _read(name: str, flag: str) -> bytes:
    try:
        return Path(name).expanduser().read_bytes()
    except OSError as problem:
        raise click.UsageError(
            f"{flag}: {name} cannot be read: {problem.strerror}. Write \\@ for literal text that begins with @."
        ) from None


def _as_text(content: bytes, source: str, advice: str = "") -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as problem:
        message = f"{source} is not UTF-8 text ({problem.reason} at byte {problem.start})."
        raise click.UsageError(message + advice) from None
