"""`onward models search` and `onward models rm`: the models that a word is enough for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from onward.cli.argument import Argument
from onward.cli.command import session_command
from onward.cli.completers import catalogue_names
from onward.cli.output.emit import emit, table
from onward.cli.session import Session

if TYPE_CHECKING:
    from onward.models.catalogue import Entry

_TITLES = ["NAME", "SIZE", "CONTEXT", "LICENCE", "GOOD FOR"]


def search_models(session: Session, words: tuple[str, ...]) -> None:
    from onward.models.catalogue import search

    found = [described(each) for each in search(" ".join(words))]
    rows = [[each["id"], each["size"], str(each["context"]), each["licence"], each["good_for"]] for each in found]
    emit(
        session.output,
        {"object": "list", "data": found},
        lambda: (
            f"{table(_TITLES, rows)}\nFetch one: onward pull {found[0]['id']}"
            if found
            else "No model of the catalogue has all these words: `onward models search` lists all of them."
        ),
    )


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
    from onward.models.registry import did_you_mean
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
    "Remove a model that `onward pull` took from a package index. Its conversion stays until `onward models cache` "
    "removes it.",
    [Argument("name", "A name of the catalogue.", metavar="NAME", shell_complete=catalogue_names)],
    can_connect=False,
    example="deleted",
)
