"""Requests for kept streams, and parsers of their events."""

from __future__ import annotations

import json
from typing import Any

from tests.server.fakes import Call, completion

RESUMABLE: dict[str, Any] = {"stream": True, "stream_options": {"resumable": True}}


def resumable(app: Any, *, headers: dict[str, str] | None = None, **fields: Any) -> Call:
    """A request whose stream is kept."""
    return completion(app, headers=headers, **{**RESUMABLE, **fields})


def resume(app: Any, id: str, after: int | None = None, **headers: str) -> Call:
    """A connection that resumes after the event of this number."""
    given = {} if after is None else {"last_event_id": str(after)}
    return Call(app, "GET", f"/v1/completions/{id}", b"", **given, **headers)


def numbered(body: bytes) -> list[tuple[int, Any]]:
    """Parse a stream's events strictly, comments left out: the id of each and its data."""
    found: list[tuple[int, Any]] = []
    for block in body.decode().split("\n\n")[:-1]:
        if block.startswith(":"):
            continue
        id, data = block.split("\n")
        assert id.startswith("id: ") and data.startswith("data: ")
        text = data.removeprefix("data: ")
        found.append((int(id.removeprefix("id: ")), text if text == "[DONE]" else json.loads(text)))
    return found


def id_of(call: Call) -> str:
    """Return the id of the completion that a stream belongs to, which has sent an event."""
    id: str = numbered(call.body)[0][1]["id"]
    return id
