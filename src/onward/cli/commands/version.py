"""`onward version`, the same as `onward --version`, `-v` and `-V`."""

from __future__ import annotations

import click

from onward.cli.command import CONTEXT


def show() -> None:
    import onward

    click.echo(f"onward {onward.__version__}")


command = click.Command(
    "version", callback=show, help="Show the version. Same as --version, -v and -V.", context_settings=CONTEXT
)
