"""A click argument with a description in the help and in the reference page."""

from __future__ import annotations

import os
from typing import Any

import click


def text_of(argument: str) -> str:
    """Return the text of a command line's argument. Where the locale has no UTF-8, Python keeps bytes as surrogates."""
    if argument.isascii():
        return argument
    try:
        return os.fsencode(argument).decode()
    except UnicodeError:
        return argument


class Argument(click.Argument):
    """click describes arguments from 8.5 on; this class does so in every supported version."""

    def __init__(self, name: str, description: str, **attributes: Any) -> None:
        super().__init__([name], **attributes)
        self.help = description

    def get_help_record(self, ctx: click.Context) -> tuple[str, str]:
        return " ".join(self.get_usage_pieces(ctx)), self.help or ""
