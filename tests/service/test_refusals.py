"""Both families of 429, in OpenAI's words (behaviour §16)."""

from __future__ import annotations

import re

import pytest

from onward.service.limits import Cause, Refusal
from onward.service.refusals import refused

HOUR = 3_600_000
WAIT, QUOTA = "rate_limit_exceeded", "insufficient_quota"
COUNTS = "Limit 9, Used 8, Requested 7. Please try again in "
TOO_LARGE = (
    "Request too large for m in organization org-onward on tokens per min (TPM): Limit 9, Requested 7. The input or "
    "output tokens must be reduced in order to run successfully. "
)


@pytest.mark.parametrize(
    ("cause", "wait", "type", "code", "words", "retries"),
    [
        ("requests", 120, "requests", WAIT, f"requests per min (RPM): {COUNTS}120ms. ", True),
        ("tokens", 3890, "tokens", WAIT, f"tokens per min (TPM): {COUNTS}3.89s. ", True),
        ("parallel", 1000, "requests", WAIT, f"parallel requests: {COUNTS}1s. ", True),
        ("tokens_per_day", 5000, "tokens", WAIT, f"tokens per day (TPD): {COUNTS}5s. ", True),
        ("tokens_per_day", 2 * HOUR, "tokens", WAIT, "Please try again in 2h0m0s. ", False),
        ("too_large", None, "tokens", WAIT, TOO_LARGE, False),
        ("tokens_per_day", None, "tokens", WAIT, "Request too large for m in organization org-onward on", False),
        ("tokens_per_month", None, QUOTA, "organization_usage_limit_exceeded", "8 of 9 tokens", False),
        ("cost_per_day", None, QUOTA, "project_spend_limit_exceeded", "this day (UTC): 0.00 of 0.00", False),
        ("cost_per_month", None, QUOTA, "project_spend_limit_exceeded", "for this month", False),
    ],
)  # fmt: skip
def test_each_refusal_has_its_type_code_and_words(
    cause: Cause, wait: int | None, type: str, code: str, words: str, retries: bool
) -> None:
    error = refused(Refusal(cause, 9, 8, 7, wait), "m")
    assert (error.status, error.type, error.code, error.param) == (429, type, code, None)
    assert words in error.message
    assert (error.headers.get("x-should-retry") != "false") is retries
    if wait is None:
        assert "retry-after" not in error.headers and "try again" not in error.message
    else:
        assert error.headers["retry-after"] == str(-(-wait // 1000))
        assert float(error.headers["retry-after-ms"]) == wait
        assert re.search(r"Please try again in ((\d+h)?(\d+m)?(\d+(\.\d+)?s)|\d+ms)\. ", error.message)
