"""What one field of a request is: the row of the table in `protocol.parameters`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Profile = Literal["strict", "default", "lenient"]
"""How closely a request must follow OpenAI's schema.

strict: OpenAI's own fields and limits, nothing else. default: the extensions and dialects of the table
pass, anything else is refused. lenient: unknown fields are passed over, the model may be missing, any number
of stops.
"""

Kind = Literal[
    "string",
    "integer",  # a JSON number of 64 bits without a fraction; true and 16.0 are none
    "number",
    "boolean",
    "prompt",  # string, array of strings, array of token ids, array of arrays of token ids
    "prediction",  # object: text that the completion is expected to be
    "stop",  # string or array of strings
    "logit_bias",  # object: token id in decimal → number
    "object",  # holds the parameters in `inner`
    "fixed",  # a known field of another server: only the values in `only` describe what happens here
    "duration",  # a time as "5m" or seconds, other than zero
    "link",  # a URI that has no effect by definition
]
Origin = Literal["openai", "extension"]
Group = Literal["prompt", "length", "sampling", "choices", "output", "stream", "other"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One field of the request body, for the decoder, the command line, OpenAPI and docs.

    Every parameter but a required one may be null, which means its default. `default` None means "not set".
    `minimum` and `maximum` are inclusive; for logit_bias they bound the values. `max_items` bounds an array
    or an object. `strict_maximum` is the bound of the strict profile, `cap` the value that a larger one is
    lowered to in the others. `alias_of` names the parameter that this spelling stands for; that parameter's
    own spelling wins when both are given, unless this one `overrides`. `dialect` names the server whose
    spelling it is.
    """

    name: str
    kind: Kind
    help: str
    group: Group
    example: object
    default: object = None
    minimum: float | None = None
    maximum: float | None = None
    strict_maximum: int | None = None
    cap: int | None = None
    max_items: int | None = None
    origin: Origin = "openai"
    required: bool = False
    alias_of: str | None = None
    overrides: bool = False
    dialect: str | None = None
    only: tuple[object, ...] = ()
    inner: tuple[Parameter, ...] = ()

    @property
    def nullable(self) -> bool:
        return not self.required

    @property
    def field(self) -> str | None:
        """The attribute of CompletionRequest that it sets, None where it sets none of its own."""
        if self.kind in ("object", "fixed", "duration", "link"):
            return None
        return self.alias_of or self.name

    @property
    def flag(self) -> str:
        """Its spelling as a command line option."""
        return "--" + self.name.replace("_", "-")
