"""Forms of the API reference that send an example request. The page's script shows them, and sends them."""

from __future__ import annotations

import html
import json
from typing import Any

Schema = dict[str, Any]
PLACEHOLDERS = {"/v1/completions/{id}": "COMPLETION", "/openai/v1/completions/{id}": "COMPLETION"}
"""What stands for `{id}` in a path that needs something else than a model."""


def request_form(openapi: Schema, method: str, path: str, operation: Schema) -> str:
    """Return a form with the path and an example body of an operation, as HTML."""
    address = path.replace("{id}", PLACEHOLDERS.get(path, "MODEL"))
    body = request_example(openapi, operation)
    textarea = ""
    if body is not None:
        text = html.escape(json.dumps(body, indent=2, ensure_ascii=False))
        rows = min(12, text.count("\n") + 1)
        textarea = f'<label>Body<textarea rows="{rows}" spellcheck="false">{text}</textarea></label>'
    return (
        f'<form class="try" hidden data-method="{method.upper()}"><h3>Try it</h3>'
        f'<label>{method.upper()} <input value="{html.escape(address)}" spellcheck="false"></label>{textarea}'
        '<button>Send</button><output tabindex="0" aria-label="Answer"></output></form>'
    )


def request_example(openapi: Schema, operation: Schema) -> object:
    """Return an example of an operation's body; None where it has none."""
    media = next(iter(operation.get("requestBody", {}).get("content", {}).values()), None)
    if media is None:
        return None
    for example in media.get("examples", {}).values():
        return example.get("value")
    schema = media["schema"]
    if "$ref" in schema:
        schema = openapi["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    fields = schema.get("properties", {})
    required = schema.get("required") or list(fields)[:1]
    return {name: _example(fields[name]) for name in required if name in fields}


def _example(field: Schema) -> object:
    """Return an example of a field: its own, or one of its type."""
    if field.get("examples"):
        return field["examples"][0]
    kind = field.get("type")
    kind = kind[0] if isinstance(kind, list) else kind
    item = field.get("items", {})
    return {"array": [_example(item)] if item else [], "integer": 268, "number": 1, "boolean": False}.get(
        str(kind), "Once upon a time"
    )
