"""The table of request parameters.

The decoder, the command line, OpenAPI and the documentation are generated from it. Names, types, ranges, defaults and
descriptions of parameters are declared nowhere else.
"""

from __future__ import annotations

from onward.api.openai.extension_parameters import EXTENSION_PARAMETERS
from onward.api.openai.openai_parameters import OPENAI_PARAMETERS
from onward.api.parameter import Kind, Origin, Parameter, Profile

__all__ = ["BY_NAME", "PARAMETERS", "Kind", "Origin", "Parameter", "Profile", "known_parameters"]

PARAMETERS: tuple[Parameter, ...] = (*OPENAI_PARAMETERS, *EXTENSION_PARAMETERS)
BY_NAME: dict[str, Parameter] = {parameter.name: parameter for parameter in PARAMETERS}


def known_parameters(profile: Profile, among: tuple[Parameter, ...] = PARAMETERS) -> dict[str, Parameter]:
    """Return the parameters of a profile by name: in strict only OpenAI's own, in the others all."""
    return {row.name: row for row in among if profile != "strict" or row.origin == "openai"}
