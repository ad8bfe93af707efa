"""Connections: time limits, when a request is retried, and a sentence for each way in which one fails."""

from __future__ import annotations

import email.utils
import math
import os
import random
import socket
import ssl
import time
from collections.abc import Mapping

import httpx2

from onward.cli.source.base import ConnectionFailed

MAX_RETRIES = 2
INITIAL_DELAY_SECONDS = 0.5
MAX_DELAY_SECONDS = 8.0
MAX_RETRY_AFTER_SECONDS = 120.0
"""A request whose server asks for a longer delay is not retried."""

TIMEOUT = httpx2.Timeout(600.0, connect=5.0)
MAX_ANSWER_BYTES = 1 << 28
"""More than the log-probabilities of a million tokens take."""
MAX_ERROR_BYTES = 1 << 16
NO_TLS = ("WRONG_VERSION_NUMBER", "record layer failure")
"""How versions of OpenSSL describe an answer in plain HTTP."""


def retry_delay(attempt: int, status: int | None, headers: Mapping[str, str]) -> float | None:
    """Return the seconds to wait after `attempt` failed (0 is the first attempt); None: give up.

    `status` None: there was no response. Keys of `headers` are looked up in lower case.
    """
    return next_delay(attempt, status, headers) if attempt < MAX_RETRIES else None


def next_delay(attempt: int, status: int | None, headers: Mapping[str, str]) -> float | None:
    """Same as `retry_delay`, without a limit on attempts."""
    if not _is_retryable(status, headers):
        return None
    requested = _requested_delay(headers)
    if requested is None:
        delay: float = min(INITIAL_DELAY_SECONDS * 2.0**attempt, MAX_DELAY_SECONDS)
        return delay * (1 - 0.25 * random.random())
    return requested if requested <= MAX_RETRY_AFTER_SECONDS else None


def _is_retryable(status: int | None, headers: Mapping[str, str]) -> bool:
    match headers.get("x-should-retry"):
        case "true":
            return True
        case "false":
            return False
    return status is None or status in (408, 409, 429) or status >= 500


def _requested_delay(headers: Mapping[str, str]) -> float | None:
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            seconds = float(headers[name]) * unit
        except (KeyError, ValueError):
            continue
        if not math.isnan(seconds):
            return max(0.0, seconds)
    date = email.utils.parsedate_tz(headers.get("retry-after", ""))
    return None if date is None else max(0.0, email.utils.mktime_tz(date) - time.time())


def connection_failed(problem: httpx2.TransportError, url: str) -> ConnectionFailed:
    """Return the error for a connection to `url` that was not made, or was lost."""
    failure = ConnectionFailed(_message(problem, url))
    failure.is_refused = isinstance(problem, (httpx2.ConnectError, httpx2.ConnectTimeout))
    return failure


def _message(problem: httpx2.TransportError, url: str) -> str:
    place = f"{httpx2.URL(url).host}:{httpx2.URL(url).port or ''}".rstrip(":")
    if isinstance(problem, httpx2.ConnectTimeout):
        return f"{place} did not respond within {TIMEOUT.connect:g} seconds."
    if isinstance(problem, httpx2.ConnectError) and "CERTIFICATE" in str(problem):
        return (
            f"The certificate of {place} is not trusted ({problem}); set SSL_CERT_FILE to a file with the certificate "
            "of its authority."
        )
    if isinstance(problem, httpx2.ConnectError) and any(words in str(problem) for words in NO_TLS):
        return f"{place} does not use TLS: the URL may have to begin with http://."
    if isinstance(problem, httpx2.ConnectError):
        cause = _system_error(problem)
        if isinstance(cause, socket.gaierror):
            return f"The host name {httpx2.URL(url).host} cannot be resolved ({cause.strerror})."
        return f"Cannot connect to {place} ({os.strerror(cause.errno) if cause and cause.errno else problem})."
    if isinstance(problem, httpx2.TimeoutException):
        return f"{place} sent nothing for {TIMEOUT.read:g} seconds."
    return f"The connection to {place} was lost before the response was complete ({problem or type(problem).__name__})."


def _system_error(problem: BaseException) -> OSError | None:
    """Return the operating system's error inside the exceptions that libraries wrapped around it."""
    found: BaseException | None = problem
    while found is not None and not (isinstance(found, OSError) and found.errno):
        found = found.__cause__ or found.__context__
    return None if isinstance(found, ssl.SSLError) else found  # its error numbers are not the system's
