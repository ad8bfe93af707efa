"""The page at `/`: what this is, which models it has, a first request to paste into a shell."""

from __future__ import annotations

import html
import json
import shlex

from onward.server.html_page import framed, sample


def landing_page(models: list[str], address: str, *, keyed: bool) -> str:
    """`address` is this server's own, `http://HOST:PORT`; `keyed` says that it asks for a key."""
    listed = ", ".join(f"<code>{html.escape(name)}</code>" for name in models)
    key = "<p>This server asks for an API key: put yours in the place of <code>YOUR_KEY</code>.</p>" if keyed else ""
    return framed(
        "Onward",
        "<h1>Onward</h1><p>OpenAI's Completions API on a model of your own.</p>"
        f"<p>Models here: {listed}.</p><h3>A first completion</h3>{key}"
        + sample(_command(models[0] if models else "storyteller", address, keyed))
        + '<p><a href="/docs">Reference</a> · <a href="/openapi.json">OpenAPI document</a> · '
        '<a href="/v1/models">Models</a> · <a href="/health">Health</a></p>',
    )


def _command(model: str, address: str, keyed: bool) -> str:
    body = json.dumps({"model": model, "prompt": "Once upon a time"})
    lines = [f"curl {shlex.quote(f'{address}/v1/completions')}", "-H 'Content-Type: application/json'"]
    if keyed:
        lines.append("-H 'Authorization: Bearer YOUR_KEY'")
    return " \\\n  ".join([*lines, f"-d {shlex.quote(body)}"])
