"""`onward models cache`: the converted models that later starts map, and their removal."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click

from onward import values
from onward.cli.command import session_command
from onward.cli.output.formats import bytes_in_words, emit, table
from onward.cli.output.terminal import pluralize
from onward.cli.session import Session
from onward.errors import ModelNameError
from onward.models.registry import did_you_mean

HELP = (
    "List the converted models: GGUF and safetensors files are converted at their first start, so that later ones only "
    "map them. What is removed is converted again when it is needed."
)


def show_cache(session: Session, remove: tuple[str, ...], limit: str | None, everything: bool) -> None:
    from onward.models import cache
    from onward.settings import resolve

    folder = resolve(limits_found_file=True).settings.cache_dir
    max_bytes = 0 if everything else None if limit is None else _size(limit)
    for each in () if max_bytes is None else cache.shrink(folder, max_bytes):
        click.echo(f"Removed {each.name} ({bytes_in_words(each.num_bytes)})", err=True)
    known = {each.name: each for each in cache.conversions(folder)}
    if missing := [name for name in remove if name not in known]:
        raise ModelNameError(
            f"The cache has no converted model {missing[0]!r}.{did_you_mean(missing[0], list(known))} `onward models "
            "cache` lists them."
        )
    for name in dict.fromkeys(remove):
        cache.remove(known[name])
        click.echo(f"Removed {name} ({bytes_in_words(known.pop(name).num_bytes)})", err=True)
    found = [
        {"name": each.name, "bytes": each.num_bytes, "used": int(each.used), "path": str(each.path)}
        for each in known.values()
    ]
    emit(session.output, {"object": "list", "data": found}, lambda: _described(found))


def _size(text: str) -> int:
    try:
        return values.size(text)
    except ValueError as error:
        raise click.UsageError(f"--limit: {error}") from None


def _described(found: list[dict[str, Any]]) -> str:
    rows = [
        [each["name"], bytes_in_words(each["bytes"]), f"{datetime.fromtimestamp(each['used']):%Y-%m-%d %H:%M}"]
        for each in found
    ]
    size = bytes_in_words(sum(each["bytes"] for each in found))
    total = f"{pluralize(len(found), 'converted model')}, {size} on disk"
    return f"{table(['CONVERTED', 'SIZE', 'LAST USED'], rows)}\n{total}" if found else total


command = session_command(
    "cache",
    show_cache,
    HELP,
    [
        click.Option(["--remove"], metavar="NAME", multiple=True, help="Remove this one. Repeatable."),
        click.Option(
            ["--limit"],
            metavar="SIZE",
            help="Remove those used longest ago until the rest is not larger than this.",
        ),
        click.Option(["--all", "everything"], is_flag=True, help="Remove all."),
    ],
    can_connect=False,
    example="data.0.name",
)
