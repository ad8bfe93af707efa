"""How the requests of other servers' APIs are decoded: by a table of fields for each (see `api.fields`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onward.api import refusals
from onward.api.checks import CHECKS
from onward.api.parameter import Parameter, Profile
from onward.completions.request import CompletionRequest

Table = Mapping[str, Parameter]
UNLIMITED_TOKENS = 2**31 - 1
"""`max_tokens` where a dialect's request has no limit; with `fill_context` it becomes what the context has room for."""


_WHOLE_FLOATS = {"llama-server": "", "mistral": "", "ollama": "options."}
"""Dialects whose own servers take 16.0 for an integer, and where: llama-server converts every JSON number, pydantic
takes whole ones, and Ollama reads its options as Go's float64. Rust's serde, in the others, does not."""


def table(*rows: Parameter) -> Table:
    """Return a table by name."""
    return {row.name: row for row in rows}


def check_fields(fields: Mapping[str, object], rows: Table, profile: Profile, path: str = "") -> dict[str, Any]:
    """Return the value of every field that acts, by the parameter it stands for or by its own name, defaults included.

    Null means that a field is not set. A field's own name wins over an alias. Raises InvalidRequest for unknown fields
    (except in the lenient profile), for missing ones, wrong types and values out of range.
    """
    _check_known(fields, rows, profile, path)
    given: dict[str, Any] = {}
    aliased: dict[str, Any] = {}
    for name, row in rows.items():
        value, place = fields.get(name), f"{path}{name}"
        if value is None:
            if row.required:
                raise refusals.missing(place)
            continue
        if row.kind == "object":
            given |= _inner(row, value, place, profile)
            continue
        checked = CHECKS[row.kind](row, _whole(row, value, place), place, profile)
        if row.field is not None:
            (aliased if row.alias_of else given)[row.field] = checked
    return {**_defaults(rows), **aliased, **given}


def _whole(row: Parameter, value: object, place: str) -> object:
    """Return a whole float as an integer where the dialect's own server does."""
    where = _WHOLE_FLOATS.get(row.dialect or "")
    if row.kind == "integer" and type(value) is float and value.is_integer() and where is not None:
        return int(value) if place.startswith(where) else value
    return value


def request_fields(checked: Mapping[str, Any], *without: str) -> dict[str, Any]:
    """Return the checked fields that a CompletionRequest has under the same name, but for those that mean something
    else in the dialect."""
    names = (name for name in CompletionRequest.__struct_fields__ if name not in without)
    return {name: checked[name] for name in names if checked.get(name) is not None}


def _check_known(fields: Mapping[str, object], rows: Table, profile: Profile, path: str) -> None:
    if profile == "lenient":
        return
    unknown = [name for name in fields if name not in rows]
    if unknown and path:
        raise refusals.unknown_inner(f"{path}{unknown[0]}")
    if unknown:
        raise refusals.unrecognized(unknown, rows)


def _inner(row: Parameter, value: object, place: str, profile: Profile) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise refusals.wrong_type(place, "an object", value)
    if not row.has_effect:
        return {}
    return check_fields(value, table(*row.inner), profile, f"{place}.")


def _defaults(rows: Table) -> dict[str, Any]:
    """Return the dialect's defaults, of objects too."""
    found: dict[str, Any] = {}
    for row in rows.values():
        found |= _defaults(table(*row.inner))
        if row.default is not None and row.field is not None:
            found[row.field] = row.default
    return found
