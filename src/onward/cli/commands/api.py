"""`onward api completions.create`: the old Python command line's spelling (spec/cli A2)."""

from __future__ import annotations

from typing import Any

from onward.cli.command import CONTEXT, Group
from onward.cli.commands.completions import RequestCommand, create

HELP = """The old spelling of `onward completions create`: writes the text alone.

Takes the same flags, -m -p -M -t -P -n and names with underscores too.
"""


def create_text(**params: Any) -> None:
    """As `create`, where `--format` was not given as text."""
    if params["format"] == "auto":
        params["format"] = "text"
    create(**params)


command = Group(
    "api",
    commands={
        "completions.create": RequestCommand(
            "completions.create", callback=create_text, help=HELP, context_settings=CONTEXT
        )
    },
    help="The old command line's spelling.",
    context_settings=CONTEXT,
)
