"""How the tables of dialects are written: from the parameters of this API, or with a reason why not."""

from __future__ import annotations

from dataclasses import replace

from onward.protocol.parameter import Kind, Parameter
from onward.protocol.parameters import BY_NAME

UNLIMITED_TOKENS = 2**31 - 1
"""`max_tokens` where a dialect's request has no limit; with `fill_context` it becomes what the context has room for."""


def same(name: str, parameter: str, dialect: str, *, default: object = None, **changes: object) -> Parameter:
    """Return a field that means the same as a parameter of this API, with its kind and range.

    `default`: what the dialect's own server does without the field, where that is not this API's default.
    """
    row = replace(
        BY_NAME[parameter],
        name=name,
        default=default,
        origin="extension",
        required=False,
        alias_of=None if name == parameter else parameter,
        dialect=dialect,
        help=BY_NAME[parameter].help if name == parameter else f"{dialect}'s name for `{parameter}`.",
    )
    return replace(row, **changes)  # type: ignore[arg-type]


def own(name: str, kind: Kind, dialect: str, help: str, **changes: object) -> Parameter:
    """Return a field that only the dialect has, and that acts."""
    row = Parameter(name=name, kind=kind, help=help, group="other", example=None, origin="extension", dialect=dialect)
    return replace(row, **changes)  # type: ignore[arg-type]


def unused(name: str, kind: Kind, dialect: str, why: str, **changes: object) -> Parameter:
    """Return a field that is checked and has no meaning here. `why` is a sentence for the documentation."""
    return own(name, kind, dialect, f"No meaning here: {why}", has_effect=False, **changes)


def only(name: str, dialect: str, *values: object, why: str) -> Parameter:
    """Return a field of which only `values` are accepted, because what others ask for does not exist here."""
    return own(name, "fixed", dialect, why, only=values, default=values[0])


def refused(name: str, dialect: str, why: str) -> Parameter:
    """Return a field that is refused by name, whatever its value but null."""
    return own(name, "fixed", dialect, why, only=())


def sampler(name: str, dialect: str, *neutral: object) -> Parameter:
    """Return a sampler's field: it acts if this API has a parameter of that name, else only values that turn it off are
    accepted."""
    row = BY_NAME.get(name)
    if row is not None and row.kind != "fixed":
        return same(name, row.alias_of or name, dialect)
    why = "Not available here: only a value that turns it off is accepted."
    return only(name, dialect, *neutral, why=why)
