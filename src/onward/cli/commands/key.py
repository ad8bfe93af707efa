"""`onward key new|digest`: keys for the file of --api-key-file."""

from __future__ import annotations

import hashlib
import secrets
import sys

import click

from onward import values
from onward.cli.command import CONTEXT, Argument, Group

NUM_RANDOM_BYTES = 24


def new(name: str | None) -> None:
    """Print a new key, and on standard error the line that accepts it."""
    key = "sk-" + secrets.token_urlsafe(NUM_RANDOM_BYTES)
    click.echo(key)
    click.echo(f"# The line of --api-key-file that accepts this key:\n{_line(key, name)}", err=True)


def digest(name: str | None) -> None:
    """Print the line that accepts the key on standard input. A terminal does not show what is typed."""
    text = click.prompt("Key", hide_input=True, err=True) if sys.stdin.isatty() else sys.stdin.read()
    try:
        key = values.api_key(text)
    except ValueError as problem:
        raise click.UsageError(f"The key {problem}.") from None
    click.echo(_line(key, name))


def _line(key: str, name: str | None) -> str:
    entry = f"sha256:{hashlib.sha256(key.encode()).hexdigest()}"
    return entry if name is None else f"{name} = {entry}"


def _check_name(_: click.Context, __: click.Parameter, name: str | None) -> str | None:
    try:
        return None if name is None else values.key_name(name)
    except ValueError as problem:
        raise click.UsageError(f"The name {problem}.") from None


def _named() -> list[click.Parameter]:
    words = "Who uses the key: the access log and the metrics show it."
    return [Argument("name", words, required=False, metavar="[NAME]", callback=_check_name)]


command = Group(
    "key",
    commands={
        "new": click.Command(
            "new",
            callback=new,
            params=_named(),
            help="Print a new random key, and on standard error the line that makes a server accept it: "
            "`onward key new alice 2>> keys.txt`.",
            context_settings=CONTEXT,
        ),
        "digest": click.Command(
            "digest",
            callback=digest,
            params=_named(),
            help="Print the line of a key file that accepts the key on standard input, without the key itself.",
            context_settings=CONTEXT,
        ),
    },
    help="Make API keys for --api-key-file.",
    context_settings=CONTEXT,
)
