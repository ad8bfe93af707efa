"""What `/` shows without scripts: what this server is, its models, and a first request to paste into a shell."""

from __future__ import annotations

import html
import json
import shlex

from onward.server.pages.layout import sample


def landing(models: list[str], url: str, *, requires_key: bool) -> str:
    """Return it as HTML. `url` is this server's own, `http://HOST:PORT`, without a path.

    `models` is empty where a key is required: their names are not public.
    """
    return (
        "<h1>Onward</h1><p>OpenAI's Completions API on a model of your own.</p>"
        + (_with_key(url) if requires_key else _without_key(models, url))
        + '<p><a href="/docs">Reference</a> · <a href="/openapi.json">OpenAPI document</a> · '
        '<a href="/v1/models">Models</a> · <a href="/health">Health</a></p>'
    )


def _without_key(models: list[str], url: str) -> str:
    listed = ", ".join(f"<code>{html.escape(name)}</code>" for name in models)
    command = _completion(models[0] if models else "storyteller", url)
    return f"<p>Models on this server: {listed}.</p><h3>A first completion</h3>{sample(command)}"


def _with_key(url: str) -> str:
    models = " \\\n  ".join([f"curl {shlex.quote(f'{url}/v1/models')}", _AUTHORIZATION])
    return (
        "<p>This server requires an API key: replace <code>YOUR_KEY</code> with yours.</p>"
        f"<h3>The models of this server</h3>{sample(models)}"
        f"<h3>A first completion</h3><p>Replace <code>MODEL</code> with one of them.</p>"
        f"{sample(_completion('MODEL', url, _AUTHORIZATION))}"
    )


_AUTHORIZATION = "-H 'Authorization: Bearer YOUR_KEY'"


def _completion(model: str, url: str, *headers: str) -> str:
    body = json.dumps({"model": model, "prompt": "Once upon a time"})
    lines = [f"curl {shlex.quote(f'{url}/v1/completions')}", "-H 'Content-Type: application/json'", *headers]
    return " \\\n  ".join([*lines, f"-d {shlex.quote(body)}"])
