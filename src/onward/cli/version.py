"""`onward version`, as `onward --version`."""

from __future__ import annotations

import click

from onward.cli.session import CONTEXT


def show() -> None:
    import onward

    click.echo(f"onward {onward.__version__}")


command = click.Command("version", callback=show, help="Show the version.", context_settings=CONTEXT)
