"""Extensions about constrained output: what the text of a completion must match."""

from __future__ import annotations

from onward.api.parameter import Kind, Parameter


def _constraint(name: str, kind: Kind, example: object, help: str, **changes: object) -> Parameter:
    return Parameter(name=name, kind=kind, origin="extension", group="output", example=example, help=help, **changes)  # type: ignore[arg-type]


CONSTRAINT_PARAMETERS = (
    _constraint(
        "response_format", "response_format", {"type": "json_object"},
        'Generate JSON: `{"type": "json_object"}`, or `{"type": "json_schema", "json_schema": {"schema": {…}}}`, as in '
        'OpenAI\'s Chat API. `{"type": "text"}` means any text.',
    ),
    _constraint(
        "json_schema", "json_schema", {"type": "object", "properties": {"name": {"type": "string"}}},
        "Generate JSON that is valid by this JSON Schema, an object or its text.",
    ),
    _constraint(
        "json_object", "boolean", True,
        "Generate a JSON object.", default=False,
    ),
    _constraint(
        "regex", "string", r"\d{4}-\d{2}-\d{2}",
        "Generate text that matches this regular expression as a whole (Rust's syntax, without look-around).",
    ),
    _constraint(
        "choice", "strings", ["yes", "no"],
        "Generate one of these texts.", max_items=1024,
    ),
    _constraint(
        "grammar", "string", 'root ::= "yes" | "no"',
        "Generate text that this grammar describes: in GBNF, llama.cpp's notation, or in llguidance's Lark.",
    ),
    _constraint(
        "whitespace_pattern", "string", "[ ]?",
        "A regular expression of what may stand between the tokens of generated JSON. By default nothing or a "
        "space.",
    ),
    _constraint(
        "disable_any_whitespace", "boolean", True,
        "Generate JSON without white space between its tokens.", default=False,
    ),
)  # fmt: skip
