"""The OpenAPI document as one HTML page that needs nothing from the network."""

from __future__ import annotations

import html
import json
from collections.abc import Iterator
from typing import Any

Schema = dict[str, Any]

_STYLE = """
:root{color-scheme:light dark}
body{font:16px/1.55 system-ui,sans-serif;max-width:56rem;margin:2rem auto;padding:0 1rem}
h1,h2,h3{line-height:1.25}h2{margin-top:3rem;border-top:1px solid #8884;padding-top:1rem}
code,pre{font:14px/1.5 ui-monospace,monospace}pre{background:#8882;padding:.8rem;overflow:auto;border-radius:6px}
table{border-collapse:collapse;width:100%}th,td{text-align:left;vertical-align:top;padding:.4rem .6rem .4rem 0;
border-bottom:1px solid #8883}td:first-child{white-space:nowrap}.type{opacity:.7}.scroll{overflow-x:auto}
"""


def _page(title: str, body: str) -> str:
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style><main>{body}</main></html>'
    )


def landing_page(models: list[str]) -> str:
    """The page at `/`: what this is, which models it has, a first request."""
    example = json.dumps({"model": models[0] if models else "storyteller", "prompt": "Once upon a time"})
    listed = ", ".join(f"<code>{html.escape(name)}</code>" for name in models)
    return _page(
        "Onward",
        "<h1>Onward</h1><p>OpenAI's Completions API on a model of your own.</p>"
        f"<p>Models here: {listed}.</p><h3>A first completion</h3><pre>"
        + html.escape(f"curl URL/v1/completions -H 'Content-Type: application/json' \\\n  -d '{example}'")
        + '</pre><p><a href="/docs">Reference</a> · <a href="/openapi.json">OpenAPI document</a> · '
        '<a href="/v1/models">Models</a> · <a href="/health">Health</a></p>',
    )


def reference_page(document: Schema) -> str:
    """The page at /docs."""
    info = document["info"]
    parts = [f"<h1>{html.escape(info['title'])} {html.escape(info['version'])}</h1>"]
    parts.append(f"<p>{_prose(info.get('description', ''))}</p>")
    for path, methods in document["paths"].items():
        for method in [name for name in ("get", "post") if name in methods]:
            parts.append(f"<h2><code>{method.upper()} {html.escape(path)}</code></h2>")
            parts += _operation(methods[method], document)
    return _page(f"{info['title']} reference", "".join(parts))


def _operation(operation: Schema, document: Schema) -> Iterator[str]:
    yield f"<p>{_prose(operation.get('summary', ''))} {_prose(operation.get('description', ''))}</p>"
    for media in operation.get("requestBody", {}).get("content", {}).values():
        yield "<h3>Request</h3>" + _properties(media["schema"], document)
        for name, example in media.get("examples", {}).items():
            yield f"<p>Example: {html.escape(name)}</p>" + _sample(example.get("value"))
    yield "<h3>Answers</h3>"
    for status, answer in operation.get("responses", {}).items():
        yield f"<p><b>{html.escape(status)}</b> {_prose(answer.get('description', ''))}</p>"
        for media in answer.get("content", {}).values():
            if "example" in media:
                yield _sample(media["example"])


def _properties(schema: Schema, document: Schema) -> str:
    schema = _resolved(schema, document)
    required = schema.get("required", [])
    rows = [
        f"<tr><td><code>{html.escape(name)}</code>{' *' if name in required else ''}<td class=type>"
        f"{html.escape(_kind(_resolved(inner, document), document))}"
        f"<td>{_prose(_resolved(inner, document).get('description', ''))}{_default(inner)}"
        for name, inner in schema.get("properties", {}).items()
    ]
    return f'<div class="scroll"><table><tr><th>Field<th>Type<th>Meaning{"".join(rows)}</table></div>'


def _resolved(schema: Schema, document: Schema) -> Schema:
    """`schema`, or what its `$ref` points at."""
    reference = schema.get("$ref")
    if reference is None:
        return schema
    found: Any = document
    for step in reference.removeprefix("#/").split("/"):
        found = found[step]
    return _resolved(found, document)


def _kind(schema: Schema, document: Schema) -> str:
    """The type of a field in a few words, with its range."""
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return " or ".join(dict.fromkeys(_kind(_resolved(one, document), document) for one in schema[key]))
    if "enum" in schema:
        return ", ".join(json.dumps(one) for one in schema["enum"])
    kind = schema.get("type", "any")
    words = " or ".join(kind) if isinstance(kind, list) else str(kind)
    if kind == "array" and "items" in schema:
        words = f"array of {_kind(_resolved(schema['items'], document), document)}"
    lower, upper = schema.get("minimum"), schema.get("maximum")
    return words if lower is None and upper is None else f"{words}, {_range(lower, upper)}"


def _range(lower: float | None, upper: float | None) -> str:
    if lower is None:
        return f"≤ {upper}"
    return f"≥ {lower}" if upper is None else f"{lower} … {upper}"


def _default(schema: Schema) -> str:
    return f" Default <code>{html.escape(json.dumps(schema['default']))}</code>." if "default" in schema else ""


def _prose(text: str) -> str:
    """Escaped text; what stands between backticks becomes code."""
    pieces = html.escape(text).split("`")
    return "".join(f"<code>{piece}</code>" if odd % 2 else piece for odd, piece in enumerate(pieces))


def _sample(value: object) -> str:
    shown = value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)
    return f"<pre>{html.escape(shown)}</pre>"
