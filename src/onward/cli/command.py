"""What every command is built from: context settings, groups, and commands that take the global flags."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import click

from onward.cli.global_flags import connection_options, hoist, output_options
from onward.cli.output.errors import report_errors
from onward.cli.session import session_of

CONTEXT: dict[str, Any] = {
    "help_option_names": ["-h", "--help"],
    "max_content_width": 100,
    "token_normalize_func": lambda token: token.replace("_", "-"),
}
"""Of every command: names of flags may be written with underscores, as the old command line did."""


class Group(click.Group):
    """A group of commands that passes global flags on to them."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, hoist(args))


def session_command(
    name: str,
    callback: Callable[..., None],
    help: str,
    params: Iterable[click.Parameter] = (),
    *,
    shows: bool = True,
    connects: bool = True,
    example: str = "",
) -> click.Command:
    """A command that takes the global flags. Its callback gets `session` and its own parameters.

    `shows` False: it writes no results to standard output, and the flags that format them are left out; else
    `example` is a path into them.
    `connects` False: it asks nobody, and flags and variables that say whom to ask mean nothing to it.
    """

    def run(**given: Any) -> None:
        own = {parameter.name: given[parameter.name] for parameter in params if parameter.name}
        session = session_of(given, None if connects else {})
        with report_errors(session):
            callback(session=session, **own)

    params = list(params)
    every = [
        *params,
        *(output_options(errors=connects, people="a table or words", example=example) if shows else []),
        *(connection_options() if connects else []),
    ]
    return click.Command(name, callback=run, help=help, params=every, context_settings=CONTEXT)
