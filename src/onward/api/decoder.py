"""The one decoder of requests by their table of fields: OpenAI's, and those of other servers' APIs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onward.api import refusals
from onward.api.checks import CHECKS
from onward.api.parameter import FieldTable, Parameter, Profile
from onward.completions.request import CompletionRequest

UNLIMITED_TOKENS = 2**31 - 1
"""`max_tokens` where a request of another API has no limit; with `fill_context` it becomes what fits into the
context."""


def check_fields(fields: Mapping[str, object], rows: FieldTable, profile: Profile) -> dict[str, Any]:
    """Return the value of every field that acts, by the parameter it stands for or by its own name, with the defaults.

    Fields are checked in the order of the request; null means that a field is not set. A parameter's own name wins over
    another name for it, unless that one `overrides` it; of several other names, the first one in the request counts.
    Raises InvalidRequest for unknown fields (except in the lenient profile), missing ones, wrong types and values out
    of range.
    """
    if profile != "lenient" and (unknown := [name for name in fields if name not in rows]):
        raise refusals.unrecognized(unknown, () if profile == "strict" else rows)
    checked = _CheckedFields(profile)
    checked.add_all(fields, rows)
    return {**rows.defaults, **checked.values()}


def request_fields(checked: Mapping[str, Any], *without: str) -> dict[str, Any]:
    """Return the checked fields that a CompletionRequest has under the same name, except for those that mean something
    else in the API."""
    names = (name for name in CompletionRequest.__struct_fields__ if name not in without)
    return {name: checked[name] for name in names if checked.get(name) is not None}


class _CheckedFields:
    """Collects checked values. Those of other names are kept apart until all are known."""

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._own: dict[str, Any] = {}
        self._aliased: list[tuple[Parameter, object]] = []

    def add_all(self, fields: Mapping[str, object], rows: FieldTable, path: str = "") -> None:
        """Check the known fields of an object. Raises InvalidRequest."""
        for row in rows.values():
            if row.required and fields.get(row.name) is None:
                raise refusals.missing(f"{path}{row.name}")
        for name, value in fields.items():
            if name not in rows:
                if path and self._profile != "lenient":
                    raise refusals.unknown_inner(f"{path}{name}")
            elif value is not None:
                self._add(rows[name], value, f"{path}{name}", rows.inner)

    def _add(self, row: Parameter, value: object, path: str, inner: Mapping[str, FieldTable]) -> None:
        if row.kind == "object":
            if not isinstance(value, dict):
                raise refusals.wrong_type(path, "an object", value)
            if row.has_effect:
                self.add_all(value, inner[row.name], f"{path}.")
            return
        checked = CHECKS[row.kind](row, value, path, self._profile)
        if row.alias_of is not None:
            self._aliased.append((row, checked))
        elif row.field is not None:
            self._own[row.field] = checked

    def values(self) -> dict[str, Any]:
        found = dict(self._own)
        for row, value in sorted(self._aliased, key=lambda pair: pair[0].converts is not None):
            if row.field is None or (row.unset is not None and value == row.unset):
                continue
            if row.overrides or row.field not in found:
                found[row.field] = value if row.converts is None else row.converts(value, found)
        return found
