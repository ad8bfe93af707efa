"""Tables of fields, and the one decoder of requests by them: OpenAI's, and those of other servers' APIs.

A field of another server means the same as a parameter of this API, has a meaning of its own, accepts only the values
that describe this server, has no meaning here, or is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from onward.api import refusals
from onward.api.checks import CHECKS
from onward.api.core_parameters import OPENAI_PARAMETERS
from onward.api.extension_parameters import EXTENSION_PARAMETERS
from onward.api.parameter import FieldTable, Parameter, ParameterKind, Profile
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


_BY_NAME = {parameter.name: parameter for parameter in (*OPENAI_PARAMETERS, *EXTENSION_PARAMETERS)}


def same(name: str, parameter: str, dialect: str, *, default: object = None, **changes: object) -> Parameter:
    """Return a field that means the same as a parameter of this API, with its kind and range.

    `default`: what the dialect's own server does without the field, where that is not this API's default.
    """
    row = replace(
        _BY_NAME[parameter],
        name=name,
        default=default,
        origin="extension",
        required=False,
        alias_of=None if name == parameter else parameter,
        dialect=dialect,
        help=_BY_NAME[parameter].help if name == parameter else f"{dialect}'s name for `{parameter}`.",
    )
    return replace(row, **changes)  # type: ignore[arg-type]


def own(name: str, kind: ParameterKind, dialect: str, help: str, **changes: object) -> Parameter:
    """Return a field that only the dialect has, and that acts."""
    row = Parameter(name=name, kind=kind, help=help, group="other", example=None, origin="extension", dialect=dialect)
    return replace(row, **changes)  # type: ignore[arg-type]


def unused(name: str, kind: ParameterKind, dialect: str, why: str, **changes: object) -> Parameter:
    """Return a field that is checked and has no meaning here. `why` is a sentence for the documentation."""
    return own(name, kind, dialect, f"No meaning here: {why}", has_effect=False, **changes)


def only(name: str, dialect: str, *values: object, why: str, **changes: object) -> Parameter:
    """Return a field of which only `values` are accepted, because what others ask for does not exist here."""
    return own(name, "fixed", dialect, why, **{"only": values, "default": values[0], **changes})


def refused(name: str, dialect: str, why: str) -> Parameter:
    """Return a field that is refused by name, unless its value is null."""
    return own(name, "fixed", dialect, why, only=())


def accepted(name: str, value: object, dialect: str, meaning: str, **changes: object) -> Parameter:
    """Return a field that accepts `only` the value that describes this server; `meaning` says it in words."""
    why = f"A field of {dialect}. Only {meaning} is accepted."
    return only(name, dialect, value, why=why, **{"example": value, **changes})
