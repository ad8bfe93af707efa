"""`onward requests list|show|replay`: what a server's log of requests has."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from onward.cli.command import CONTEXT, Argument, CommandGroup, session_command
from onward.cli.database import NAMES, database_flags, open_named
from onward.cli.output.formats import emit, table
from onward.cli.session import Session
from onward.cli.settings_command import setting, setting_flag
from onward.errors import SetupError
from onward.settings import resolve

if TYPE_CHECKING:
    from onward.cli.source.base import Source
    from onward.service.request_log import LoggedRequest

SHOWN_CHARACTERS = 60


def _requests(given: dict[str, Any]) -> Iterator[LoggedRequest]:
    """Yield the requests of the log that flags, environment and files name. Raises SetupError."""
    from onward.compose.team import logged_folder
    from onward.service.request_log import read_folder

    flags = {name: given[name] for name in (*NAMES, "log_requests") if given[name] is not None}
    settings = resolve(flags, config=given["config"]).settings
    if settings.log_requests is None:
        raise SetupError("There is no log of requests: name it with --log-requests FOLDER|database, as for the server.")
    if (folder := logged_folder(settings)) is not None:
        yield from read_folder(folder)
        return
    from onward.service.request_table import read_requests

    with open_named(given) as store, store.read() as connection:
        yield from read_requests(connection)


def list_requests(session: Session, key: str | None, limit: int, **given: Any) -> None:
    """Show the newest requests."""
    found = [request for request in _requests(given) if key is None or request.key_name == key]
    newest = list(islice(sorted(found, key=lambda request: -request.at_ms), limit))
    emit(session.output, {"object": "list", "data": [asdict(each) for each in newest]}, lambda: _table(newest))


def _table(found: list[LoggedRequest]) -> str:
    columns = ["id", "time", "key", "model", "status", "prompt"]
    return table(
        columns,
        [[each.id, _time(each), each.key_name or "-", each.model, str(each.status), _prompt(each)] for each in found],
    )


def _time(request: LoggedRequest) -> str:
    return datetime.fromtimestamp(request.at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _prompt(request: LoggedRequest) -> str:
    prompt = request.body.get("prompt", "") if isinstance(request.body, dict) else request.body
    text = " ".join(str(prompt).split())
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 1] + "…"


def _find(id: str, given: dict[str, Any]) -> LoggedRequest:
    for request in _requests(given):
        if request.id == id:
            return request
    raise SetupError(f"There is no request {id} in the log. `onward requests list` shows the newest.")


def show(session: Session, id: str, **given: Any) -> None:
    """Show a request and its answer."""
    emit(session.output, asdict(_find(id, given)), lambda: _shown(_find(id, given)))


def _shown(request: LoggedRequest) -> str:
    lines = [f"{name}: {value}" for name, value in asdict(request).items() if name != "choices"]
    for choice in request.choices:
        lines += [f"choice {choice['index']} ({choice['finish_reason']}):", choice["text"]]
    return "\n".join(lines)


def replay(session: Session, id: str, **given: Any) -> None:
    """Send a request again, with the seed that was drawn, and say whether the text is the same; exit code 1 if not."""
    from onward.cli.source.open import open_source

    request = _find(id, given)
    if not isinstance(request.body, dict) or not request.route.endswith("/completions"):
        raise SetupError(f"{id} was sent to {request.route}: only requests of OpenAI's API can be replayed.")
    left_out = ("stream", "stream_options")
    fields = {name: value for name, value in request.body.items() if name not in left_out}
    fields["seed"] = fields.get("seed") if fields.get("seed") is not None else request.seed
    source = open_source(session.connection, [request.model])
    document = asyncio.run(_complete(source, fields))
    texts = [choice["text"] for choice in sorted(document["choices"], key=lambda choice: choice["index"])]
    is_same = texts == [choice["text"] for choice in request.choices]
    promised = document.get("system_fingerprint") == request.fingerprint
    result = {"id": id, "same": is_same, "same_fingerprint": promised, "completion": document}
    words = "The text is the same." if is_same else "The text differs."
    if not is_same and not promised:
        words += " So does the fingerprint: other weights or another version answered."
    emit(session.output, result, lambda: words)
    click.get_current_context().exit(0 if is_same else 1)


async def _complete(source: Source, fields: dict[str, Any]) -> dict[str, Any]:
    try:
        return (await source.complete(fields)).value
    finally:
        await source.aclose()


def _where() -> list[click.Parameter]:
    return [setting_flag(setting("log_requests")), *database_flags()]


def _id() -> Argument:
    return Argument("id", "The request's id: its header X-Request-ID.", metavar="ID")


command = CommandGroup(
    "requests",
    commands={
        "list": session_command(
            "list",
            list_requests,
            "Show the newest requests of the log.",
            [
                click.Option(["--key"], metavar="NAME", help="Only requests of this key."),
                click.Option(["--limit"], type=click.IntRange(1), default=20, help="How many.  [default: 20]"),
                *_where(),
            ],
            can_connect=False,
        ),
        "show": session_command("show", show, "Show a request and its answer.", [_id(), *_where()], can_connect=False),
        "replay": session_command(
            "replay",
            replay,
            "Send a request again with the seed that was drawn, and compare the texts.",
            [_id(), *_where()],
        ),
    },
    help="What a server logged with --log-requests: list, show and replay requests.",
    context_settings=CONTEXT,
)
