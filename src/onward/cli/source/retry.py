"""When to retry a request, and after how long: the rules of OpenAI's clients (behaviour §14 B1)."""

from __future__ import annotations

import email.utils
import math
import random
import time
from collections.abc import Mapping

MAX_RETRIES = 2
INITIAL_DELAY_SECONDS = 0.5
MAX_DELAY_SECONDS = 8.0
MAX_RETRY_AFTER_SECONDS = 120.0
"""A request whose server asks for a longer delay is not retried."""


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
