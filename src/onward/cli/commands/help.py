"""`onward help [COMMAND]…`, as `onward [COMMAND]… --help`."""

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
    """The context of a command in the group that `context` belongs to. Raises UsageError."""
    if not isinstance(context.command, click.Group):
        raise click.UsageError(f"`{context.command_path}` has no commands of its own.", context)
    _, command, _ = context.command.resolve_command(context, [name])
    assert command is not None
    return click.Context(command, context, info_name=name, **command.context_settings)


command = click.Command(
    "help",
    callback=show,
    help="Show the help of a command, such as `onward help completions create`; without one, of onward.",
    params=[Argument("names", "The words of the command.", nargs=-1, metavar="[COMMAND]...")],
    context_settings=CONTEXT,
)
