"""What every command is built from: context settings, arguments, groups, commands that take the global flags."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

import click

from onward.cli.global_flags import connection_options, hoist, output_options
from onward.cli.hints import COMMAND_KEY, command_hint
from onward.cli.output.errors import report_errors
from onward.cli.session import session_of

CONTEXT: dict[str, Any] = {
    "help_option_names": ["-h", "--help"],
    "max_content_width": 100,
    "token_normalize_func": lambda token: token.replace("_", "-"),
}
"""Settings of every command. Flags may be written with underscores, as in OpenAI's old command line."""


def text_of(argument: str) -> str:
    """Return the text of a command line's argument. Where the locale has no UTF-8, Python keeps bytes as surrogates."""
    if argument.isascii():
        return argument
    try:
        return os.fsencode(argument).decode()
    except UnicodeError:
        return argument


def moment_of(text: str) -> datetime:
    """Return the moment of a date, or of a date and time that is of UTC unless it says otherwise, in UTC. Raises
    ValueError."""
    moment = datetime.fromisoformat(text)
    try:
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except OverflowError as problem:  # a year before 1 or after 9999
        raise ValueError(str(problem)) from None


class Argument(click.Argument):
    """click describes arguments from 8.5 on; this class does so in every supported version."""

    def __init__(self, name: str, description: str, **attributes: Any) -> None:
        super().__init__([name], **attributes)
        self.help = description

    def get_help_record(self, ctx: click.Context) -> tuple[str, str]:
        return " ".join(self.get_usage_pieces(ctx)), self.help or ""


class CommandGroup(click.Group):
    """A group of commands that passes global flags on to its commands."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, hoist(args))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            hint = command_hint(name, self.list_commands(ctx))
            raise click.UsageError(f"Unknown command {name!r}. {hint}".rstrip(), ctx)
        found = super().resolve_command(ctx, args)
        ctx.meta[COMMAND_KEY] = found[1]
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List commands with their first sentences, which click would cut off at the end of a line."""
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, each.get_short_help_str(200)) for name, each in found if each and not each.hidden]
            )


def session_command(
    name: str,
    callback: Callable[..., None],
    help: str,
    params: Iterable[click.Parameter] = (),
    *,
    has_results: bool = True,
    can_connect: bool = True,
    example: str = "",
) -> click.Command:
    """Return a command that takes the global flags; its callback receives `session` and its own parameters.

    `has_results` False: the command writes no results to standard output and takes no flags that format them;
    otherwise `example` is a GJSON path into a result. `can_connect` False: the command never uses a server and
    ignores the flags and variables that name one.
    """

    def run(**given: Any) -> None:
        own = {parameter.name: given[parameter.name] for parameter in params if parameter.name}
        session = session_of(given, None if can_connect else {})
        with report_errors(session):
            callback(session=session, **own)

    params = list(params)
    every = [
        *params,
        *(
            output_options(errors=can_connect, on_terminal="a table or a report", example=example)
            if has_results
            else []
        ),
        *(connection_options() if can_connect else []),
    ]
    return click.Command(name, callback=run, help=help, params=every, context_settings=CONTEXT)


def concurrency_option() -> click.Option:
    text = "Maximum number of concurrent requests.  [default 32]"
    return click.Option(["--concurrency"], type=click.IntRange(min=1), default=32, metavar="N", help=text)


def command_context(command: click.Command, path: str, **more: Any) -> click.Context:
    """Return a context whose --help has the same names as that of commands: click caches the first option that it
    makes."""
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
