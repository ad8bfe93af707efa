"""`onward pull`, also `onward models pull`: downloads a model by one word or a hub's name."""

from __future__ import annotations

import sys

import click

from onward.cli.argument import Argument
from onward.cli.command import session_command
from onward.cli.completers import catalogue_names
from onward.cli.output.emit import bytes_in_words, emit
from onward.cli.session import Session

HELP = (
    "Download a model: a name that `onward models search` lists, or a name on the hub (org/name, org/name@revision, "
    "and for a GGUF file org/name:Q4_K_M). An interrupted download resumes where it stopped; checksums are verified."
)


def pull_model(session: Session, name: str, accept_licence: bool) -> None:
    from onward.cli.commands.models import entry_of
    from onward.models.catalogue import catalogue
    from onward.models.pull import pulled_path
    from onward.models.resolve import resolve
    from onward.settings import resolve as resolve_settings

    cache_dir = resolve_settings(limits_found_file=True).settings.cache_dir
    known = catalogue().get(name)
    if known is not None and known.needs_acceptance and pulled_path(known, cache_dir) is None:
        accept_licence = accept_licence or _asked(known.title, known.terms)
    found = resolve(
        name,
        progress=lambda words: click.echo(words, err=True),
        cache_dir=cache_dir,
        accepts_terms=accept_licence,
    )
    entry = entry_of(found)
    emit(
        session.output,
        entry,
        lambda: (
            f"{found.id} is ready: {bytes_in_words(entry['bytes'])} in {found.path}\n"
            f"Try it: onward completions create --model {name} 'Once upon a time'"
        ),
    )


def _asked(title: str, terms: str) -> bool:
    """Ask whoever sits at the terminal; False where nobody does."""
    if not sys.stdin.isatty() or not sys.stderr.isatty():
        return False
    return click.confirm(f"{title} comes under its own terms: {terms}\nDo you accept them?", err=True)


def command(name: str) -> click.Command:
    """Return the command under a name."""
    return session_command(
        name,
        pull_model,
        HELP,
        [
            Argument(
                "name",
                "A name of the catalogue or of the hub; a built-in model or a path is only checked.",
                metavar="NAME_OR_PATH",
                shell_complete=catalogue_names,
            ),
            click.Option(
                ["--accept-licence", "--accept-license"],
                is_flag=True,
                help="Accept the terms of models that have terms of their own, such as Gemma.",
            ),
        ],
        can_connect=False,
        example="path",
    )
