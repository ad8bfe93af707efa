"""Says once per command that onward.toml of the current folder is used, since nobody named it."""

from __future__ import annotations

import click

from onward.settings import Resolved

_ANNOUNCED = "onward.cli.found_file"


def announce(resolved: Resolved) -> None:
    """Print one line on stderr, also where it is not a terminal."""
    line = resolved.announcement
    context = click.get_current_context(silent=True)
    if line is None or (context is not None and context.meta.get(_ANNOUNCED)):
        return
    if context is not None:
        context.meta[_ANNOUNCED] = True
    click.echo(f"onward: {line}.", err=True)
