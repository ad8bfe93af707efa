"""An argument whose meaning stands in the help and in the reference."""

from __future__ import annotations

from typing import Any

import click


class Argument(click.Argument):
    """click has help for arguments from 8.5 on; this has it in every version that works."""

    def __init__(self, name: str, words: str, **attributes: Any) -> None:
        super().__init__([name], **attributes)
        self.help = words

    def get_help_record(self, ctx: click.Context) -> tuple[str, str]:
        return " ".join(self.get_usage_pieces(ctx)), self.help or ""
