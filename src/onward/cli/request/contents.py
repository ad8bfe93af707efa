"""Values that stand for contents: `@file`, `@-`, `-`; and standard input, which is read once at most."""

from __future__ import annotations

import base64
import os
import select
import stat
import sys
from pathlib import Path
from typing import Any

import click

from onward.cli.output.terminal import warn
from onward.cli.output.words import excerpt

STDIN_NAMES = ("-", "/dev/stdin", "/dev/fd/0")
POLL_SECONDS = 0.01
"""How long a pipe is waited for when nothing says that it will bring anything (spec/cli A1, stdin)."""


class Stdin:
    """Standard input. Its whole contents go to the first who asks; a second one is a usage error."""

    def __init__(self) -> None:
        self._taker: str | None = None

    def take(self, taker: str) -> str:
        """All of it, as text. Raises UsageError: taken before, closed, or no UTF-8."""
        return _as_text(self.take_bytes(taker), "standard input")

    def take_bytes(self, taker: str) -> bytes:
        if self._taker is not None:
            raise click.UsageError(f"Standard input can be read once: both {self._taker} and {taker} ask for it.")
        if sys.stdin is None:
            raise click.UsageError(f"{taker} asks for standard input, which is closed.")
        self._taker = taker
        content: bytes = sys.stdin.buffer.read()
        return content

    def offered(self, *, wait: bool) -> str | None:
        """What was redirected or piped in unasked, None when there is nothing.

        A pipe is read when it has something to say at once, or, with `wait`, whenever it says it.
        """
        if self._taker is not None or not _offers(wait=wait):
            return None
        return self.take("a body or prompt piped in") or None


def _offers(*, wait: bool) -> bool:
    if sys.stdin is None or sys.stdin.closed or sys.stdin.isatty():
        return False
    try:
        number = sys.stdin.fileno()
        status = os.fstat(number)
    except (OSError, ValueError, AttributeError):
        return True  # not a file of the system: put there by a program that embeds this one
    if stat.S_ISREG(status.st_mode):
        return status.st_size > 0
    if not (stat.S_ISFIFO(status.st_mode) or stat.S_ISSOCK(status.st_mode)):
        return False
    return wait or bool(select.select([number], [], [], POLL_SECONDS)[0])


def embed(value: Any, stdin: Stdin, flag: str) -> Any:
    """`value` with every string that begins with `@` replaced by the contents it names; nested ones too.

    `@p` and `@file://p` are text, `@data://p` base64, `@-` standard input; `\\@` stands for a literal @. A name that
    leads nowhere stays as it is when it has no `.` and no `/`. Raises UsageError; for a file that is no UTF-8 too,
    where OpenAI's tool sends base64 unasked: no text field has a use for it.
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
        warn(f"{flag}: there is no file {shown[1:]}, so {shown} itself is the text. Write \\{shown} to say so.")
        return literal
    return _file_text(name, flag)


def _file_text(name: str, flag: str) -> str:
    return _as_text(_read(name, flag), f"{flag}: {name}", f" @data://{name} stands for its bytes in base64.")


def _looks_like_a_path(name: str) -> bool:
    return "." in name or "/" in name


def _read(name: str, flag: str) -> bytes:
    try:
        return Path(name).expanduser().read_bytes()
    except OSError as problem:
        raise click.UsageError(
            f"{flag}: {name} cannot be read: {problem.strerror}. Write \\@ for a text that begins with @."
        ) from None


def _as_text(content: bytes, source: str, advice: str = "") -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as problem:
        words = f"{source} is not UTF-8 text ({problem.reason} at byte {problem.start})."
        raise click.UsageError(words + advice) from None
