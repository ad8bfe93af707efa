"""The table of request parameters.

The decoder, the command line, OpenAPI and the documentation are generated from it. Names, types, ranges, defaults and
descriptions of parameters are declared nowhere else.
"""

from __future__ import annotations

from onward.api.openai.extension_parameters import EXTENSION_PARAMETERS
from onward.api.openai.openai_parameters import OPENAI_PARAMETERS
from onward.api.parameter import Parameter, Profile, Table

PARAMETERS: tuple[Parameter, ...] = (*OPENAI_PARAMETERS, *EXTENSION_PARAMETERS)
BY_NAME = Table(*PARAMETERS)
TABLES: dict[Profile, Table] = {"strict": BY_NAME.of_profile("strict"), "default": BY_NAME, "lenient": BY_NAME}
"""What a profile knows."""
