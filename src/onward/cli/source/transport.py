"""Time limits of connections, and a sentence for each way in which one fails."""

from __future__ import annotations

import os
import socket
import ssl

import httpx

from onward.cli.source.errors import ConnectionFailed

TIMEOUT = httpx.Timeout(600.0, connect=5.0)
MAX_ANSWER_BYTES = 1 << 28
"""More than the log-probabilities of a million tokens take."""
MAX_ERROR_BYTES = 1 << 16


def connection_failed(problem: httpx.TransportError, url: str) -> ConnectionFailed:
    """Return the error for a connection to `url` that was not made, or was lost."""
    return ConnectionFailed(_message(problem, url))


def _message(problem: httpx.TransportError, url: str) -> str:
    place = f"{httpx.URL(url).host}:{httpx.URL(url).port or ''}".rstrip(":")
    if isinstance(problem, httpx.ConnectTimeout):
        return f"{place} did not respond within {TIMEOUT.connect:g} seconds."
    if isinstance(problem, httpx.ConnectError) and "CERTIFICATE" in str(problem):
        return (
            f"The certificate of {place} is not trusted ({problem}); set SSL_CERT_FILE to add certificate authorities."
        )
    if isinstance(problem, httpx.ConnectError):
        cause = _system_error(problem)
        if isinstance(cause, socket.gaierror):
            return f"The host name {httpx.URL(url).host} cannot be resolved ({cause.strerror})."
        return f"Cannot connect to {place} ({os.strerror(cause.errno) if cause and cause.errno else problem})."
    if isinstance(problem, httpx.TimeoutException):
        return f"{place} sent nothing for {TIMEOUT.read:g} seconds."
    return f"The connection to {place} was lost before the response was complete ({problem or type(problem).__name__})."


def _system_error(problem: BaseException) -> OSError | None:
    """Return the operating system's error inside the exceptions that libraries wrapped around it."""
    found: BaseException | None = problem
    while found is not None and not (isinstance(found, OSError) and found.errno):
        found = found.__cause__ or found.__context__
    return None if isinstance(found, ssl.SSLError) else found  # its error numbers are not the system's
