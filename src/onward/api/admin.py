"""The API by which an operator changes the models of a running server: objects, checks, and their description."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import msgspec

from onward.api import refusals
from onward.api.openai.response import COMPONENTS, WireObject, describe
from onward.api.operations import body, get
from onward.api.routes import JSON, JsonObject
from onward.backends.base import LiveModel
from onward.errors import ApiError, InvalidRequest

MAX_NAME = 256
MAX_BODY_BYTES = 10_000


class AdminModel(WireObject, kw_only=True):
    id: str
    object: Literal["admin.model"] = "admin.model"
    status: Literal["ready", "recovering", "dead", "loading", "ending"]
    detail: str
    source: str
    added: bool
    running: int
    waiting: int


class AdminModelList(WireObject, kw_only=True):
    object: Literal["list"] = "list"
    folders: list[str]
    data: list[AdminModel]


class AdminModelDeleted(WireObject, kw_only=True):
    id: str
    object: Literal["admin.model.deleted"] = "admin.model.deleted"
    deleted: bool = True


class ModelsBusy(ApiError):
    """Another change of models is being made."""

    status = 409
    type = "invalid_request_error"
    code = "models_busy"

    def __init__(self) -> None:
        super().__init__("Another change of the models is being made: wait until nothing is loading.")


@dataclass(frozen=True, slots=True)
class NewModel:
    """What is to be loaded: a path within a model folder, and the id to serve it under if that is not its name."""

    model: str
    id: str | None


def check_new(fields: Mapping[str, Any]) -> NewModel:
    """Return what the fields of a request ask for. Raises InvalidRequest."""
    for name in fields:
        if name not in ("model", "id"):
            raise refusals.unrecognized([name], ("model", "id"))
    if fields.get("model") is None:
        raise refusals.missing("model")
    given = fields.get("id")
    return NewModel(text("model", fields["model"]), None if given is None else printable("id", text("id", given)))


def text(name: str, value: object) -> str:
    """Return the value of a field that is a short text. Raises InvalidRequest."""
    if not isinstance(value, str):
        raise refusals.wrong_type(name, "a string", value)
    if not value.strip():
        raise refusals.empty_string(name)
    if len(value) > MAX_NAME:
        raise refusals.string_too_long(name, MAX_NAME, len(value))
    return value


def printable(name: str, value: str) -> str:
    """Return the value of a field that becomes the name of a model. Raises InvalidRequest."""
    if not value.isprintable() or value != value.strip():
        raise InvalidRequest(
            f"Invalid '{name}': it must consist of printable characters, without spaces around it.",
            param=name,
            code="invalid_value",
        )
    return value


def model_object(model: LiveModel) -> AdminModel:
    return AdminModel(
        id=model.id,
        status=model.status,
        detail=model.detail,
        source=model.source,
        added=model.is_added,
        running=model.num_running,
        waiting=model.num_waiting,
    )


def admin_schemas() -> dict[str, Any]:
    """Return the schemas of the objects by name."""
    _, schemas = msgspec.json.schema_components(
        (AdminModel, AdminModelList, AdminModelDeleted), ref_template=COMPONENTS
    )
    descriptions = {
        "status": "ready, recovering and dead as in /health; loading: it is not served yet; ending: it was replaced or "
        "removed, and still has requests.",
        "source": "Its path, or the servers that compute it.",
        "added": "Whether it was added while the server ran, not by the settings.",
        "running": "Running sequences; for a model that is ending, and for an adapter, running requests.",
        "folders": "The folders of --model-folder.",
    }
    for schema in schemas.values():
        describe(schema, {name: words for name, words in descriptions.items() if name in schema["properties"]})
        schema["required"] = list(schema["properties"])
    return schemas


EXAMPLE: JsonObject = {
    "id": "qwen-coder",
    "object": "admin.model",
    "status": "ready",
    "detail": "",
    "source": "/srv/models/qwen-coder.gguf",
    "added": True,
    "running": 0,
    "waiting": 0,
}
LIST_EXAMPLE: JsonObject = {"object": "list", "folders": ["/srv/models"], "data": [EXAMPLE]}
DELETED_EXAMPLE: JsonObject = {"id": "qwen-coder", "object": "admin.model.deleted", "deleted": True}
_NEW: JsonObject = {
    "type": "object",
    "properties": {
        "model": {
            "type": "string",
            "maxLength": MAX_NAME,
            "description": "The path of a model in one of the folders: relative to it, or absolute.",
        },
        "id": {
            "type": ["string", "null"],
            "maxLength": MAX_NAME,
            "description": "The id to serve it under; by default its name. A model that has this id is replaced.",
        },
    },
    "required": ["model"],
    "additionalProperties": False,
}


operation = partial(get, tags=["Administration"])
"""An operation for admin keys."""
LIST = operation("listAdminModels", "List the models of this server. Needs an admin key.", schema="AdminModelList")
CREATE = operation(
    "addModel", "Load a model and serve it, in place of the one that has its id.", schema="AdminModel",
    errors=("400", "401", "408", "409", "413", "503"), requestBody=body(JSON, _NEW),
)  # fmt: skip
DELETE = operation(
    "removeModel",
    "Stop serving a model; its running requests finish.",
    schema="AdminModelDeleted",
    errors=("400", "401", "404", "409", "503"),
)
