"""The page at `/`: what this server is, its models, and a first request to paste into a shell."""

from __future__ import annotations

import html
import json
import shlex

from onward.server.pages.layout import document, sample


def landing_page(models: list[str], url: str, *, requires_key: bool) -> str:
    """Return the page as HTML. `url` is this server's own, `http://HOST:PORT`, without a path."""
    listed = ", ".join(f"<code>{html.escape(name)}</code>" for name in models)
    key = "<p>This server requires an API key: replace <code>YOUR_KEY</code> with yours.</p>" if requires_key else ""
    return document(
        "Onward",
        "<h1>Onward</h1><p>OpenAI's Completions API on a model of your own.</p>"
        f"<p>Models on this server: {listed}.</p><h3>A first completion</h3>{key}"
        + sample(_command(models[0] if models else "storyteller", url, requires_key))
        + '<p><a href="/docs">Reference</a> · <a href="/openapi.json">OpenAPI document</a> · '
        '<a href="/v1/models">Models</a> · <a href="/health">Health</a></p>',
    )


def _command(model: str, url: str, requires_key: bool) -> str:
    body = json.dumps({"model": model, "prompt": "Once upon a time"})
    lines = [f"curl {shlex.quote(f'{url}/v1/completions')}", "-H 'Content-Type: application/json'"]
    if requires_key:
        lines.append("-H 'Authorization: Bearer YOUR_KEY'")
    return " \\\n  ".join([*lines, f"-d {shlex.quote(body)}"])
