"""The built files of the pages (see `playground/`), which are part of the package."""

from __future__ import annotations

import functools
import gzip
import hashlib
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
