"""`Parameter`: the declaration of one request field. `FieldTable`: the fields of a request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

Profile = Literal["strict", "default", "lenient"]
"""How closely a request must follow OpenAI's schema.

strict: only OpenAI's fields and limits. default: also the extensions and dialects of the table; other fields are
rejected. lenient: unknown fields are ignored, the model may be omitted, and more stop strings are accepted.
"""

ParameterKind = Literal[
    "string",
    "integer",  # a 64-bit JSON number without a fraction; not true, not 16.0
    "number",
    "boolean",
    "prompt",  # string, array of strings, array of token ids, array of arrays of token ids
    "prediction",  # object: the expected text of the completion
    "stop",  # string or array of strings
    "logit_bias",  # object: token id in decimal → number
    "object",  # its fields are the parameters in `inner`
    "fixed",  # a field of another server; only the values in `only` are accepted
    "duration",  # "5m" or a number of seconds, other than zero
    "link",  # a URI without effect
    "token_ids",  # array of token ids
    "strings",  # array of strings, one of `only` each if there are any
    "files",  # array of objects: `filename` and `text` of files of a repository
    "snippets",  # array of objects: `filepath` and `body` of parts of files
    "json_schema",  # object, or a string that contains one in JSON
    "response_format",  # object: text, or JSON by a schema
    "json_format",  # "json", or a JSON Schema as in json_schema
    "typed_grammar",  # object: `type` and `value` of text-generation-inference's grammars
    "token_biases",  # array of pairs of a token id and a number or false, or an object as in logit_bias
]
Origin = Literal["openai", "extension"]
ParameterGroup = Literal["prompt", "length", "sampling", "constraint", "choices", "output", "stream", "other"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One field of the request body, for the decoder, the command line, OpenAPI and the documentation.

    Parameters that are not `required` may be null, which means their default; a `default` of None means "not set".
    `minimum` and `maximum` are inclusive; for logit_bias they limit the biases. `max_items` limits the length of an
    array or object, `lenient_max_items` that of an array in the lenient profile. `strict_maximum` is the maximum in the
    strict profile; in the others, larger values are lowered to `cap`. `alias_of` is the name of the parameter that this
    one is an alias of: if both are present, the parameter itself wins, unless the alias `overrides` it. `dialect` is
    the name of the server that uses this field. Where not `has_effect`, the field is checked and has no meaning here,
    as its help says. `unset` is a value with which an alias counts as left out. `converts` returns the value of the
    parameter that an alias stands for, from its own value and the request's other fields by name. `text`: a string may
    stand for an array: of token ids, separated by commas, or of strings, in JSON. `takes_whole_floats`: 16.0 is an
    integer.
    """

    name: str
    kind: ParameterKind
    help: str
    group: ParameterGroup
    example: object
    default: object = None
    minimum: float | None = None
    maximum: float | None = None
    strict_maximum: int | None = None
    cap: int | None = None
    max_items: int | None = None
    lenient_max_items: int | None = None
    origin: Origin = "openai"
    required: bool = False
    alias_of: str | None = None
    overrides: bool = False
    dialect: str | None = None
    only: tuple[object, ...] = ()
    inner: tuple[Parameter, ...] = ()
    has_effect: bool = True
    unset: object = None
    converts: Callable[[object, Mapping[str, object]], object] | None = None
    text: Literal["commas", "json"] | None = None
    takes_whole_floats: bool = False

    @property
    def nullable(self) -> bool:
        """Whether null is accepted, in the strict and the default profile."""
        return not self.required

    @property
    def field(self) -> str | None:
        """The attribute of CompletionRequest that holds the value; None if there is none."""
        if self.kind in ("object", "fixed", "duration", "link") or not self.has_effect:
            return None
        return self.alias_of or self.name

    @property
    def flag(self) -> str:
        """The command line option."""
        return "--" + self.name.replace("_", "-")


class FieldTable(dict[str, Parameter]):
    """The fields of a request by name. `inner`: those of its objects, by the object's name. `defaults`: by the names of
    `Parameter.field`, those in objects included."""

    def __init__(self, *rows: Parameter) -> None:
        super().__init__((row.name, row) for row in rows)
        self.inner = {row.name: FieldTable(*row.inner) for row in rows if row.kind == "object"}
        self.defaults: dict[str, Any] = {
            row.field: row.default for row in rows if row.default is not None and row.field is not None
        }
        for each in self.inner.values():
            self.defaults |= each.defaults

    @classmethod
    def with_whole_floats(cls, *rows: Parameter) -> FieldTable:
        """Return a table whose integers may be sent as 16.0: llama-server converts every JSON number, pydantic takes
        whole ones, and Ollama reads its options as Go's float64. Rust's serde, in other servers, does not."""
        return cls(*(replace(row, takes_whole_floats=True) for row in rows))

    def of_profile(self, profile: Profile) -> FieldTable:
        """Return the fields that a profile knows: in strict only OpenAI's own, in the others all."""
        if profile != "strict":
            return self
        return FieldTable(*(replace(row, inner=_of_openai(row.inner)) for row in _of_openai(tuple(self.values()))))


def _of_openai(rows: tuple[Parameter, ...]) -> tuple[Parameter, ...]:
    return tuple(row for row in rows if row.origin == "openai")
