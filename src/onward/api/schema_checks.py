"""Checks of fields that hold a JSON Schema. Each returns the schema's JSON text, None where none is set."""

from __future__ import annotations

import msgspec

from onward.api import refusals
from onward.api.parameter import Parameter, Profile
from onward.completions.request import ANY_OBJECT
from onward.errors import InvalidRequest

_FORMATS = "text', 'json_object', 'json_schema"


def check_json_schema(row: Parameter, value: object, path: str, profile: Profile) -> str | None:
    """Return the JSON text of a schema: an object, true, or a string, which is read when the grammar is built. "" and
    false mean "not set", as for other servers. Raises InvalidRequest."""
    if value == "" or value is False:
        return None
    if value is not True and not isinstance(value, dict | str):
        raise refusals.wrong_type(path, "an object", value)
    try:
        encoded = msgspec.json.encode(value)
        return value if isinstance(value, str) else encoded.decode()
    except UnicodeEncodeError:
        raise refusals.not_unicode(path) from None
    except (TypeError, ValueError, RecursionError) as error:
        raise _not_a_schema(path, str(error)) from None


def check_response_format(row: Parameter, value: object, path: str, profile: Profile) -> str | None:
    """Return the schema of a `response_format` of OpenAI's Chat API, or of llama-server's, which has `schema` next to
    `json_object`; None for text. Raises InvalidRequest."""
    if not isinstance(value, dict):
        raise refusals.wrong_type(path, "an object", value)
    kind = value.get("type")
    if kind is None:
        raise refusals.missing(f"{path}.type")
    if not isinstance(kind, str):
        raise refusals.wrong_type(f"{path}.type", "a string", kind)
    if kind == "text":
        _check_known(value, path, profile, "type")
        return None
    if kind == "json_object":
        _check_known(value, path, profile, "type", "schema")
        return _schema_or_any(row, value.get("schema"), f"{path}.schema", profile)
    if kind != "json_schema":
        raise refusals.no_such_value(f"{path}.type", kind, _FORMATS)
    _check_known(value, path, profile, "type", "json_schema")
    return _named_schema(row, value.get("json_schema"), f"{path}.json_schema", profile)


def check_json_format(row: Parameter, value: object, path: str, profile: Profile) -> str | None:
    """Return the schema of Ollama's `format`: "json" means any object. Raises InvalidRequest."""
    if isinstance(value, str) and value not in ("", "json"):
        raise refusals.no_such_value(path, value, "json")
    return ANY_OBJECT if value == "json" else check_json_schema(row, value, path, profile)


def check_typed_grammar(row: Parameter, value: object, path: str, profile: Profile) -> dict[str, str]:
    """Return the constraint of text-generation-inference's `grammar`, by its parameter's name here. Raises
    InvalidRequest."""
    if not isinstance(value, dict):
        raise refusals.wrong_type(path, "an object", value)
    for name in ("type", "value"):
        if value.get(name) is None:
            raise refusals.missing(f"{path}.{name}")
    kind, held = value["type"], value["value"]
    if kind == "json":
        return {"json_schema": _schema_or_any(row, held, f"{path}.value", profile)}
    if kind != "regex":
        raise refusals.no_such_value(f"{path}.type", str(kind), "json', 'regex")
    if not isinstance(held, str):
        raise refusals.wrong_type(f"{path}.value", "a string", held)
    return {"regex": held}


def _schema_or_any(row: Parameter, value: object, path: str, profile: Profile) -> str:
    return (None if value is None else check_json_schema(row, value, path, profile)) or ANY_OBJECT


def _named_schema(row: Parameter, value: object, path: str, profile: Profile) -> str | None:
    """Return the schema of `{"name": …, "schema": {…}, "strict": …, "description": …}`. All but `schema` is for models
    that read it, and has no effect here."""
    if value is None:
        raise refusals.missing(path)
    if not isinstance(value, dict):
        raise refusals.wrong_type(path, "an object", value)
    _check_known(value, path, profile, "name", "schema", "strict", "description")
    schema = value.get("schema")
    if schema is None:
        raise refusals.missing(f"{path}.schema")
    return check_json_schema(row, schema, f"{path}.schema", profile)


def _check_known(value: dict[str, object], path: str, profile: Profile, *names: str) -> None:
    unknown = [name for name in value if name not in names]
    if unknown and profile != "lenient":
        raise refusals.unknown_inner(f"{path}.{unknown[0]}")


def _not_a_schema(path: str, reason: str) -> InvalidRequest:
    return InvalidRequest(f"Invalid '{path}': it is not a JSON Schema in JSON: {reason}.", param=path)
