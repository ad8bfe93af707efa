"""When a request is tried again, and after how long: the rules of OpenAI's own clients (spec/wire-rules B1)."""

from __future__ import annotations

import email.utils
import random
import time
from collections.abc import Mapping

RETRIES = 2
FIRST_DELAY_SECONDS = 0.5
LONGEST_DELAY_SECONDS = 8.0
LONGEST_ASKED_SECONDS = 120.0
"""A server that asks for more patience than this is not tried again."""


def retry_delay(attempt: int, status: int | None, headers: Mapping[str, str]) -> float | None:
    """Seconds to wait after the failure of `attempt` (0 is the first), None to give up.

    `status` None: no answer came. `headers` must be looked up in lower case.
    """
    return next_delay(attempt, status, headers) if attempt < RETRIES else None


def next_delay(attempt: int, status: int | None, headers: Mapping[str, str]) -> float | None:
    """As `retry_delay`, for who is ready to ask any number of times."""
    if not _worth_it(status, headers):
        return None
    asked = _asked_delay(headers)
    if asked is None:
        delay: float = min(FIRST_DELAY_SECONDS * 2.0**attempt, LONGEST_DELAY_SECONDS)
        return delay * (1 - 0.25 * random.random())
    return asked if asked <= LONGEST_ASKED_SECONDS else None


def _worth_it(status: int | None, headers: Mapping[str, str]) -> bool:
    match headers.get("x-should-retry"):
        case "true":
            return True
        case "false":
            return False
    return status is None or status in (408, 409, 429) or status >= 500


def _asked_delay(headers: Mapping[str, str]) -> float | None:
    try:
        return max(0.0, float(headers["retry-after-ms"]) / 1000)
    except (KeyError, ValueError):
        pass
    asked = headers.get("retry-after", "")
    try:
        return max(0.0, float(asked))
    except ValueError:
        pass
    moment = email.utils.parsedate_tz(asked)
    return None if moment is None else max(0.0, email.utils.mktime_tz(moment) - time.time())
