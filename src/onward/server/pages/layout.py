"""Shared parts of the HTML pages: their built files (see `playground/`), documents without external resources, their
policy, escaping, code samples."""

from __future__ import annotations

import functools
import gzip
import hashlib
import html
import json
from pathlib import Path

from onward.errors import UnknownUrl
from onward.server.exchange import HttpExchange

FOLDER = Path(__file__).parent / "static"
_JAVASCRIPT, _CSS = "text/javascript; charset=utf-8", "text/css; charset=utf-8"
KINDS = {
    "playground.js": _JAVASCRIPT,
    "playground.css": _CSS,
    "reference.js": _JAVASCRIPT,
    "reference.css": _CSS,
    "usage.js": _JAVASCRIPT,
    "usage.css": _CSS,
    "favicon.svg": "image/svg+xml",
    "LICENSES.txt": "text/plain; charset=utf-8",
}
"""Every file that is served, with its content type."""
ASSET_ROOT = "/playground/"


@functools.cache
def version() -> str:
    """Return a digest of all files: pages name it in URLs, so that browsers keep a file until it changes."""
    digest = hashlib.sha256()
    for name in sorted(KINDS):
        digest.update((FOLDER / name).read_bytes())
    return digest.hexdigest()[:12]


@functools.cache
def _content(name: str, *, compressed: bool) -> bytes:
    content = (FOLDER / name).read_bytes()
    return gzip.compress(content, 9, mtime=0) if compressed else content


def asset_url(name: str) -> str:
    """Return the URL of a file, relative to the server's root."""
    return f"{ASSET_ROOT[1:]}{name}?v={version()}"


async def send_asset(exchange: HttpExchange, name: str | None) -> None:
    """Respond with a file. Raises UnknownUrl."""
    kind = KINDS.get(name or "")
    if name is None or kind is None:
        raise UnknownUrl(f"The playground has no file {exchange.path}.")
    compressed = "gzip" in (exchange.header(b"accept-encoding") or "")
    current = exchange.query("v") == version()
    exchange.headers += [
        (b"cache-control", b"public, max-age=31536000, immutable" if current else b"no-cache"),
        (b"vary", b"accept-encoding"),
        *([(b"content-encoding", b"gzip")] if compressed else []),
    ]
    await exchange.respond(200, _content(name, compressed=compressed), kind)


COMMON_HEADERS = [
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
]
"""Of every page: no frame of another site around it."""


def policy(styles: str = "") -> tuple[bytes, bytes]:
    """Return the header that allows a page the scripts and styles of this server only, and also `styles`."""
    return (
        b"content-security-policy",
        "default-src 'none'; script-src 'self'; connect-src 'self'; img-src 'self'; "
        f"style-src 'self'{styles}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'".encode(),
    )


HEADERS = [policy(), *COMMON_HEADERS]
"""Of a page without styles of its own."""
_LINKS = (("", "Write"), ("usage", "Usage"), ("docs", "API reference"))


def document(title: str, body: str, *, name: str, here: str, root: str = "./", has_ledger: bool = True) -> str:
    """Return a whole HTML document around `body`, which is HTML, below a bar with links to the other pages.

    `name` is that of its script and style sheet, `here` its path, `root` the relative URL of the server's root: pages
    may lie below a proxy's prefix. `has_ledger`: whether there is usage to see.
    """
    links = "".join(
        f'<a href="{root}{path}"{" aria-current=page" if path == here else ""}>{words}</a>'
        for path, words in _LINKS
        if has_ledger or path != "usage"
    )
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>'
        '<meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark">'
        f'<link rel="icon" href="{root}favicon.svg"><link rel="stylesheet" href="{root}{asset_url(f"{name}.css")}">'
        f'<script type="module" src="{root}{asset_url(f"{name}.js")}"></script>'
        f'<body><header class="bar"><a class="brand" href="{root}">Onward</a>'
        f'<nav aria-label="Pages">{links}</nav></header><main>{body}</main></body></html>'
    )


def prose(text: str) -> str:
    """Return plain text as HTML; text between backticks becomes code."""
    segments = html.escape(text).split("`")
    return "".join(f"<code>{segment}</code>" if odd % 2 else segment for odd, segment in enumerate(segments))


def sample(value: object) -> str:
    """Return a block of preformatted HTML: strings as they are, anything else as JSON."""
    shown = value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)
    return f'<pre tabindex="0">{html.escape(shown)}</pre>'
