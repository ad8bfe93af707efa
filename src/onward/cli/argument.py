"""A click argument with a description in the help and in the reference page."""

from __future__ import annotations

from typing import Any

import click


class Argument(click.Argument):
    """click describes arguments from 8.5 on; this class does so in every supported version."""

    def __init__(self, name: str, description: str, **attributes: Any) -> None:
        super().__init__([name], **attributes)
        self.help = description

    def get_help_record(self, ctx: click.Context) -> tuple[str, str]:
        return " ".join(self.get_usage_pieces(ctx)), self.help or ""
