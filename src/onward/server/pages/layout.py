"""Shared parts of the HTML pages: a document without external resources, escaping, code samples."""

from __future__ import annotations

import base64
import hashlib
import html
import json

_STYLE = """
:root{color-scheme:light dark}
body{font:16px/1.55 system-ui,sans-serif;max-width:56rem;margin:2rem auto;padding:0 1rem}
h1,h2,h3{line-height:1.25}h2{margin-top:3rem;border-top:1px solid #8884;padding-top:1rem}
code,pre{font:14px/1.5 ui-monospace,monospace}pre{background:#8882;padding:.8rem;overflow:auto;border-radius:6px}
table{border-collapse:collapse;width:100%}th,td{text-align:left;vertical-align:top;padding:.4rem .6rem .4rem 0;
border-bottom:1px solid #8883}td:first-child{white-space:nowrap}.type{opacity:.7}.scroll{overflow-x:auto}
nav ul{columns:18rem;padding-left:1.2rem}
"""

_STYLE_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
COMMON_HEADERS = [
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
]
"""Of every page: no frame of another site around it."""
HEADERS = [
    (
        b"content-security-policy",
        f"default-src 'none'; img-src 'self'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'".encode(),
    ),
    *COMMON_HEADERS,
]
"""Of a page without scripts: no resources but its own style and the icon."""


def document(title: str, body: str) -> str:
    """Return a whole HTML document around `body`, which is HTML."""
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width">'
        f'<link rel="icon" href="/favicon.svg"><style>{_STYLE}</style><main>{body}</main></html>'
    )


def prose(text: str) -> str:
    """Return plain text as HTML; text between backticks becomes code."""
    segments = html.escape(text).split("`")
    return "".join(f"<code>{segment}</code>" if odd % 2 else segment for odd, segment in enumerate(segments))


def sample(value: object) -> str:
    """Return a block of preformatted HTML: strings as they are, anything else as JSON."""
    shown = value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)
    return f"<pre>{html.escape(shown)}</pre>"
