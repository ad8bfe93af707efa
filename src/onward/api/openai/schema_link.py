"""`$schema` and its Link header on JSON completions of /openai/v1 (behaviour §10)."""

from __future__ import annotations

import re

from onward.api.routes import Exchange

SCHEMA_PATH = "/openai/schemas/Completion.json"
LINK = (b"link", f'<{SCHEMA_PATH}>; rel="describedBy"'.encode())
_HOST = re.compile(r"[A-Za-z0-9.\-]+(:\d+)?|\[[0-9A-Fa-f:.]+\](:\d+)?")


def schema_url(exchange: Exchange) -> str:
    """Return the URL of the schema as the client reaches this server; only its path where that is unknown."""
    return (public_url(exchange) or "") + SCHEMA_PATH


def public_url(exchange: Exchange) -> str | None:
    """Return `http://HOST:PORT` as the client reaches this server, through a proxy too. Safe in HTML and shells.

    None if the client sent no valid host.
    """
    forwarded = _forwarded(exchange.header(b"forwarded") or "")
    scheme = exchange.header(b"x-forwarded-proto") or forwarded.get("proto") or exchange.scheme
    host = exchange.header(b"x-forwarded-host") or forwarded.get("host") or exchange.header(b"host") or ""
    if not _HOST.fullmatch(host) or scheme not in ("http", "https"):
        return None
    return f"{scheme}://{host}"


def _forwarded(header: str) -> dict[str, str]:
    """Return the pairs of the first element of a Forwarded header (RFC 7239)."""
    pairs = (pair.partition("=") for pair in header.partition(",")[0].split(";"))
    return {name.strip().lower(): value.strip().strip('"') for name, _, value in pairs}
