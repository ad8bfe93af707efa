"""`onward database backup|restore|check`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from onward.cli.command import CONTEXT, Argument, CommandGroup
from onward.cli.database import database_flags, open_named
from onward.cli.output.terminal import pluralize


def backup(file: Path, **given: Any) -> None:
    from onward.service.backup import back_up

    with open_named(given) as store:
        click.echo(f"{back_up(store, file)} rows were written to {file}.", err=True)


def restore(file: Path, **given: Any) -> None:
    from onward.service import backup

    with open_named(given, creates=True) as store:
        click.echo(f"{backup.restore(store, file)} rows were restored.", err=True)


def check(**given: Any) -> None:
    from onward.service.backup import problems

    with open_named(given) as store:
        found = problems(store)
    for problem in found:
        click.echo(problem)
    click.echo(f"{pluralize(len(found), 'problem')} found.", err=True)
    click.get_current_context().exit(1 if found else 0)


def _file(words: str) -> Argument:
    return Argument("file", words, metavar="FILE", type=click.Path(path_type=Path))


command = CommandGroup(
    "database",
    commands={
        "backup": click.Command(
            "backup",
            callback=backup,
            params=[_file("The file to write."), *database_flags()],
            help="Write all rows of the database, of one moment, to a new file. Servers keep running meanwhile.",
            context_settings=CONTEXT,
        ),
        "restore": click.Command(
            "restore",
            callback=restore,
            params=[_file("A file of `onward database backup`."), *database_flags()],
            help="Restore a backup into a new database, of SQLite or PostgreSQL.",
            context_settings=CONTEXT,
        ),
        "check": click.Command(
            "check",
            callback=check,
            params=database_flags(),
            help="Look for what is wrong with the database. Exit code 1 if anything is.",
            context_settings=CONTEXT,
        ),
    },
    help="Back up, restore and check the database of a server.",
    context_settings=CONTEXT,
)
