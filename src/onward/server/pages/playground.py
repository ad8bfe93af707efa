"""The page at `/` and `/tokenizer`: what the playground's script needs to start, and what is shown without scripts."""

from __future__ import annotations

import html
import json
import secrets
import shlex
from typing import Any

import onward
from onward.api.openai.parameters import TABLES
from onward.api.parameter import Parameter, Profile
from onward.models.registry import real_model_command
from onward.server.pages.layout import COMMON_HEADERS, asset_url, policy, sample

_AUTHORIZATION = "-H 'Authorization: Bearer YOUR_KEY'"
_OWN_CONTROLS = frozenset(
    {"model", "prompt", "suffix", "prediction", "stream", "stream_options", "echo", "logprobs"}
    | {"return_token_ids", "return_tokens_as_token_ids", "prompt_logprobs"}
)
"""Parameters that are sent by parts of the page other than its settings, or that would change what it reads."""
_SHELL = '<header class="bar"><h1>Onward</h1></header>'
"""What is painted before the script has arrived; it takes this over."""


def landing(models: list[str], url: str, *, requires_key: bool) -> str:
    """Return what is shown without scripts, as HTML. `url` is this server's own, `http://HOST:PORT`, without a path.

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


def _completion(model: str, url: str, *headers: str) -> str:
    body = json.dumps({"model": model, "prompt": "Once upon a time"})
    lines = [f"curl {shlex.quote(f'{url}/v1/completions')}", "-H 'Content-Type: application/json'", *headers]
    return " \\\n  ".join([*lines, f"-d {shlex.quote(body)}"])


def playground_headers(nonce: str) -> list[tuple[bytes, bytes]]:
    """Return the headers of the page: its own script only, and the styles that the editor inserts by `nonce`."""
    return [policy(f" 'nonce-{nonce}'"), (b"cache-control", b"no-cache"), *COMMON_HEADERS]


def new_nonce() -> str:
    """Return a nonce that marks the page's own styles; never the same twice."""
    return secrets.token_urlsafe(16)


def playground_page(without_scripts: str, *, profile: Profile, requires_key: bool, has_ledger: bool, nonce: str) -> str:
    """Return the page as HTML. `without_scripts` is HTML for browsers that run none."""
    start = {
        "version": onward.__version__,
        "profile": profile,
        "requiresKey": requires_key,
        "hasLedger": has_ledger,
        "realModelCommand": real_model_command(),
        "nonce": nonce,
        "parameters": controls(profile),
    }
    encoded = json.dumps(start, ensure_ascii=False).replace("<", "\\u003c")
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Onward playground</title>'
        '<meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark">'
        f'<link rel="icon" href="favicon.svg"><link rel="stylesheet" href="{asset_url("playground.css")}">'
        f'<script type="module" src="{asset_url("playground.js")}"></script>'
        f'<script type="application/json" id="start">{encoded}</script>'
        f'<body><div id="app">{_SHELL}</div><noscript><main>{without_scripts}</main></noscript></body></html>'
    )


def controls(profile: Profile) -> list[dict[str, Any]]:
    """Return what the settings panel shows of each parameter: those of the profile, without other servers' names."""
    return [
        _control(row, profile)
        for row in TABLES[profile].values()
        if row.name not in _OWN_CONTROLS and row.alias_of is None and row.dialect is None and row.field is not None
    ]


def _control(row: Parameter, profile: Profile) -> dict[str, Any]:
    maximum = row.strict_maximum if profile == "strict" and row.strict_maximum is not None else row.maximum
    facts = {
        "name": row.name,
        "kind": row.kind,
        "group": row.group,
        "help": row.help,
        "default": row.default,
        "minimum": row.minimum,
        "maximum": maximum,
        "only": list(row.only) or None,
        "example": row.example,
    }
    return {name: value for name, value in facts.items() if value is not None}
