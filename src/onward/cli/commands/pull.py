"""`onward pull`, also `onward models pull`, and `models search` and `rm`: downloading models by one word, or by a name
on the hub."""

from __future__ import annotations

import sys
from functools import partial
from textwrap import fill
from typing import TYPE_CHECKING, Any

import click

from onward.cli.command import Argument, session_command
from onward.cli.completers import catalogue_names
from onward.cli.output.formats import emit, table
from onward.cli.output.progress import loading
from onward.cli.output.terminal import columns, text_width
from onward.cli.session import Session
from onward.machine import bytes_in_words
from onward.models.registry import OWNER, did_you_mean, owner, program

if TYPE_CHECKING:
    from onward.models.catalogue import Entry
    from onward.models.resolve import ResolvedModel

_TITLES = ["NAME", "SIZE", "CONTEXT", "LICENCE", "GOOD FOR"]
HELP = (
    "Download a model: a name that `onward models search` lists, or a name on the hub (org/name, org/name@revision, "
    "and for a GGUF file org/name:Q4_K_M). An interrupted download resumes where it stopped; checksums are verified."
)


def search_models(session: Session, words: tuple[str, ...]) -> None:
    from onward.models.catalogue import search

    found = [described(each) for each in search(" ".join(words))]
    emit(
        session.output,
        {"object": "list", "data": found},
        lambda: (
            f"{_listed(found)}\nFetch one: {program()} pull {found[0]['id']}"
            if found
            else "No model of the catalogue has all these words: `onward models search` lists all of them."
        ),
    )


def _listed(found: list[dict[str, Any]]) -> str:
    """Return a table. Where lines of it are wider than the terminal, what a model is good for has a line of its own."""
    rows = [[each["id"], each["size"], str(each["context"]), each["licence"], each["good_for"]] for each in found]
    whole, width = table(_TITLES, rows), columns(sys.stdout)
    if not sys.stdout.isatty() or all(text_width(line) <= width for line in whole.splitlines()[1:]):
        return whole
    titles, *lines = table(_TITLES[:-1], [row[:-1] for row in rows]).splitlines()
    uses = [fill(row[-1], width, initial_indent="    ", subsequent_indent="    ") for row in rows]
    return "\n".join([titles, *(f"{line}\n{use}" for line, use in zip(lines, uses, strict=True))])


def described(entry: Entry) -> dict[str, Any]:
    """Return what is shown of an entry that was not fetched."""
    return {
        "id": entry.name,
        "title": entry.title,
        "good_for": entry.good_for,
        "size": entry.size,
        "context": entry.context,
        "licence": entry.licence,
        "terms": entry.terms,
        "source": "package index" if entry.wheels else f"hub: {entry.hub}",
    }


def remove_model(session: Session, name: str) -> None:
    from onward.models.catalogue import catalogue
    from onward.models.pull import remove
    from onward.settings import resolve

    entry = catalogue().get(name)
    if entry is None or entry.wheels is None:
        where = f"models from the hub are in its own cache: `hf cache rm {entry.hub}`." if entry else ""
        hint = where or f"`onward models list` shows where a model is.{did_you_mean(name, list(catalogue()))}"
        raise click.UsageError(f"Only models that `onward pull` took from a package index are removed; {hint}")
    is_removed = remove(entry, resolve(limits_found_file=True).settings.cache_dir)
    emit(
        session.output,
        {"id": name, "object": "model", "deleted": is_removed},
        lambda: f"Removed {name}" if is_removed else f"{name} was not on this machine",
    )


search = session_command(
    "search",
    search_models,
    "List the models of the catalogue, those in which all words occur. `onward pull NAME` fetches one, and so does "
    "`onward serve --model NAME`.",
    [Argument("words", "Such as: code, base, small, Apache.", metavar="[WORDS]...", required=False, nargs=-1)],
    can_connect=False,
    example="data.0.id",
)

rm = session_command(
    "rm",
    remove_model,
    "Remove a model that `onward pull` took from a package index.",
    [Argument("name", "A name of the catalogue.", metavar="NAME", shell_complete=catalogue_names)],
    can_connect=False,
    example="deleted",
)


def pull_model(session: Session, name: str, accept_licence: bool) -> None:
    from onward.models.catalogue import catalogue
    from onward.models.resolve import needs_acceptance, resolve
    from onward.settings import resolve as resolve_settings

    cache_dir = resolve_settings(limits_found_file=True).settings.cache_dir
    known = catalogue().get(name)
    if known is not None and needs_acceptance(known, cache_dir):
        accept_licence = accept_licence or _asked(known.title, known.terms)
    with loading(partial(click.echo, err=True)) as progress:
        found = resolve(name, progress=progress, cache_dir=cache_dir, accepts_terms=accept_licence)
    entry = entry_of(found)
    emit(
        session.output,
        entry,
        lambda: (
            f"{found.id} is ready: {bytes_in_words(entry['bytes'])} in {found.path}\n"
            f"Try it: {program()} completions create --model {name} 'Once upon a time'"
        ),
    )


def entry_of(model: ResolvedModel) -> dict[str, Any]:
    """Return the entry of a model on this machine in the list."""
    owned_by = owner(model.id) if model.source == "hub" else OWNER
    common = {"id": model.id, "object": "model", "created": model.created, "owned_by": owned_by}
    adapter = {} if model.adapter is None else {"adapter": str(model.adapter)}
    return {**common, "source": model.source, "bytes": model.size_bytes, "path": str(model.path), **adapter}


def _asked(title: str, terms: str) -> bool:
    """Ask the user at the terminal; False without a terminal."""
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
