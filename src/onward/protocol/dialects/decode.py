"""Decode the request of a dialect by its table, as `protocol.decode` does for this API's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onward.completions.request import CompletionRequest
from onward.protocol import refusals
from onward.protocol.checks import CHECKS
from onward.protocol.parameter import Parameter, Profile

Table = Mapping[str, Parameter]


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
        checked = CHECKS[row.kind](row, value, place, profile)
        if row.field is not None:
            (aliased if row.alias_of else given)[row.field] = checked
    return {**_defaults(rows), **aliased, **given}


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
        raise refusals.unrecognized(unknown)


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
