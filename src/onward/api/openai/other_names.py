"""How fields of other servers are declared: as another name of a parameter, or with the values that are accepted."""

from __future__ import annotations

from dataclasses import replace

from onward.api.openai.constraint_parameters import CONSTRAINT_PARAMETERS
from onward.api.openai.openai_parameters import OPENAI_PARAMETERS
from onward.api.openai.own_extensions import OWN_EXTENSIONS
from onward.api.openai.sampler_parameters import SAMPLER_PARAMETERS
from onward.api.openai.token_parameters import TOKEN_PARAMETERS
from onward.api.parameter import Parameter

OWN_PARAMETERS = (*OWN_EXTENSIONS, *TOKEN_PARAMETERS, *SAMPLER_PARAMETERS, *CONSTRAINT_PARAMETERS)
_BY_NAME = {parameter.name: parameter for parameter in (*OPENAI_PARAMETERS, *OWN_PARAMETERS)}


def alias(name: str, target: str, dialect: str) -> Parameter:
    """Return another server's name of a parameter, with the same kind and range."""
    return replace(
        _BY_NAME[target],
        name=name,
        default=None,
        origin="extension",
        alias_of=target,
        dialect=dialect,
        help=f"{dialect}'s name for `{target}`." if name != target else _BY_NAME[target].help,
    )


def fixed(name: str, value: object, dialect: str, meaning: str) -> Parameter:
    """Return another server's field that only accepts the value which describes the behaviour of this server."""
    return Parameter(
        name=name,
        kind="fixed",
        default=value,
        only=(value,),
        origin="extension",
        dialect=dialect,
        group="other",
        example=value,
        help=f"A field of {dialect}. Only {meaning} is accepted.",
    )
