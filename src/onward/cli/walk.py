"""All commands, for the pages that list them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from onward.cli.command import CONTEXT


def command_context(command: click.Command, path: str, **more: Any) -> click.Context:
    """Return a context with the names of --help that commands have: click keeps the option that it makes first."""
    return click.Context(command, info_name=path, help_option_names=CONTEXT["help_option_names"], **more)


def subcommands(group: click.Group, path: str) -> Iterator[tuple[str, click.Command]]:
    """Yield the commands below a group that are not hidden, each after its path, such as `onward models show`."""
    context = command_context(group, path)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group) and not command.hidden:
            yield from subcommands(command, f"{path} {name}")
        elif not command.hidden:
            yield f"{path} {name}", command
