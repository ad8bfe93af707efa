"""`onward requests list|show|replay`: reads a server's log of requests."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from onward.cli.command import CONTEXT, Argument, CommandGroup, session_command
from onward.cli.database import log_flags, read_log
from onward.cli.output.formats import emit, table, utc_time
from onward.cli.output.terminal import visible
from onward.cli.session import Session
from onward.errors import SetupError

if TYPE_CHECKING:
    from onward.cli.source.base import Document
    from onward.service.request_log import LoggedRequest

SHOWN_CHARACTERS = 60


def list_requests(session: Session, key: str | None, limit: int, **given: Any) -> None:
    """Show the newest requests."""
    found = [request for request in read_log(given) if key is None or request.key_name == key]
    newest = list(islice(sorted(found, key=lambda request: -request.at_ms), limit))
    emit(session.output, {"object": "list", "data": [asdict(each) for each in newest]}, lambda: _table(newest))


def _table(found: list[LoggedRequest]) -> str:
    columns = ["id", "time", "key", "model", "status", "prompt"]
    rows = [
        [each.id, utc_time(each.at_ms), each.key_name or "-", each.model, str(each.status), _prompt(each)]
        for each in found
    ]
    return table(columns, rows)


def _prompt(request: LoggedRequest) -> str:
    prompt = request.body.get("prompt", "") if isinstance(request.body, dict) else request.body
    text = " ".join(str(prompt).split())
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 1] + "…"


def _find(id: str, given: dict[str, Any]) -> LoggedRequest:
    for request in read_log(given):
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
    return visible("\n".join(lines))


def replay(session: Session, id: str, **given: Any) -> None:
    """Compute a request again, with the seed that was drawn; report whether the answer is the same, exit code 1 if
    not."""
    from onward.cli.source.open import open_source
    from onward.cli.verify.files import logged
    from onward.cli.verify.run import NotComputed, recompute
    from onward.cli.verify.saved import first_difference

    saved = logged(_find(id, given))
    if saved.problem:
        raise SetupError(f"{id} cannot be replayed: {saved.problem}.")
    source = open_source(session.connection, [saved.model])

    async def computed() -> Document:
        async with aclosing(source):
            return await recompute(source, saved, saved.model)

    try:
        completion = asyncio.run(computed()).value
    except NotComputed as problem:
        raise SetupError(f"{id} cannot be replayed: {problem}.") from None
    difference = first_difference(saved, completion)
    promised = completion.get("system_fingerprint") == saved.fingerprint
    result = {"id": id, "same": difference is None, "same_fingerprint": promised, "completion": completion}
    words = "The answer is the same." if difference is None else f"The answer differs. {difference.in_words()}."
    if difference is not None and not promised:
        words += " So does the fingerprint: other weights or another version answered."
    emit(session.output, result, lambda: words)
    click.get_current_context().exit(0 if difference is None else 1)


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
                click.Option(
                    ["--limit"], type=click.IntRange(1), default=20, metavar="N", help="How many.  [default 20]"
                ),
                *log_flags(),
            ],
            can_connect=False,
        ),
        "show": session_command(
            "show", show, "Show a request and its answer.", [_id(), *log_flags()], can_connect=False
        ),
        "replay": session_command(
            "replay",
            replay,
            "Compute a request again, with the seed that was drawn, and compare the answers.",
            [_id(), *log_flags()],
        ),
    },
    help="What a server logged with --log-requests: list, show and replay requests.",
    context_settings=CONTEXT,
)
