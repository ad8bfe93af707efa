"""The JSON Schema of a completion request, generated from the parameter table."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from onward.api.openai.parameters import TABLES
from onward.api.parameter import FieldTable, Parameter, Profile

Schema = dict[str, Any]
_SCHEMA_TYPES = ["object", "string", "boolean"]
"""JSON types in which a JSON Schema is sent."""


def request_schema(profile: Profile = "default", *, model_in_path: bool = False) -> Schema:
    """Return the schema of a profile's requests. Rules between fields are not part of it. A new dict at each call.

    `model_in_path`: whether the URL names the model, so that the body may omit it.
    """
    rows = dict(TABLES[profile])
    if model_in_path:
        rows["model"] = replace(rows["model"], required=False)
    return {
        "title": "CompletionRequest",
        "type": "object",
        "properties": {name: parameter_schema(row, profile) for name, row in rows.items()},
        "required": [name for name, row in rows.items() if row.required and profile != "lenient"],
        "additionalProperties": profile == "lenient",
    }


def parameter_schema(row: Parameter, profile: Profile = "default") -> Schema:
    """Return the schema of one field, with its description, default and example."""
    schema = {"description": row.help, **_form(row, profile), "examples": [row.example]}
    if row.default is not None:
        schema["default"] = row.default
    return schema


def _form(row: Parameter, profile: Profile) -> Schema:
    match row.kind:
        case "prompt":
            return _prompt()
        case "prediction":
            return _prediction(profile)
        case "stop":
            return _stop(row, profile)
        case "logit_bias":
            return _logit_bias(row)
        case "object":
            return _object(row, profile)
        case "fixed":
            return {"enum": [*row.only, None]}
        case "duration":
            return {"type": ["string", "number", "null"]}
        case "link":
            return {"type": ["string", "null"], "format": "uri-reference"}
        case "token_ids":
            tokens: Schema = {"type": "array", "items": {"type": "integer", "minimum": 0}, "maxItems": row.max_items}
            commas: list[Schema] = [{"type": "string", "pattern": "^[0-9 ,]*$"}] if row.text else []
            return {"anyOf": [tokens, *commas, {"type": "null"}]}
        case "strings":
            return _strings(row)
        case "files":
            return _files(row, profile, "filename", "text", "time")
        case "snippets":
            return _files(row, profile, "filepath", "body", "score")
        case "typed_grammar":
            kinds: Schema = {"type": {"enum": ["json", "regex"]}, "value": {"type": ["object", "string"]}}
            return {"type": ["object", "null"], "properties": kinds, "required": ["type", "value"]}
        case "json_schema" | "json_format":
            return {"type": [*_SCHEMA_TYPES, "null"]}
        case "response_format":
            return _response_format(profile)
        case "token_biases":
            pair: Schema = {"type": "array", "minItems": 2, "maxItems": 2}
            return {"anyOf": [_logit_bias(row), {"type": "array", "items": pair, "maxItems": row.max_items}]}
        case "integer" | "number":
            return {"type": _type(row, profile)} | _bounds(row, profile)
        case "string" | "boolean":
            required = row.required and profile != "lenient"
            return {"type": _type(row, profile)} | ({"minLength": 1} if required else {})


def _type(row: Parameter, profile: Profile) -> str | list[str]:
    return [row.kind, "null"] if row.nullable or profile == "lenient" else row.kind


def _bounds(row: Parameter, profile: Profile) -> Schema:
    maximum = row.strict_maximum if profile == "strict" and row.strict_maximum is not None else row.maximum
    bounds: Schema = {"format": "int64"} if row.kind == "integer" else {}
    if row.minimum is not None:
        bounds["minimum"] = row.minimum
    if maximum is not None:
        bounds["maximum"] = maximum
    return bounds


def _prompt() -> Schema:
    tokens: Schema = {"type": "array", "items": {"type": "integer", "format": "int64"}, "minItems": 1}
    return {
        "anyOf": [
            {"type": "string"},
            {"type": "array", "items": {"type": "string"}},
            tokens,
            {"type": "array", "items": tokens, "minItems": 1},
            {"type": "null"},
        ]
    }


def _prediction(profile: Profile) -> Schema:
    def typed(kind: str, content: Schema) -> Schema:
        return {
            "properties": {"type": {"enum": [kind]}, kind: content},
            "required": ["type", kind],
            "additionalProperties": profile == "lenient",
        }

    part: Schema = {"type": "object", **typed("text", {"type": "string"})}
    content: Schema = {"anyOf": [{"type": "string"}, {"type": "array", "items": part, "minItems": 1}]}
    return {"type": ["object", "null"], **typed("content", content)}


def _response_format(profile: Profile) -> Schema:
    def typed(kind: str, **fields: Schema) -> Schema:
        return {
            "properties": {"type": {"enum": [kind]}, **fields},
            "additionalProperties": profile == "lenient",
        }

    named: Schema = {
        "type": "object",
        "properties": {"schema": {"type": _SCHEMA_TYPES}, **{name: {} for name in ("name", "strict", "description")}},
        "required": ["schema"],
        "additionalProperties": profile == "lenient",
    }
    by_name = typed("json_schema", json_schema=named) | {"required": ["json_schema"]}
    forms = [typed("text"), typed("json_object", schema={"type": [*_SCHEMA_TYPES, "null"]}), by_name]
    return {"type": ["object", "null"], "required": ["type"], "anyOf": forms}


def _stop(row: Parameter, profile: Profile) -> Schema:
    text: Schema = {"type": "string", "minLength": 1}
    max_items = row.lenient_max_items if profile == "lenient" else row.max_items
    texts: Schema = {"type": "array", "items": text, "maxItems": max_items}
    return {"anyOf": [text, texts, {"type": "null"}]}


def _strings(row: Parameter) -> Schema:
    text: Schema = {"enum": list(row.only)} if row.only else {"type": "string"}
    limit: Schema = {} if row.max_items is None else {"maxItems": row.max_items}
    return {"type": ["array", *(["string"] if row.text else []), "null"], "items": text} | limit


def _files(row: Parameter, profile: Profile, name: str, text: str, other: str) -> Schema:
    file: Schema = {
        "type": "object",
        "properties": {name: {"type": "string"}, text: {"type": "string"}, other: {}},
        "required": [text],
        "additionalProperties": profile == "lenient",
    }
    return {"type": ["array", "null"], "items": file, "maxItems": row.max_items}


def _logit_bias(row: Parameter) -> Schema:
    return {
        "type": ["object", "null"],
        "maxProperties": row.max_items,
        "propertyNames": {"pattern": "^[0-9]+$"},
        "additionalProperties": {"type": "number", "minimum": row.minimum, "maximum": row.maximum},
    }


def _object(row: Parameter, profile: Profile) -> Schema:
    inner = FieldTable(*row.inner).of_profile(profile)
    required = [name for name, each in inner.items() if each.required]
    return {
        "type": ["object", "null"],
        "properties": {name: parameter_schema(each, profile) for name, each in inner.items()},
        "additionalProperties": profile == "lenient" or not row.has_effect,
    } | ({"required": required} if required else {})
