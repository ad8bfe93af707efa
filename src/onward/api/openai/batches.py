"""OpenAI's Batches API: the object, the checks of its creation, and how its routes are described (behaviour §18)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from onward.api import refusals
from onward.api.openai.batch_lines import ENDPOINT
from onward.api.openai.files import (
    ERRORS,
    MIN_SECONDS,
    File,
    FileDeleted,
    FileList,
    expires_after,
    operation,
    query,
)
from onward.api.openai.response import COMPONENTS, WireObject, describe
from onward.api.operations import body, id_in_path
from onward.api.routes import JSON, JsonObject
from onward.errors import ApiError, InvalidRequest, NotFound

WINDOW = "24h"
DEFAULT_LISTED, MAX_LISTED = 20, 100
MAX_PAIRS, MAX_KEY, MAX_VALUE = 16, 64, 512
Status = Literal["validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"]


class BatchCounts(WireObject, kw_only=True):
    total: int
    completed: int
    failed: int


class BatchInputDetails(WireObject, kw_only=True):
    cached_tokens: int = 0


class BatchOutputDetails(WireObject, kw_only=True):
    reasoning_tokens: int = 0


class BatchUsage(WireObject, kw_only=True):
    input_tokens: int
    input_tokens_details: BatchInputDetails
    output_tokens: int
    output_tokens_details: BatchOutputDetails
    total_tokens: int


class BatchError(WireObject, kw_only=True):
    code: str
    message: str
    param: str | None
    line: int | None


class BatchErrors(WireObject, kw_only=True):
    object: Literal["list"] = "list"
    data: list[BatchError]


class BatchObject(WireObject, kw_only=True):
    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    model: str | None
    errors: BatchErrors | None
    input_file_id: str
    completion_window: str
    status: Status
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: BatchCounts
    usage: BatchUsage
    metadata: dict[str, str] | None


class BatchList(WireObject, kw_only=True):
    object: Literal["list"] = "list"
    data: list[BatchObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class CannotCancel(ApiError):
    """The batch has ended."""

    status = 409
    type = "invalid_request_error"


def cannot_cancel(status: str) -> CannotCancel:
    words = f"Cannot cancel a batch with status '{status}'."
    return CannotCancel(words, headers={"x-should-retry": "false"})


def no_such_batch(batch_id: str) -> NotFound:
    return NotFound(f"No batch found with id '{batch_id[:128]}'.")


@dataclass(frozen=True, slots=True)
class NewBatch:
    """What a client asks for. `metadata` is JSON; `output_seconds`: how long its files live."""

    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: str | None
    output_seconds: int | None


def check_new(fields: Mapping[str, Any]) -> NewBatch:
    """Return a new batch. Other fields are ignored (behaviour §18.5). Raises InvalidRequest."""
    for name in ("input_file_id", "endpoint", "completion_window"):
        if fields.get(name) is None:
            raise refusals.missing(name)
        if not isinstance(fields[name], str):
            raise refusals.wrong_type(name, "a string", fields[name])
    if fields["endpoint"] != ENDPOINT:
        raise refusals.no_such_value("endpoint", fields["endpoint"], ENDPOINT)
    if fields["completion_window"] != WINDOW:
        shown = fields["completion_window"][:64]
        raise InvalidRequest(
            f"Invalid value for 'completion_window': '{shown}'. Supported values are: '{WINDOW}'.",
            param="completion_window",
            code="invalid_value",
        )
    return NewBatch(
        fields["input_file_id"],
        fields["endpoint"],
        fields["completion_window"],
        _metadata(fields.get("metadata")),
        _output_seconds(fields.get("output_expires_after")),
    )


def _metadata(given: object) -> str | None:
    """Return metadata as JSON. Raises InvalidRequest."""
    if given is None:
        return None
    if not isinstance(given, dict):
        raise refusals.wrong_type("metadata", "an object", given)
    if len(given) > MAX_PAIRS:
        raise refusals.too_many_properties("metadata", MAX_PAIRS, len(given))
    for name, value in given.items():
        path = f"metadata.{name[:MAX_KEY]}"
        if len(name) > MAX_KEY:
            raise refusals.string_too_long(path, MAX_KEY, len(name))
        if not isinstance(value, str):
            raise refusals.wrong_type(path, "a string", value)
        if len(value) > MAX_VALUE:
            raise refusals.string_too_long(path, MAX_VALUE, len(value))
    return json.dumps(given)


def _output_seconds(given: object) -> int | None:
    """Return for how long output files live; None: until they are deleted. Raises InvalidRequest."""
    if given is None:
        return None
    if not isinstance(given, dict):
        raise refusals.wrong_type("output_expires_after", "an object", given)
    names = "output_expires_after.anchor", "output_expires_after.seconds"
    return expires_after(given, names, MIN_SECONDS)


def wrong_purpose(purpose: str) -> InvalidRequest:
    return InvalidRequest(
        f"Invalid value: the file has the purpose '{purpose}', but the input of a batch must have 'batch'.",
        param="input_file_id",
        code="invalid_value",
    )


def batch_schemas() -> dict[str, Any]:
    """Return the schemas of files and batches by name."""
    _, schemas = msgspec.json.schema_components(
        (File, FileList, FileDeleted, BatchObject, BatchList), ref_template=COMPONENTS
    )
    for schema in schemas.values():
        describe(schema, {})
        schema["required"] = list(schema["properties"])
    return schemas


_CREATED = 1764000000
EXAMPLE: JsonObject = {
    "id": "batch_692483c05e8f4d3c9a1b7f2e6d5c4b3a",
    "object": "batch",
    "endpoint": ENDPOINT,
    "model": "storyteller",
    "errors": None,
    "input_file_id": "file-9Gz0aPuZ7wm1xX0hXh0bY1",
    "completion_window": WINDOW,
    "status": "completed",
    "output_file_id": "file-Q1w2e3r4t5y6u7i8o9p0aS",
    "error_file_id": None,
    "created_at": _CREATED,
    "in_progress_at": _CREATED + 1,
    "expires_at": _CREATED + 86_400,
    "finalizing_at": _CREATED + 60,
    "completed_at": _CREATED + 60,
    **dict.fromkeys(("failed_at", "expired_at", "cancelling_at", "cancelled_at")),
    "request_counts": {"total": 2, "completed": 2, "failed": 0},
    "usage": {
        "input_tokens": 8,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 32,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 40,
    },
    "metadata": None,
}
LIST_EXAMPLE: JsonObject = {
    "object": "list",
    "data": [EXAMPLE],
    "first_id": EXAMPLE["id"],
    "last_id": EXAMPLE["id"],
    "has_more": False,
}
BATCH_ID = id_in_path("A batch.")
_TEXT: JsonObject = {"type": "string"}
_NEW: JsonObject = {
    "type": "object",
    "properties": {
        "input_file_id": _TEXT | {"description": "A file of the purpose batch, with one request per line."},
        "endpoint": _TEXT | {"enum": [ENDPOINT]},
        "completion_window": _TEXT | {"enum": [WINDOW]},
        "metadata": {
            "type": ["object", "null"],
            "additionalProperties": _TEXT | {"maxLength": MAX_VALUE},
            "maxProperties": MAX_PAIRS,
        },
        "output_expires_after": {
            "type": ["object", "null"],
            "properties": {"anchor": _TEXT | {"enum": ["created_at"]}, "seconds": {"type": "integer"}},
            "required": ["anchor", "seconds"],
        },
    },
    "required": ["input_file_id", "endpoint", "completion_window"],
}
_QUERY = (
    query("limit", "How many batches.", type="integer", minimum=1, maximum=MAX_LISTED, default=DEFAULT_LISTED),
    query("after", "Batches that are older than the one with this id.", type="string"),
)
CREATE = operation("createBatch", "Run a file of requests.", schema="BatchObject", requestBody=body(JSON, _NEW))
LIST = operation("listBatches", "List batches, the newest first.", schema="BatchList", parameters=list(_QUERY))
RETRIEVE = operation("retrieveBatch", "Retrieve one batch.", schema="BatchObject")
CANCEL = operation(
    "cancelBatch",
    "Cancel a batch. Lines that are finished keep their results.",
    schema="BatchObject",
    errors=(*ERRORS, "409"),
)
