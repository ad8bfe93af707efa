"""`onward models list|show|retrieve|pull`: the available models and where their weights are."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import click

from onward.cli.argument import Argument
from onward.cli.command import CONTEXT, Group, session_command
from onward.cli.commands import models_cache
from onward.cli.completers import model_names
from onward.cli.output.emit import bytes_in_words, emit, table
from onward.cli.output.words import pluralize
from onward.cli.session import Session

if TYPE_CHECKING:
    from onward.models.resolve import ResolvedModel


def list_models(session: Session) -> None:
    if session.connection.base_url is not None:
        listed = _remote(session, "/models")
        rows = [[str(each.get("id")), str(each.get("owned_by", ""))] for each in listed.get("data", [])]
        emit(session.output, listed, lambda: table(["MODEL", "OWNER"], rows))
        return
    from onward.models.local import local_models

    found = [_entry(each) for each in local_models()]
    rows = [[each["id"], each["source"], bytes_in_words(each["bytes"]), each["path"]] for each in found]
    emit(
        session.output,
        {"object": "list", "data": found},
        lambda: f"{table(['MODEL', 'SOURCE', 'SIZE', 'PATH'], rows)}\n{_total(found)}",
    )


def _entry(model: ResolvedModel) -> dict[str, Any]:
    from onward.models.registry import OWNER, owner

    owned_by = owner(model.id) if model.source == "hub" else OWNER
    common = {"id": model.id, "object": "model", "created": model.created, "owned_by": owned_by}
    return {**common, "source": model.source, "bytes": model.size_bytes, "path": str(model.path)}


def _total(found: list[dict[str, Any]]) -> str:
    return f"{pluralize(len(found), 'model')}, {bytes_in_words(sum(each['bytes'] for each in found))} on disk"


def show_model(session: Session, name: str) -> None:
    if session.connection.base_url is not None:
        shown = _remote(session, f"/models/{name}")
    else:
        from onward.models.resolve import resolve

        found = resolve(name, allow_download=False)
        facts = found.format.facts(found.path)
        shown = {**_entry(found), "format": found.format.name, **facts, "problems": found.format.problems(found.path)}
    emit(session.output, shown, lambda: _described(shown))


def retrieve_model(session: Session, name: str | None, model: str | None) -> None:
    """Show one model. OpenAI's tool takes the name from --model or as an argument."""
    named = [each for each in (name, model) if each is not None]
    if len(named) != 1:
        raise click.UsageError("Name exactly one model, as an argument or with --model.")
    show_model(session, named[0])


def reject_delete(**_: Any) -> None:
    raise click.UsageError(
        "Onward does not delete models. `onward models list` shows the folder of each model; delete it by hand."
    )


def _described(shown: dict[str, Any]) -> str:
    pairs = dict(shown)
    if "bytes" in pairs:
        pairs["bytes"] = bytes_in_words(pairs["bytes"])
    if not pairs.get("problems", True):
        pairs["problems"] = "none"
    width = max(map(len, pairs))
    return "\n".join(f"{key:<{width}}  {value}" for key, value in pairs.items())


def pull_model(session: Session, name: str) -> None:
    from onward.models.resolve import resolve

    found = resolve(name, progress=lambda words: click.echo(words, err=True))
    entry = _entry(found)
    emit(
        session.output,
        entry,
        lambda: (
            f"{found.id} is ready: {bytes_in_words(entry['bytes'])} in {found.path}\n"
            f"Try it: onward completions create --model {name} 'Once upon a time'"
        ),
    )


def _remote(session: Session, path: str) -> dict[str, Any]:
    from onward.cli.source.http import HttpSource

    async def fetch() -> bytes:
        source = HttpSource(session.connection)
        try:
            return await source.request("GET", path)
        finally:
            await source.aclose()

    answer: dict[str, Any] = json.loads(asyncio.run(fetch()))
    return answer


def _named(words: str) -> list[click.Parameter]:
    return [Argument("name", words, metavar="NAME_OR_PATH", shell_complete=model_names)]


command = Group(
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
            _named(
                "A built-in name, a folder, or a hub id in the local cache; with a server, one of the ids it lists."
            ),
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
        "pull": session_command(
            "pull",
            pull_model,
            "Download a model from the hub (org/name or org/name@revision). An interrupted download resumes where it "
            "stopped; checksums are verified.",
            _named("org/name or org/name@revision; a built-in model or a folder is only checked."),
            can_connect=False,
            example="path",
        ),
        "cache": models_cache.command,
    },
    help="List, show and download models.",
    context_settings=CONTEXT,
)
