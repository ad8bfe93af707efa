"""`onward help [COMMAND]…`, the same as `onward [COMMAND]… --help`."""

from __future__ import annotations

import click

from onward.cli.argument import Argument
from onward.cli.command import CONTEXT


def show(names: tuple[str, ...]) -> None:
    context = click.get_current_context().find_root()
    for name in names:
        context = _inner(context, name)
    click.echo(context.get_help())


def _inner(context: click.Context, name: str) -> click.Context:
    """Return the context of command `name` in the group of `context`. Raises UsageError."""
    if not isinstance(context.command, click.Group):
        raise click.UsageError(f"`{context.command_path}` has no subcommands.", context)
    _, command, _ = context.command.resolve_command(context, [name])
    assert command is not None
    return click.Context(command, context, info_name=name, **command.context_settings)


def _complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the commands, or the subcommands of those already named."""
    inner = context.find_root()
    for name in context.params.get("names") or ():
        if not isinstance(inner.command, click.Group) or name not in inner.command.list_commands(inner):
            return []
        inner = _inner(inner, name)
    group = inner.command
    if not isinstance(group, click.Group):
        return []
    return [name for name in group.list_commands(inner) if name.startswith(incomplete)]


command = click.Command(
    "help",
    callback=show,
    help="Show help for a command, such as `onward help completions create`; without a command, for onward.",
    params=[Argument("names", "Command and subcommand.", nargs=-1, metavar="[COMMAND]...", shell_complete=_complete)],
    context_settings=CONTEXT,
)
