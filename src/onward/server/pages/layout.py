"""Shared parts of the HTML pages: a document without external resources, escaping, code samples."""

from __future__ import annotations

import base64
import hashlib
import html
import json

_STYLE = """
:root{color-scheme:light dark;--paper:light-dark(#fdfcfa,#181a1d);--panel:light-dark(#f5f3ef,#1f2226);
--ink:light-dark(#1d1c1a,#e8e5df);--quiet:light-dark(#5f5b54,#a9a59c);--line:light-dark(#d9d5cd,#383c42);
--accent:light-dark(#24568a,#8fbbe8);--on-accent:light-dark(#ffffff,#10202f);
--serif:"Iowan Old Style","Charter","Palatino Linotype","Source Serif 4",Georgia,serif;
--mono:ui-monospace,"SF Mono","Cascadia Mono",Menlo,Consolas,monospace}
html{background:var(--paper);color:var(--ink);accent-color:var(--accent)}
body{font:16px/1.6 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;max-width:56rem;margin:2rem auto;padding:0 1rem}
h1,h2,h3{font-family:var(--serif);line-height:1.25;overflow-wrap:anywhere}h1{font-size:2.4rem;margin:0 0 .5rem}
h2 code{font-size:1em}
h2{font-size:1.35rem;margin-top:3rem;border-top:1px solid var(--line);padding-top:1rem}h3{font-size:1.05rem}
a{color:var(--accent)}:focus-visible{outline:2px solid var(--accent);outline-offset:2px}
code,pre,textarea{font:14px/1.5 var(--mono)}
pre,output{background:var(--panel);padding:.8rem;overflow:auto;border-radius:6px}
table{border-collapse:collapse;width:100%}th,td{text-align:left;vertical-align:top;padding:.4rem .6rem .4rem 0;
border-bottom:1px solid var(--line)}td:first-child{white-space:nowrap}
.type{color:var(--quiet)}.scroll{overflow-x:auto}
nav ul{columns:18rem;padding-left:1.2rem}
textarea,input{box-sizing:border-box;width:100%;padding:.4rem;font-family:var(--mono);background:var(--paper);
color:inherit;border:1px solid var(--line);border-radius:6px}
button{font:inherit;padding:.3rem 1.2rem;margin:.4rem 0;border:1px solid var(--accent);border-radius:6px;
background:var(--accent);color:var(--on-accent);font-weight:600;cursor:pointer}output:empty{display:none}
output{display:block;white-space:pre-wrap;overflow-wrap:anywhere;max-height:24rem;font:14px/1.5 var(--mono)}
@media(max-width:34rem){h1{font-size:2rem}table,tbody,tr,td{display:block}tr:has(th){display:none}
td{border:0;padding:.1rem 0}tr{border-bottom:1px solid var(--line);padding:.4rem 0}td:first-child{white-space:normal}
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
