"""`onward api completions.create`: the spelling of OpenAI's old Python command line."""

from __future__ import annotations

from typing import Any

from onward.cli.command import CONTEXT, CommandGroup
from onward.cli.commands.completions import RequestCommand, create

HELP = """The old spelling of `onward completions create`; prints only the text.

Takes the same flags, including -m -p -M -t -P -n and names with underscores.
"""


def create_text(**params: Any) -> None:
    """Run `create`; `--format` defaults to text."""
    if params["format"] == "auto":
        params["format"] = "text"
    create(**params)


command = CommandGroup(
    "api",
    commands={
        "completions.create": RequestCommand(
            "completions.create", callback=create_text, help=HELP, context_settings=CONTEXT
        )
    },
    help="OpenAI's old spelling.",
    context_settings=CONTEXT,
)
