"""The words in which tables declare fields of other servers, in OpenAI's API and in theirs.

A field means the same as a parameter of this API, has a meaning of its own, accepts only the values that describe this
server, has no meaning here, or is refused. Apart from `decoder`: the help of the command line reads the tables, and
must not load what decoding needs.
"""

from __future__ import annotations

from dataclasses import replace

from onward.api.core_parameters import OPENAI_PARAMETERS
from onward.api.extension_parameters import EXTENSION_PARAMETERS
from onward.api.parameter import Parameter, ParameterKind

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


def shared(dialect: str, *parameters: str) -> tuple[Parameter, ...]:
    """Return fields that mean the same as the parameters of their names."""
    return tuple(same(name, name, dialect) for name in parameters)


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
