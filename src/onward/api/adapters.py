"""vLLM's API by which adapters are loaded and unloaded while a server runs: requests, answers and errors. [VLLM]"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from onward.api import refusals
from onward.api.admin import MAX_NAME, operation, printable, text
from onward.api.errors import ErrorWords
from onward.api.openai.errors import error_response
from onward.api.operations import body, ref
from onward.api.routes import JSON, JsonObject
from onward.errors import ApiError, InvalidRequest, NotFound

TEXT = "text/plain"


class InvalidUserInput(InvalidRequest):
    """An adapter that cannot be loaded, or a body that does not name one."""

    type = "InvalidUserInput"


class AdapterNotFound(NotFound):
    """No adapter, or no model for it, has the name that was given."""

    type = "NotFoundError"


@dataclass(frozen=True, slots=True)
class NewAdapter:
    """What is to be loaded: a path within a model folder, the name to serve it under, and the model that it changes,
    None for the first. `in_place`: also if an adapter has this name, which it replaces."""

    name: str
    path: str
    base: str | None
    in_place: bool


_LOAD_FIELDS = ("lora_name", "lora_path", "load_inplace", "base_model_name", "is_3d_lora_weight")
_UNLOAD_FIELDS = ("lora_name", "lora_int_id")


def check_load(fields: Mapping[str, Any]) -> NewAdapter:
    """Return what the fields of a request ask for. Raises InvalidRequest."""
    _check_names(fields, _LOAD_FIELDS)
    if not fields.get("lora_name") or not fields.get("lora_path"):
        raise InvalidUserInput("Both 'lora_name' and 'lora_path' must be provided.")
    in_place = fields.get("load_inplace", False)
    if not isinstance(in_place, bool):
        raise refusals.wrong_type("load_inplace", "a boolean", in_place)
    if fields.get("is_3d_lora_weight"):
        raise refusals.unavailable("is_3d_lora_weight", "changes of experts are not computed")
    base = fields.get("base_model_name")
    return NewAdapter(
        printable("lora_name", text("lora_name", fields["lora_name"])),
        text("lora_path", fields["lora_path"]),
        None if base is None else text("base_model_name", base),
        in_place,
    )


def check_unload(fields: Mapping[str, Any]) -> str:
    """Return the name of the adapter to unload. Raises InvalidRequest."""
    _check_names(fields, _UNLOAD_FIELDS)
    if fields.get("lora_int_id") is not None:
        raise refusals.unavailable("lora_int_id", "adapters have no numbers here, only names")
    if not fields.get("lora_name"):
        raise InvalidUserInput("'lora_name' must be provided.")
    return text("lora_name", fields["lora_name"])


def _check_names(fields: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for name in fields:
        if name not in known:
            raise refusals.unrecognized([name], known)


def loaded(name: str) -> bytes:
    return f"Success: LoRA adapter '{name}' added successfully.".encode()


def unloaded(name: str) -> bytes:
    return f"Success: LoRA adapter '{name}' removed successfully.".encode()


def _body(error: ApiError) -> tuple[int, bytes, str]:
    """OpenAI's shape, with the status as code."""
    status, content, media = error_response(error)
    fields = msgspec.json.decode(content)["error"]
    return status, msgspec.json.encode({"error": fields | {"code": status}}), media


ERRORS = ErrorWords(body=_body)


def adapter_schemas() -> dict[str, JsonObject]:
    """Return the schema of the errors of these routes, by name."""
    nullable = {"type": ["string", "null"]}
    fields = {"message": {"type": "string"}, "type": {"type": "string"}, "param": nullable, "code": {"type": "integer"}}
    error = {"type": "object", "properties": fields, "required": list(fields)}
    return {"AdapterError": {"type": "object", "properties": {"error": error}, "required": ["error"]}}


def _operation(name: str, summary: str, properties: dict[str, JsonObject], required: tuple[str, ...]) -> JsonObject:
    schema = {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}
    errors = ("400", "401", "403", "404", "408", "409", "413", "503")
    described = operation(name, summary, TEXT, errors=errors, requestBody=body(JSON, schema))
    for status, response in described["responses"].items():
        if status != "200":
            response["content"] = {JSON: {"schema": ref("AdapterError")}}
    return described


_NAME: JsonObject = {"type": "string", "maxLength": MAX_NAME, "description": "The name that requests use as `model`."}
LOAD = _operation(
    "loadLoraAdapter", "Load a LoRA adapter of a model, and serve it under a name of its own. Needs an admin key.",
    {
        "lora_name": _NAME,
        "lora_path": {
            "type": "string",
            "maxLength": MAX_NAME,
            "description": "The path of an adapter in one of the folders of --model-folder: relative to it, or "
            "absolute.",
        },
        "load_inplace": {
            "type": "boolean",
            "default": False,
            "description": "Whether it replaces an adapter that has this name. Without it, that is an error.",
        },
        "base_model_name": {
            "type": ["string", "null"],
            "maxLength": MAX_NAME,
            "description": "The model that it changes; by default the first one. vLLM has it in --lora-modules only.",
        },
        "is_3d_lora_weight": {"type": ["boolean", "null"], "enum": [False, None]},
    },
    ("lora_name", "lora_path"),
)  # fmt: skip
UNLOAD = _operation(
    "unloadLoraAdapter", "Stop serving a LoRA adapter; its running requests finish. Needs an admin key.",
    {"lora_name": _NAME, "lora_int_id": {"type": "null"}}, ("lora_name",),
)  # fmt: skip
