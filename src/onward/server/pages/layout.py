"""Shared parts of the HTML pages: a document without external resources, escaping, code samples."""

from __future__ import annotations

import base64
import hashlib
import html
import json

_STYLE = """
:root{color-scheme:light dark}
body{font:16px/1.55 system-ui,sans-serif;max-width:56rem;margin:2rem auto;padding:0 1rem}
h1,h2,h3{line-height:1.25;overflow-wrap:anywhere}h1{font-size:2.4rem;margin:0 0 .5rem}
h2 code{font-size:1em}
h2{font-size:1.35rem;margin-top:3rem;border-top:1px solid #8884;padding-top:1rem}h3{font-size:1.05rem}
html{background:light-dark(#fdfcfa,#181a1d);color:light-dark(#1d1c1a,#e8e5df)}a{color:light-dark(#24568a,#8fbbe8)}
code,pre,textarea{font:14px/1.5 ui-monospace,monospace}
pre,output{background:#8882;padding:.8rem;overflow:auto;border-radius:6px}
table{border-collapse:collapse;width:100%}th,td{text-align:left;vertical-align:top;padding:.4rem .6rem .4rem 0;
border-bottom:1px solid #8883}td:first-child{white-space:nowrap}
.type{color:light-dark(#555,#b5b5b5)}.scroll{overflow-x:auto}
nav ul{columns:18rem;padding-left:1.2rem}
textarea,input{box-sizing:border-box;width:100%;padding:.4rem;font-family:ui-monospace,monospace}
button{font:inherit;padding:.3rem 1.2rem;margin:.4rem 0}output:empty{display:none}
output{display:block;white-space:pre-wrap;overflow-wrap:anywhere;max-height:24rem;font:14px/1.5 ui-monospace,monospace}
@media(max-width:34rem){h1{font-size:2rem}table,tbody,tr,td{display:block}tr:has(th){display:none}
td{border:0;padding:.1rem 0}tr{border-bottom:1px solid #8883;padding:.4rem 0}td:first-child{white-space:normal}
code{overflow-wrap:anywhere}}
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
        "default-src 'none'; script-src 'self'; connect-src 'self'; img-src 'self'; "
        f"style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'".encode(),
    ),
    *COMMON_HEADERS,
]
"""Of the reference: no resources but this server's, and the style of the page itself."""


def document(title: str, body: str, *, script: str) -> str:
    """Return a whole HTML document around `body`, which is HTML. `script` is the URL of its script."""
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><link rel="icon" href="/favicon.svg">'
        f'<script type="module" src="{html.escape(script)}"></script><style>{_STYLE}</style><main>{body}</main></html>'
    )


def prose(text: str) -> str:
    """Return plain text as HTML; text between backticks becomes code."""
    segments = html.escape(text).split("`")
    return "".join(f"<code>{segment}</code>" if odd % 2 else segment for odd, segment in enumerate(segments))


def sample(value: object) -> str:
    """Return a block of preformatted HTML: strings as they are, anything else as JSON."""
    shown = value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)
    return f'<pre tabindex="0">{html.escape(shown)}</pre>'
