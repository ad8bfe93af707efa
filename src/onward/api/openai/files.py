"""OpenAI's Files API: objects, the checks of an upload, and how its routes are described (behaviour §18)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Literal
from urllib.parse import quote

import msgspec

from onward.api import refusals
from onward.api.body import DEFAULT_LIMITS
from onward.api.openai.response import WireObject
from onward.api.operations import body, get, id_in_path
from onward.api.routes import JsonObject
from onward.errors import InvalidRequest, NotFound, OnwardError

PURPOSE = "batch"
"""What files are uploaded for here."""
OUTPUT_PURPOSE = "batch_output"
MAX_FILE_BYTES = 200 * 1024 * 1024
DEFAULT_SECONDS = 2_592_000
MIN_SECONDS, MAX_SECONDS = 3600, 2_592_000
"""How long a file of the purpose batch lives, by default and by `expires_after`."""
MAX_LISTED_FILES = 10_000
ANCHOR, SECONDS = "expires_after[anchor]", "expires_after[seconds]"
WRONG_FORMAT = "Invalid file format for Batch API. Must be .jsonl"
BOM = b"\xef\xbb\xbf"


class File(WireObject, kw_only=True):
    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    filename: str
    purpose: str
    status: Literal["processed"] = "processed"
    expires_at: int | None = None
    status_details: None = None


class FileList(WireObject, kw_only=True):
    object: Literal["list"] = "list"
    data: list[File]
    first_id: str | None
    last_id: str | None
    has_more: bool


class FileDeleted(WireObject, kw_only=True):
    id: str
    object: Literal["file"] = "file"
    deleted: bool = True


def no_such_file(file_id: str) -> NotFound:
    return NotFound(f"No such File object: {file_id[:128]}", param="id")


class Upload:
    """The checks of a file while it arrives. `strict`: its name must end in `.jsonl`; SDKs send others for bytes.
    `max_line` is the largest first line that is looked at, in bytes."""

    def __init__(self, *, strict: bool, max_line: int) -> None:
        self._strict = strict
        self._max_line = max_line
        self._head: bytearray | None = bytearray()
        """What has arrived, until the first line that is not blank is known to be good."""

    def feed(self, data: bytes | bytearray) -> None:
        """Check the next bytes. Raises InvalidRequest for a first line that is not a JSON object."""
        if self._head is None:
            return
        self._head += data
        lines = self._head.removeprefix(BOM).lstrip()
        line, newline, _ = lines.partition(b"\n")
        if newline:
            self._check(bytes(line))
        elif len(lines) > self._max_line:
            raise InvalidRequest(WRONG_FORMAT)
        elif not lines:
            self._head = bytearray(BOM if self._head == BOM else b"")

    def finish(self, filename: str | None, fields: Mapping[str, str]) -> tuple[str, int]:
        """Return the purpose of a file that has arrived, and the seconds for which it lives. Raises InvalidRequest."""
        if "purpose" not in fields:
            raise refusals.missing("purpose")
        if fields["purpose"] != PURPOSE:
            raise refusals.no_such_value("purpose", fields["purpose"], PURPOSE)
        if filename is None:
            raise refusals.missing("file")
        seconds = _seconds(fields)
        if self._strict and not filename.endswith(".jsonl"):
            raise InvalidRequest(WRONG_FORMAT)
        if self._head is not None:
            self._check(bytes(self._head.removeprefix(BOM).strip()))
        return PURPOSE, seconds

    def _check(self, line: bytes) -> None:
        try:
            DEFAULT_LIMITS.check(line)
            value = msgspec.json.decode(line)
        except (ValueError, RecursionError, OnwardError):
            value = None
        if not isinstance(value, dict):
            raise InvalidRequest(WRONG_FORMAT)
        self._head = None


def _seconds(fields: Mapping[str, str]) -> int:
    """Return how long a file lives. Raises InvalidRequest."""
    if ANCHOR not in fields and SECONDS not in fields:
        return DEFAULT_SECONDS
    for name in (ANCHOR, SECONDS):
        if name not in fields:
            raise refusals.missing(name)
    text = fields[SECONDS].strip()
    seconds: object = int(text) if text.isascii() and text.isdecimal() and len(text) < 16 else text
    return expires_after({"anchor": fields[ANCHOR], "seconds": seconds}, (ANCHOR, SECONDS))


def expires_after(given: Mapping[str, object], names: tuple[str, str], minimum: int = MIN_SECONDS) -> int:
    """Return the seconds of an `expires_after`. `names` are those of its anchor and seconds. Raises InvalidRequest."""
    anchor, seconds = given.get("anchor"), given.get("seconds")
    if anchor is None or seconds is None:
        raise refusals.missing(names[anchor is not None])
    if anchor != "created_at":
        raise refusals.no_such_value(names[0], str(anchor), "created_at")
    if not isinstance(seconds, int) or isinstance(seconds, bool):
        raise refusals.wrong_type(names[1], "an integer", seconds)
    if seconds < minimum:
        raise refusals.below_minimum(names[1], "integer", minimum, seconds)
    if seconds > MAX_SECONDS:
        raise refusals.above_maximum(names[1], "integer", MAX_SECONDS, seconds)
    return seconds


def list_page(kind: Any, found: list[Any], limit: int) -> WireObject:
    """Return a FileList or BatchList of at most `limit` objects; `found` has one more if there are more."""
    data = found[:limit]
    ends = (data[0].id, data[-1].id) if data else (None, None)
    page: WireObject = kind(data=data, first_id=ends[0], last_id=ends[1], has_more=len(found) > limit)
    return page


def list_limit(text: str | None, default: int, maximum: int) -> int:
    """Return the `limit` of a list. Raises InvalidRequest."""
    if text is None:
        return default
    if not (text.isascii() and text.removeprefix("-").isdecimal() and len(text) < 16):
        raise refusals.wrong_type("limit", "an integer", text)
    if int(text) < 1:
        raise refusals.below_minimum("limit", "integer", 1, int(text))
    if int(text) > maximum:
        raise refusals.above_maximum("limit", "integer", maximum, int(text))
    return int(text)


def newest_first(order: str | None) -> bool:
    """Return whether a list has the newest first, by its `order`. Raises InvalidRequest."""
    if order is not None and order not in ("asc", "desc"):
        raise refusals.no_such_value("order", order, "asc', 'desc")
    return order != "asc"


def attachment(filename: str) -> bytes:
    """Return the Content-Disposition of a file (RFC 6266)."""
    plain = "".join(each if each.isascii() and each.isprintable() and each not in '"\\' else "_" for each in filename)
    if plain == filename:
        return f'attachment; filename="{plain}"'.encode()
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(filename, safe='')}".encode()


FILE_EXAMPLE: JsonObject = {
    "id": "file-9Gz0aPuZ7wm1xX0hXh0bY1",
    "object": "file",
    "bytes": 180,
    "created_at": 1764000000,
    "filename": "requests.jsonl",
    "purpose": PURPOSE,
    "status": "processed",
    "expires_at": 1766592000,
    "status_details": None,
}
DELETED_EXAMPLE: JsonObject = {"id": FILE_EXAMPLE["id"], "object": "file", "deleted": True}
LIST_EXAMPLE: JsonObject = {
    "object": "list",
    "data": [FILE_EXAMPLE],
    "first_id": FILE_EXAMPLE["id"],
    "last_id": FILE_EXAMPLE["id"],
    "has_more": False,
}
CONTENT_EXAMPLE = (
    '{"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": '
    '{"model": "storyteller", "prompt": "Once"}}\n'
)
_FILE = {"type": "string", "contentMediaType": "application/octet-stream"}
_FORM: JsonObject = {
    "type": "object",
    "properties": {
        "file": _FILE | {"description": "The file, of at most 200 MiB, one JSON object per line."},
        "purpose": {"type": "string", "enum": [PURPOSE]},
        ANCHOR: {"type": "string", "enum": ["created_at"]},
        SECONDS: {"type": "integer", "minimum": MIN_SECONDS, "maximum": MAX_SECONDS, "default": DEFAULT_SECONDS},
    },
    "required": ["file", "purpose"],
}
FILE_ID = id_in_path("A file.")


def query(name: str, description: str, **schema: Any) -> JsonObject:
    return {"name": name, "in": "query", "description": description, "schema": schema}


FILE_QUERY = (
    query("purpose", "Only files of this purpose.", type="string"),
    query("limit", "How many files.", type="integer", minimum=1, maximum=MAX_LISTED_FILES, default=MAX_LISTED_FILES),
    query("order", "By time: desc has the newest first.", type="string", enum=["asc", "desc"], default="desc"),
    query("after", "Files after the one with this id.", type="string"),
)
ERRORS = ("400", "401", "404", "503")


operation = partial(get, errors=ERRORS, tags=["Batches"])
"""An operation of files and batches."""
UPLOAD = operation("createFile", "Upload a file.", schema="File", requestBody=body("multipart/form-data", _FORM))
LIST = operation("listFiles", "List files.", schema="FileList", parameters=list(FILE_QUERY))
RETRIEVE = operation("retrieveFile", "Retrieve one file.", schema="File")
DELETE = operation("deleteFile", "Delete a file.", schema="FileDeleted")
CONTENT = operation("retrieveFileContent", "What a file contains.", "application/octet-stream")
